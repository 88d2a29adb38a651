"""Dicts whose keys are attributes: `copy` asks them for methods, and their answer is a `KeyError`."""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze.isolation import SavedState, copy_values
from fxplug.analyze.runs import observe
from fxplug.errors import GuardError
from fxplug.semantics.deep_copies import deep_copy, shallow_copy

X = torch.rand(2, 3)


class AttrDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Ordered(OrderedDict):
    def __getattr__(self, name):
        return self[name]


class Missing(defaultdict):
    __getattr__ = defaultdict.__getitem__


class Slots(dict):
    __slots__ = ()
    __getattr__ = dict.__getitem__


@dataclass
class Held:
    parts: AttrDict


def returns(x):
    return AttrDict(double=x * 2, more=[AttrDict(x=x + 1), 3])


def takes(batch):
    return batch.image * batch["scale"] + batch.more[0].x


def writes(batch):
    batch.twice = batch.image * 2
    return batch.image + 1


class Keeps(nn.Module):
    def forward(self, batch):
        self.last = batch.image * 2
        return batch.image + 1


class Asked:
    """An object that takes every name for a key."""

    def __init__(self, **settings):
        vars(self)["_settings"] = settings

    def __getattr__(self, name):
        return self._settings[name]


class Configured(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Slots(width=3, shift=torch.ones(3))
        self.linear_of = {"first": self.config}
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return AttrDict(out=self.linear(x) * self.linear_of["first"].width + self.config.shift)


class Takes(nn.Module):
    def forward(self, batch):
        return batch.image * 3


def batch(factor=1.0):
    return AttrDict(image=X * factor, scale=2.0, more=[AttrDict(x=X)])


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", ["value", "shape"])
def test_one_may_be_returned(mode, check):
    result = fxplug.trace(returns, (X,), mode=mode, check=check)(X + 1)

    assert type(result) is type(result.more[0]) is AttrDict
    assert torch.equal(result.double, (X + 1) * 2)
    assert torch.equal(result.more[0].x, X + 2)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", ["value", "shape"])
def test_one_may_be_an_input(mode, check):
    captured = fxplug.trace(takes, (batch(),), mode=mode, check=check)

    assert torch.equal(captured(batch(3.0)), takes(batch(3.0)))


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_what_is_written_to_one_is_written(mode):
    captured = fxplug.trace(writes, (batch(),), mode=mode)
    given = batch(3.0)

    captured(given)

    assert torch.equal(given.twice, X * 6)
    with pytest.raises(GuardError):
        captured(dict(given))


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_a_program_that_runs_twice_takes_one(mode):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        captured = fxplug.trace(Keeps(), (batch(),), mode=mode)

    assert torch.equal(captured(batch(3.0)), X * 3 + 1)


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_a_module_may_hold_one(mode):
    model = Configured()
    captured = fxplug.trace(model, (X,), mode=mode)
    model.config["shift"].add_(1)

    assert torch.equal(captured(X).out, model(X).out)


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
@pytest.mark.parametrize("made", [AttrDict, Slots, Asked, lambda **settings: Missing(int, settings)])
def test_a_program_may_find_one(made, mode):
    config = made(width=3, inner=made(height=2))

    def program(x):
        return x * config.width + config.inner.height

    captured = fxplug.trace(program, None if mode == "symbolic" else (X,), mode=mode)

    assert torch.equal(captured(X + 1), program(X + 1))
    assert not isinstance(config, Missing) or [*config] == ["width", "inner"]


def test_runs_with_gradients_take_one():
    model = Takes()

    run = observe(model, (AttrDict(image=X.clone().requires_grad_()),), SavedState(model), sources={})

    assert torch.equal(run.output, X * 3)
    assert run.gradients["input 0"].shape == X.shape


def test_copies_share_what_was_shared():
    one = batch()
    ring = AttrDict(one=one)
    ring.ring = ring

    copied = deep_copy([ring, (one, Held(one))], {})

    assert type(copied[0]) is AttrDict
    assert copied[0].ring is copied[0]
    assert copied[0].one is copied[1][0] is copied[1][1].parts
    assert copied[0].one is not one
    assert copied[0].one.image is not one.image
    assert torch.equal(copied[0].one.image, one.image)


def test_results_with_a_history_are_copied_without_it():
    value = Ordered(b=X.clone().requires_grad_() * 2, a=1)

    copied = copy_values(value)

    assert type(copied) is Ordered
    assert list(copied) == ["b", "a"]
    assert torch.equal(copied["b"], value["b"])
    assert copied["b"].grad_fn is None


@pytest.mark.parametrize("copied", [shallow_copy, lambda value: deep_copy(value, {})])
def test_copies_are_of_the_same_class_and_have_the_same_attributes(copied):
    noted, missing = Slots(a=[1]), Missing(list, a=[1])
    ordered = Ordered(b=[1], a=2)
    vars(ordered)["note"] = [3]

    assert type(copied(noted)) is Slots
    assert copied(noted) == noted
    assert type(copied(missing)) is Missing
    assert copied(missing) == missing == {"a": [1]}
    assert copied(missing)["b"] == []
    assert list(copied(ordered)) == ["b", "a"]
    assert vars(copied(ordered)) == {"note": [3]}
    assert copied(noted)["a"] is not noted["a"] or copied is shallow_copy


def test_other_values_are_copied_as_ever():
    plain = {"a": [X]}

    assert shallow_copy(plain)["a"] is plain["a"]
    assert shallow_copy([1, 2]) == [1, 2]
    assert deep_copy(plain, {})["a"][0] is not X


class Lazy(OrderedDict):
    """A dict that loads what is asked of it, as registries of classes do."""

    def _load(self):
        raise ImportError("no such module")

    def values(self):
        return self._load()

    def items(self):
        return self._load()

    def __iter__(self):
        self._load()


REGISTRY = Lazy()
OrderedDict.__setitem__(REGISTRY, "doubled", "a module to be loaded")


class Registered(nn.Module):
    registry = REGISTRY

    def forward(self, x):
        return x * len(REGISTRY) + (2 if "doubled" in self.registry else 3)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_dicts_that_load_what_they_are_asked_for_are_not_asked_for_all(mode):
    captured = fxplug.trace(Registered(), None if mode == "symbolic" else (X,), mode=mode)

    assert torch.equal(captured(X), X + 2)

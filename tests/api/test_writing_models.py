"""Optimising models that write to their own weights: the trials of an optimisation are not felt in its result."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, defaultdict

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError, TraceError
from fxplug.plugins import Config, PluginManager, TraceConfig

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))


class Halves(Layer):
    """Writes a parameter in place."""

    def forward(self, x):
        with torch.no_grad():
            self.layer.weight.mul_(0.5)
        return self.layer(x)


class HalvesBetween(Layer):
    """Runs a layer twice, and writes its weight between."""

    def forward(self, x):
        before = self.layer(x)
        with torch.no_grad():
            self.layer.weight.mul_(0.5)
        return before + self.layer(x)


class Exchanges(Layer):
    """Gives a parameter other memory."""

    def forward(self, x):
        self.layer.weight.data = self.layer.weight.data * 0.5
        return self.layer(x)


class Follows(Layer):
    """Moves the weights of one layer towards those of another."""

    def forward(self, x):
        with torch.no_grad():
            for mine, theirs in zip(self.layer.parameters(), self.other.parameters(), strict=True):
                mine.lerp_(theirs, 0.25)
        return self.layer(x)


class Counts(Layer):
    """Updates a buffer, one way and the other, and uses it."""

    def forward(self, x):
        self.seen.add_(1)
        self.seen = self.seen * 2
        return self.layer(x) + self.seen


class Keeps(nn.Module):
    """Keeps a number in an attribute; it is left a call."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.calls += 1
        with torch.no_grad():
            self.weight += self.calls
        return x * self.weight


class AroundKeeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.keeps = Keeps()

    def forward(self, x):
        return self.keeps(x).relu()


def made(kind):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return kind().eval()


def managed(**trace):
    return PluginManager(config=Config(trace=TraceConfig(**trace)), candidates=[], environ={})


def assert_the_next_calls_agree(result, model):
    for x in (X, X, X + 1):
        torch.testing.assert_close(result.module(x), model(x))


@pytest.mark.parametrize("options", [{}, {"passes": []}, {"mode": "value"}, {"backend": "eager"}], ids=str)
@pytest.mark.parametrize("kind", [Halves, HalvesBetween, Exchanges, Follows, Counts])
def test_the_result_begins_with_the_weights_of_the_model(kind, options):
    model = made(kind)
    before = copy.deepcopy(model.state_dict())

    result = fxplug.optimize(model, (X,), measure=False, manager=managed(), **options)

    torch.testing.assert_close(model.state_dict(), before)
    assert_the_next_calls_agree(result, model)


def test_the_measurement_is_not_felt_either():
    model = made(Halves)

    result = fxplug.optimize(model, (X,), runs=2, manager=managed())

    assert_the_next_calls_agree(result, model)


def test_what_a_module_that_is_left_a_call_keeps_is_put_back():
    model = made(AroundKeeps)

    result = fxplug.optimize(model, (X,), measure=False, manager=managed(leaf_modules=["*.Keeps"]))

    assert result.module.keeps.calls == 0
    assert_the_next_calls_agree(result, model)


def test_calls_of_a_layer_are_not_merged_where_its_weight_is_written_between():
    model = made(HalvesBetween)

    result = fxplug.optimize(model, (X,), measure=False, passes=["common-subexpressions"], manager=managed())

    assert len(result.graph_module.graph.find_nodes(op="call_module", target="layer")) == 2
    assert_the_next_calls_agree(result, model)


@pytest.mark.parametrize("kind", [Halves, Counts])
def test_what_inductor_compiles_begins_with_the_weights_of_the_model(kind):
    model = made(kind)

    result = fxplug.optimize(model, (X,), measure=False, backend="inductor", manager=managed())

    assert "writes state" in str(result.lowering)
    assert_the_next_calls_agree(result, model)


# -- inputs of other kinds


class Mapping(dict):
    """A dict of a class of its own."""


class TakesDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, batch):
        return self.layer(batch["x"])


@pytest.mark.parametrize("mode", [None, "value"])
@pytest.mark.parametrize(
    "kind",
    [Mapping, OrderedDict, UserDict, lambda entries: defaultdict(list, entries)],
    ids=["own class", "OrderedDict", "UserDict", "defaultdict"],
)
def test_inputs_may_be_dicts_of_other_classes(kind, mode):
    model, batch = made(TakesDict), kind({"x": X})

    result = fxplug.optimize(model, (batch,), measure=False, mode=mode, manager=managed())

    torch.testing.assert_close(result.module(batch), model(batch))


@pytest.mark.parametrize("is_list", [False, True])
def test_inputs_that_hold_themselves_are_refused(is_list):
    model, batch = made(TakesDict), {"x": X}
    batch["around"] = [batch] if is_list else batch

    for run in (fxplug.optimize, fxplug.cost, fxplug.profile):
        with pytest.raises((ConfigError, TraceError), match="inputs that hold themselves"):
            run(model, (batch,), manager=managed())
    with pytest.raises(TraceError, match=r"inputs that hold themselves.* \[FXP-T064\]"):
        fxplug.trace(model, (batch,))
    with pytest.raises(TraceError, match="inputs that hold themselves"):
        fxplug.trace(model, example_kwargs={"batch": batch})

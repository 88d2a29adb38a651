"""Inputs that are objects which can be called, and objects that know by a weak reference which one they are part of."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GuardError


class Scale:
    """An object with tensors that is called."""

    def __init__(self, factor, power=1):
        self.factor = factor
        self.power = power

    def __call__(self, x):
        return x * self.factor**self.power


class Store:
    """What a `Record` keeps everything in."""

    def __init__(self, whole, **values):
        self.values = values
        self.whole = weakref.ref(whole)

    def __eq__(self, other):
        return self.values == other.values

    __hash__ = object.__hash__


class Record:
    """A record as PyTorch Geometric has them: attributes are values of a store, and a call yields them."""

    def __init__(self, **values):
        vars(self)["store"] = Store(self, **values)

    def __getattr__(self, name):
        if "store" not in vars(self) or name not in self.store.values:
            raise AttributeError(name)
        return self.store.values[name]

    def __setattr__(self, name, value):
        self.store.values[name] = value

    def __call__(self):
        yield from self.store.values.items()

    def __deepcopy__(self, memo):
        return Record(**copy.deepcopy(self.store.values, memo))


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, data):
        return self.linear(data.x).index_add(0, data.edges, data.store.whole().x[:, :2])


def record(rows):
    return Record(x=torch.rand(rows, 3), edges=torch.arange(rows))


@pytest.mark.parametrize("options", [{}, {"check": False}, {"mode": "shape"}])
def test_an_object_that_can_be_called_is_an_input_with_its_tensors(options):
    def program(x, scale):
        return scale(x) + scale.factor

    scale = Scale(torch.tensor(2.0))
    captured = fxplug.trace(program, (torch.rand(3), scale), **options)
    x, other = torch.rand(3), Scale(torch.tensor(5.0))

    assert torch.equal(captured(x, other), program(x, other))
    scale.factor = torch.tensor(7.0)
    assert torch.equal(captured(x, scale), program(x, scale))
    with pytest.raises(GuardError, match="power == 1"):
        captured(x, Scale(torch.tensor(5.0), 2))


@pytest.mark.parametrize("options", [{}, {"check": False}, {"mode": "shape"}])
def test_parts_that_refer_to_their_whole_are_those_of_another_one_too(options):
    model, data = Graph(), record(4)
    captured = fxplug.trace(model, (data,), **options)
    others = [record(4), record(5)]

    for one in (captured, copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        for other in others:
            assert torch.allclose(one(other), model(other))
    data.x = torch.rand(4, 3)
    assert torch.allclose(captured(data), model(data))


def test_a_part_of_another_whole_is_refused():
    model, data = Graph(), record(4)
    captured = fxplug.trace(model, (data,))
    other = record(4)
    other.store.whole = weakref.ref(data)

    with pytest.raises(GuardError, match=r"refers_to\(data\.store\.whole, data\)"):
        captured(other)


@pytest.mark.parametrize("check", [True, False])
def test_what_a_program_does_to_such_an_input_is_done_by_the_captured_one(check):
    def program(data):
        data.y = data.x + 1
        return data.y * 2

    captured = fxplug.trace(program, (record(2),), check=check)
    data = record(3)
    found = captured(data)

    assert torch.equal(found, (data.x + 1) * 2)
    assert torch.equal(data.y, data.x + 1)
    assert data.store.whole() is data


def test_functions_are_still_told_apart():
    captured = fxplug.trace(lambda x, f: f(x), (torch.rand(2), torch.relu))

    with pytest.raises(GuardError, match="f is"):
        captured(torch.rand(2), torch.tanh)

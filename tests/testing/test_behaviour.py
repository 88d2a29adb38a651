"""The assertion that authors of passes and backends use."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.testing import assert_same_behaviour

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Scaled(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return {"out": x * self.factor}


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return x + self.count


def test_a_captured_module_behaves_like_its_model():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())

    assert_same_behaviour(fxplug.symbolic_trace(model), model, (X,))


def test_a_difference_is_named_with_its_place():
    with pytest.raises(AssertionError, match=r"Scaled does not behave as Scaled does:\n  - output\['out'\]"):
        assert_same_behaviour(Scaled(1.01), Scaled(), (X,))


def test_the_tolerance_can_be_widened():
    assert_same_behaviour(Scaled(1.01), Scaled(), (X,), rtol=0.1)


def test_what_is_done_to_the_inputs_counts():
    class InPlace(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    class Functional(nn.Module):
        def forward(self, x):
            return x * 2

    given = X.clone()
    with pytest.raises(AssertionError, match="inputs"):
        assert_same_behaviour(InPlace(), Functional(), (given,))
    assert torch.equal(given, X)


def test_modules_are_as_before():
    model, other = Counting(), Counting()
    before = copy.deepcopy(model.state_dict())

    assert_same_behaviour(other, model, (X,))

    assert torch.equal(model.count, before["count"])

"""A decorator may give what it decorates some of its arguments, or other defaults: its own parameters count."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from torch import nn

import fxplug
from fxplug import TraceError

MODES = ["symbolic", "shape", "value"]


def _captured(program, mode, *examples):
    return fxplug.trace(program, None if mode == "symbolic" else examples, mode=mode)


def with_positions(forward):
    @wraps(forward)
    def inner(self, x):
        return forward(self, x, torch.arange(x.shape[1]))

    return inner


class Embeds(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 3)

    @with_positions
    def forward(self, x, positions):
        return x + self.embedding(positions)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_decorator_gives_is_no_input(mode):
    root = Embeds().eval()
    captured = _captured(root, mode, torch.randn(2, 4, 3))

    x = torch.randn(5, 4, 3)
    torch.testing.assert_close(captured(x), root(x))
    assert [node.target for node in captured.graph.find_nodes(op="placeholder")] == ["x"]


def scaled(function):
    @wraps(function)
    def inner(x, n=3):
        return function(x) * n

    return inner


@scaled
def _other_default(x, n=5):
    return x + 1


@pytest.mark.parametrize("mode", MODES)
def test_defaults_are_those_of_the_decorator(mode):
    captured = _captured(_other_default, mode, torch.ones(2))

    x = torch.randn(2)
    assert torch.equal(captured(x), _other_default(x))


def passes_on(function):
    @wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


@passes_on
def _passed(x, n=2):
    return x * n


@pytest.mark.parametrize("mode", MODES)
def test_what_only_passes_arguments_on_has_the_parameters_of_what_is_inside(mode):
    captured = _captured(_passed, mode, torch.ones(2), 2)

    x = torch.randn(2)
    assert torch.equal(captured(x, n=3), _passed(x, n=3))
    assert [node.target for node in captured.graph.find_nodes(op="placeholder")] == ["x", "n"]


def test_examples_that_do_not_fit_the_decorator_are_an_error():
    with pytest.raises(TraceError, match=r"FXP-T064") as caught:
        fxplug.trace(_other_default, (torch.ones(2), 1, 2))
    assert "(x, n=3)" in str(caught.value)

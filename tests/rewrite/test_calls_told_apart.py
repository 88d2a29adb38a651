"""Calls that look alike and do something else are no matches."""

# Patterns are written as functions of the values in them, also where a bare callable would do.
# ruff: noqa: PLW0108

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxplug.ir import Graph
from fxplug.rewrite import AnyOf, Module, Pattern, Rewriter, replace_pattern, replace_pattern_with_filters

X = torch.linspace(-2, 2, 12).reshape(3, 4)


# -- sizes one by one


@pytest.mark.parametrize("name", ["amax", "amin", "logsumexp"])
def test_a_flag_behind_a_dimension_is_no_dimension(capture, name):
    module = capture(lambda x: getattr(x, name)(0, True))

    replace_pattern(
        module,
        lambda a, d: getattr(torch, name)(a, d),
        lambda a, d: getattr(torch, name)(a, d),
    )

    assert module(X).shape == (1, 4)


def test_a_dimension_behind_a_shift_is_no_shift(capture):
    module = capture(lambda x: x.roll(1, 0))

    assert replace_pattern(module, lambda a, s: torch.roll(a, s), lambda a, s: torch.roll(a, s)) == []
    assert replace_pattern(module, lambda a, s, d: torch.roll(a, s, d), lambda a, s, d: a.roll(s, d))
    assert torch.equal(module(X), X.roll(1, 0))


@pytest.mark.parametrize(
    ("program", "pattern"),
    [
        (lambda x: x.reshape(4, 3), lambda a: torch.reshape(a, (4, 3))),
        (lambda x: x.permute(1, 0), lambda a: torch.permute(a, (1, 0))),
        (lambda x: x.tile(2, 1), lambda a: torch.tile(a, (2, 1))),
        (lambda x: x.flip(0, 1), lambda a: torch.flip(a, (0, 1))),
        (lambda x: x.broadcast_to(2, 3, 4), lambda a: torch.broadcast_to(a, (2, 3, 4))),
        (lambda x: x.expand(2, 3, 4), lambda a: a.expand((2, 3, 4))),
        (lambda x: x.view(4, 3), lambda a: a.view((4, 3))),
    ],
    ids=["reshape", "permute", "tile", "flip", "broadcast_to", "expand", "view"],
)
def test_sizes_one_by_one_are_the_sizes_in_a_tuple(capture, program, pattern):
    assert len(Pattern(pattern).matches(capture(program))) == 1


@pytest.mark.parametrize(
    "program",
    [lambda x, y: x.reshape(y.shape), lambda x, y: x.reshape(y.size())],
    ids=["attribute", "method"],
)
def test_all_sizes_of_another_tensor_are_not_one_of_several(capture, program):
    module = capture(program)

    replace_pattern(module, lambda a, s: torch.reshape(a, s), lambda a, s: torch.reshape(a, s) + 1)

    assert torch.equal(module(X, X.reshape(4, 3)), X.reshape(4, 3) + 1)


# -- values that are no tensors


def test_two_lists_are_not_exchanged(capture):
    module = capture(lambda x, y: torch.cat(x.split(1) + y.chunk(2)))

    def pattern(x, y):
        return torch.cat(y.chunk(2) + x.split(1))

    assert Pattern(pattern).matches(module) == []


NO_TENSORS = {
    "stride": (lambda x: x.stride(0) * 0.1, lambda a: torch.mul(a, 0.1)),
    "numel": (lambda x: torch.numel(x) * 0.1, lambda a: torch.mul(a, 0.1)),
    "storage_offset": (lambda x: x.storage_offset() + 1, lambda a: a.add(1)),
    "get_device": (lambda x: x.get_device() + 1, lambda a: a.add(1)),
    "itemsize": (lambda x: x.itemsize * 2, lambda a: a.mul(2)),
    "nbytes": (lambda x: x.nbytes * 2, lambda a: a.mul(2)),
    "data_ptr": (lambda x: x.data_ptr() * 2, lambda a: a.mul(2)),
    "flag": (lambda x: x.is_floating_point() & True, lambda a: torch.bitwise_and(a, True)),
    "power": (lambda x: 2 ** x.stride(0), lambda a: torch.pow(2, a)),
    "invert": (lambda x: ~x.is_floating_point(), lambda a: torch.bitwise_not(a)),
    "lists": (lambda x: x.split(1) + x.chunk(2), lambda a, b: torch.add(a, b)),
    "repeated list": (lambda x: x.chunk(2) * 2, lambda a: torch.mul(a, 2)),
    "dtype": (lambda x: x.dtype == torch.float32, lambda a, d: a.eq(d)),
}


@pytest.mark.parametrize("name", NO_TENSORS)
def test_operators_on_what_is_no_tensor_are_none_of_torch(capture, name):
    program, pattern = NO_TENSORS[name]

    assert Pattern(pattern).matches(capture(program)) == []


def test_a_number_in_place_is_no_tensor_in_place(capture):
    def program(x):
        n = x.stride(0)
        n += 1
        return n

    assert Pattern(lambda a: a.add_(1)).matches(capture(program)) == []


def test_one_operand_that_may_be_a_tensor_will_do(capture):
    module = capture(lambda x, y: x * y.stride(0))

    assert len(Pattern(lambda a, n: torch.mul(n, a)).matches(module)) == 1


# -- hooks


class Activated(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.act = activation

    def forward(self, x):
        return self.act(x)


def hooked():
    module = nn.ReLU()
    module.register_forward_hook(lambda *_: None)
    return module


def patched():
    module = nn.ReLU()
    module.forward = lambda x: x
    return module


def hooked_below():
    return nn.Sequential(hooked())


@pytest.mark.parametrize("make", [hooked, patched])
@pytest.mark.parametrize("element", [Module(nn.ReLU), AnyOf(nn.ReLU), AnyOf(F.relu, nn.ReLU)], ids=repr)
def test_a_module_with_hooks_stands_for_no_element(capture, make, element):
    assert Pattern(lambda x: element(x)).matches(capture(Activated(nn.ReLU())))
    assert Pattern(lambda x: element(x)).matches(capture(Activated(make()))) == []


@pytest.mark.parametrize("make", [hooked, patched])
def test_a_module_with_hooks_is_not_that_of_the_pattern(capture, make):
    assert Pattern(Activated(nn.ReLU())).matches(capture(Activated(nn.ReLU())))
    assert Pattern(Activated(nn.ReLU())).matches(capture(Activated(make()))) == []


def test_hooks_further_down_count_too(capture):
    module = capture(lambda x: x)
    module.act = hooked_below()
    graph = Graph(owning_module=module)
    graph.output(graph.call_module("act", (graph.placeholder("x"),)))
    module.graph = graph

    assert Pattern(lambda x: Module(nn.Sequential)(x)).matches(module) == []
    module.act = nn.Sequential(nn.ReLU())
    assert len(Pattern(lambda x: Module(nn.Sequential)(x)).matches(module)) == 1


# -- plain values that are ignored, and those that are not there


LEFT_OUT = {
    "in place": (lambda x: F.relu(x, inplace=True), lambda a: F.relu(a)),
    "alpha": (lambda x: torch.add(x, x, alpha=2), lambda a: a + a),
    "dtype": (lambda x: torch.sum(x, dtype=torch.float64), lambda a: torch.sum(a)),
    "dtype of a method": (lambda x: x.sum(dtype=torch.float64), lambda a: torch.sum(a)),
    "keepdim": (lambda x: torch.sum(x, 0, keepdim=True), lambda a: torch.sum(a, 0)),
    "slope": (lambda x: F.leaky_relu(x, 0.9), lambda a: F.leaky_relu(a)),
    "one of several": (lambda x: x.sum(dtype=torch.float64), lambda a: AnyOf(torch.sum)(a)),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_the_pattern_leaves_out_is_not_ignored(capture, name):
    program, pattern = LEFT_OUT[name]

    assert Pattern(pattern, ignore_literals=True).matches(capture(program)) == []


def test_a_setting_of_a_module_that_the_pattern_leaves_out_is_not_ignored(capture):
    pattern = Pattern(lambda a: F.leaky_relu(a), ignore_literals=True)

    assert pattern.matches(capture(Activated(nn.LeakyReLU(0.9)))) == []
    assert len(pattern.matches(capture(Activated(nn.LeakyReLU())))) == 1


@pytest.mark.parametrize(
    ("program", "pattern"),
    [
        (lambda x: F.leaky_relu(x, 0.9), lambda a: F.leaky_relu(a, 0.2)),
        (lambda x: torch.sum(x, 1), lambda a: torch.sum(a, 0)),
        (lambda x: x.sum(1, keepdim=True), lambda a: torch.sum(a, 0, keepdim=False)),
        (lambda x: torch.add(x, x, alpha=2), lambda a: torch.add(a, a, alpha=3)),
    ],
    ids=["slope", "dimension", "flag", "alpha"],
)
def test_what_the_pattern_has_is_ignored(capture, program, pattern):
    assert len(Pattern(pattern, ignore_literals=True).matches(capture(program))) == 1


def test_a_factor_of_one_summand_keeps_the_summands_apart(capture):
    module = capture(lambda x, y: torch.add(x, y, alpha=2) - torch.neg(y))
    pattern = Pattern(lambda a, b: torch.add(b, a, alpha=1) - torch.neg(b), ignore_literals=True)

    assert pattern.matches(module) == []


# -- lists and tuples


def test_one_of_several_tells_lists_from_tuples(capture):
    get = AnyOf(operator.getitem)

    assert Pattern(lambda x: get(x, [0, 1])).matches(capture(lambda x: x[0, 1])) == []
    assert len(Pattern(lambda x: get(x, [0, 1])).matches(capture(lambda x: x[[0, 1]]))) == 1


# -- the order of arguments that torch deprecates


def _adds_twice():
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output(graph.call_function(torch.add, (x, 2, y)))
    return graph


@pytest.mark.parametrize(
    "pattern",
    [lambda a, b, c: torch.add(a, b, alpha=c), lambda a, b, c: a.add(b, alpha=c)],
    ids=["function", "method"],
)
def test_the_old_order_of_arguments_is_another_call(capture, pattern):
    module = capture(lambda x, y: x)
    module.graph = _adds_twice()

    assert Pattern(pattern).matches(module) == []


def test_a_rule_does_not_take_what_is_told_apart(capture):
    """All of it holds for sweeps, too."""
    module = capture(lambda x: x.roll(1, 0))

    rewriter = Rewriter().add(lambda a, s: torch.roll(a, s), lambda a, s: torch.roll(a, s))

    assert rewriter.run(module) == []
    assert replace_pattern_with_filters(module, lambda a, s: torch.roll(a, s), lambda a, s: a.roll(s)) == []

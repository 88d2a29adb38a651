"""An attribute of a traced value says what it said when the program read it, whatever is written afterwards."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug

X = torch.arange(6.0).reshape(2, 3)
WEIGHT = torch.ones(3, requires_grad=True)


def same(found, expected):
    if isinstance(expected, torch.Tensor):
        is_tensor = isinstance(found, torch.Tensor) and found.requires_grad == expected.requires_grad
        return is_tensor and torch.equal(found, expected)
    if isinstance(expected, (tuple, list)) and not isinstance(expected, torch.Size):
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and found == expected


def answers_as_eager(root, x=X):
    def given():
        return x.detach().clone().requires_grad_(x.requires_grad)

    captured = fxplug.symbolic_trace(copy.deepcopy(root))
    return same(captured(given()), copy.deepcopy(root)(given()))


READS = {
    "shape": (lambda x: x.shape, lambda x: x.unsqueeze_(0)),
    "ndim": (lambda x: x.ndim, lambda x: x.unsqueeze_(0)),
    "T": (lambda x: x.T, lambda x: x.t_()),
    "mT": (lambda x: x.mT, lambda x: x.transpose_(0, 1)),
    "data": (lambda x: x.data, lambda x: x.set_(torch.ones(3))),
    "nbytes": (lambda x: x.nbytes, lambda x: x.resize_(2, 1)),
    "requires_grad": (lambda x: x.requires_grad, lambda x: x.requires_grad_()),
    "is_leaf": (lambda x: x.is_leaf, lambda x: x.add_(WEIGHT)),
    "_version": (lambda x: x._version, lambda x: x.add_(1)),
    "version, item": (lambda x: x._version, lambda x: x.__setitem__(0, 1.0)),
    "version, out": (lambda x: x._version, lambda x: torch.add(x, 1, out=x)),
    "version, functional": (lambda x: x._version, lambda x: nn.functional.relu(x, inplace=True)),
    "version, list": (lambda x: x._version, lambda x: torch._foreach_add_([x], 1)),
    "attribute of one": (lambda x: x.T.shape, lambda x: x.t_()),
    "in a list": (lambda x: [x.shape, x.ndim], lambda x: x.unsqueeze_(0)),
}


@pytest.mark.parametrize("case", READS)
def test_attribute_is_read_before_what_is_written_behind_it(case):
    read, write = READS[case]

    def program(x):
        y = x * 1
        found = read(y)
        write(y)
        return found, y * 1

    assert answers_as_eager(program)


@fxplug.wrap
def turned(x):
    x.t_()


def test_call_of_unknown_effect_may_write():
    def program(x):
        size = x.shape
        turned(x)
        return x.reshape(size)

    assert answers_as_eager(program)


def test_layer_that_writes_in_place_is_heard_of():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            y = x - 2
            version = y._version
            self.act(y)
            return version, y

    assert answers_as_eager(Net())


def test_generator_reads_when_it_is_run():
    def sizes(x):
        yield x.shape
        x.unsqueeze_(0)
        yield x.shape

    assert answers_as_eager(lambda x: list(sizes(x * 1)))


def test_attribute_of_an_unknown_object_is_read_in_time():
    class Counter:
        count = 0

    def bump(counter):
        counter.count += 1

    def program(counter):
        before = counter.count
        bump_it(counter)
        return before, counter.count

    bump_it = fxplug.wrap(bump)
    graph = fxplug.symbolic_trace(program).graph
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [getattr, bump, getattr]


def test_transposed_value_belongs_to_the_region_in_which_it_was_read():
    def program(x):
        turned = x.T
        with torch.no_grad():
            scale = turned.sum()
            fixed = x.T
        return turned * scale, fixed * 2

    assert answers_as_eager(program, X.clone().requires_grad_())


def test_method_that_is_kept_is_called_late():
    def program(x):
        y = x * 1
        relu, dim = y.relu, y.dim
        y.sub_(3).unsqueeze_(0)
        return relu(), dim()

    assert answers_as_eager(program)
    targets = [node.target for node in fxplug.symbolic_trace(program).graph.nodes]
    assert getattr not in targets


def test_method_of_an_unknown_object_leaves_no_read_of_it():
    def program(state, x):
        return state.update(x.add_(1))

    nodes = list(fxplug.symbolic_trace(program).graph.nodes)
    assert [node.target for node in nodes] == ["state", "x", "add_", "update", "output"]


def test_call_of_a_method_of_an_unknown_object_is_no_read_of_it():
    def program(state, x):
        size, update = x.shape, state.update
        return state.first(), update(x), size

    nodes = list(fxplug.symbolic_trace(program).graph.nodes)
    assert [node.target for node in nodes] == ["state", "x", getattr, "first", "update", "output"]


def test_attribute_that_is_not_used_leaves_no_node():
    def program(x):
        size = x.shape
        y = x + 1
        del size
        return y.add_(1)

    nodes = list(fxplug.symbolic_trace(program).graph.nodes)
    assert [node.op for node in nodes] == ["placeholder", "call_function", "call_method", "output"]


def test_attribute_stays_where_it_is_used_if_nothing_is_written():
    def program(x):
        size = x.shape
        y = torch.relu(x)
        return y.reshape(size)

    targets = [node.target for node in fxplug.symbolic_trace(program).graph.nodes]
    assert targets == ["x", torch.relu, getattr, "reshape", "output"]


def test_nothing_hears_of_the_nodes_when_the_trace_has_ended():
    graph = fxplug.symbolic_trace(lambda x: (x.shape[0], x.ndim, x + 1)).graph
    assert graph.observers == []


def test_transformer_reads_in_time_and_leaves_nothing_behind():
    class Keeps(fxplug.Transformer):
        def call_method(self, target, args, kwargs):
            size = args[0].shape
            result = super().call_method(target, args, kwargs)
            self.unused = result.ndim
            return result.reshape(size)

    def program(x):
        return (x * 1).unsqueeze_(0)

    new = Keeps(fxplug.symbolic_trace(program)).transform()
    assert torch.equal(new(X), X)
    assert new.graph.observers == []

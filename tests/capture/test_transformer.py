"""Writing a new graph by running an old one with proxies."""

from __future__ import annotations

import inspect
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.capture import Transformer
from fxplug.ir import RegionEntry

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, factor=2.0):
        return {"result": torch.sigmoid(self.linear(x)).mul(factor) * self.scale + torch.ones(3)}


def test_untouched_program_is_copied_exactly(capture):
    module = capture(Net().eval())
    copied = Transformer(module).transform()

    assert str(copied.graph) == str(module.graph)
    assert [node.stack_trace for node in copied.graph.nodes] == [
        node.stack_trace for node in module.graph.nodes
    ]
    assert [node.type for node in copied.graph.nodes] == [node.type for node in module.graph.nodes]
    assert torch.equal(copied(X)["result"], module(X)["result"])
    assert copied.linear is module.linear
    assert copied.training is False


def test_original_is_not_changed(capture):
    class Doubling(Transformer):
        def call_module(self, target, args, kwargs):
            return super().call_module(target, args, kwargs) * 2

    module = capture(Net())
    text, version = str(module.graph), module.graph.version
    Doubling(module).transform()
    assert (str(module.graph), module.graph.version) == (text, version)


@pytest.mark.parametrize(
    ("method", "change", "expected"),
    [
        (
            "call_module",
            lambda value: value * 2,
            lambda net: torch.sigmoid(net.linear(X) * 2) * 2 * net.scale + 1,
        ),
        (
            "call_method",
            lambda value: value - 1,
            lambda net: (torch.sigmoid(net.linear(X)) * 2 - 1) * net.scale + 1,
        ),
        ("placeholder", lambda value: value, lambda net: net(X)["result"]),
    ],
)
def test_method_of_each_opcode_may_write_something_else(capture, method, change, expected):
    def override(self, target, args, kwargs):
        return change(getattr(Transformer, method)(self, target, args, kwargs))

    module = capture(Net())
    changed = type("Changed", (Transformer,), {method: override})(module).transform()
    torch.testing.assert_close(changed(X)["result"], expected(module))
    changed.graph.lint()


def test_target_may_be_replaced(capture):
    class Swap(Transformer):
        def call_function(self, target, args, kwargs):
            return super().call_function(torch.tanh if target is torch.sigmoid else target, args, kwargs)

    module = Swap(capture(Net())).transform()
    assert torch.tanh in [node.target for node in module.graph.nodes]
    assert torch.sigmoid not in [node.target for node in module.graph.nodes]


def test_regions_are_kept_and_not_entered(capture):
    entered = []

    class Context:
        def __enter__(self):
            entered.append(1)

        def __exit__(self, *_):
            pass

    module = capture(lambda x: F.relu(x, inplace=False))
    (node,) = module.graph.find_nodes(op="call_function")
    node.region = (RegionEntry(Context),)
    copied = Transformer(module).transform()
    assert copied.graph.find_nodes(op="call_function")[0].region == node.region
    assert entered == []


def test_structured_outputs_and_constants_survive(capture):
    module = capture(lambda x: [x + torch.ones(3), (x.shape, None, {"a": x})])
    copied = Transformer(module).transform()

    assert copied(X)[1][2]["a"] is X
    assert torch.equal(copied(X)[0], X + 1)


def test_value_may_be_a_constant(capture):
    class Fixed(Transformer):
        def call_function(self, target, args, kwargs):
            return 7 if target is getattr else super().call_function(target, args, kwargs)

    module = capture(lambda x: x * x.ndim)
    fixed = Fixed(module).transform()
    assert [node.target for node in fixed.graph.find_nodes(op="call_function")] == [operator.mul]
    assert torch.equal(fixed(X), X * 7)


def test_signature_is_kept(capture):
    module = capture(lambda x, *, scale: x * scale)

    assert str(inspect.signature(Transformer(module).transform().forward)) == "(x, *, scale)"


def test_layers_stay_in_the_modes_that_they_are_in():
    root = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    root[1].eval()
    module = Transformer(fxplug.symbolic_trace(root)).transform()
    assert module.training
    assert not root[1].training

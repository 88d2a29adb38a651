"""Modules that stay calls by configuration, and whose classes have a ``__call__`` of their own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture.examples import ExampleTracer
from fxplug.capture.policy import TracePolicy
from fxplug.capture.tracer import Tracer
from fxplug.errors import TraceError

X = torch.randn(3, 4)


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def __call__(self, x):
        return super().__call__(x) * 2

    def forward(self, x):
        return self.layer(x)


class Halving(Doubling):
    def __call__(self, x):
        return super().__call__(x / 2)


class Counting(Doubling):
    calls = 0

    def __call__(self, x):
        type(self).calls += 1
        return nn.Module.__call__(self, x)


class Net(nn.Module):
    def __init__(self, part) -> None:
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x) + 1


def policy():
    return TracePolicy(is_leaf_module=lambda module, path, context: True if path == "part" else None)


class OwnTracer(Tracer):
    def is_leaf_module(self, m, module_qualified_name):
        return module_qualified_name == "part"


@pytest.mark.parametrize("kind", [Doubling, Halving])
@pytest.mark.parametrize(
    "tracer",
    [
        OwnTracer,
        lambda: Tracer(policy=policy()),
        lambda: ExampleTracer((X,), {}, mode="shape", policy=policy()),
        lambda: ExampleTracer((X,), {}, mode="value", policy=policy()),
    ],
    ids=["subclass", "policy", "shape", "value"],
)
def test_what_is_done_around_the_call_is_not_done_twice(kind, tracer):
    with pytest.raises(TraceError, match="'part' as one node: its class has a __call__") as caught:
        tracer().trace(Net(kind()))
    assert caught.value.code == "FXP-T010"
    assert "super().__call__" in str(caught.value)


def test_one_that_computes_nothing_is_run_by_the_captured_program():
    net = Net(Counting())
    graph = OwnTracer().trace(net)
    captured = fxplug.GraphModule(net, graph)
    before = Counting.calls
    torch.testing.assert_close(captured(X), net(X))
    assert Counting.calls == before + 2
    assert "part" in [node.target for node in graph.nodes]


@pytest.mark.parametrize("kind", [Doubling, Halving])
def test_a_module_that_is_entered_may_have_one(kind, capture_as):
    net = Net(kind())
    torch.testing.assert_close(capture_as(net)(X), net(X))

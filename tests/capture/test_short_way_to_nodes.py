"""Calls whose arguments are traced values and plain ones are recorded on a shorter way than others."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

from fxplug import Graph, Tracer
from fxplug.capture.policy import TracePolicy
from fxplug.capture.proxy import Proxy
from fxplug.errors import FxplugError


def long_way():
    """Return a tracer that asks somebody about the proxy of every node, and so leaves none to the short way."""
    return Tracer(policy=TracePolicy(proxy_mixins=lambda node, kind, context: ()))


class Name(str):
    """Text of a class of its own."""

    __slots__ = ()


PROGRAMS = [
    lambda x, y: x + y,
    lambda x, y: x + x,
    lambda x, y: 2 - x * 0.5,
    lambda x, y: x.view(2, -1).transpose(0, 1).softmax(dim=-1),
    lambda x, y: F.gelu(x, approximate="tanh"),
    lambda x, y: F.dropout(x, 0.5, training=False),
    lambda x, y: torch.cat([x, y], dim=1),
    lambda x, y: torch.cat((x, y)),
    lambda x, y: torch.addcmul(x, y, y, value=2),
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: x[0] + x[:, 1] + y[..., None],
    lambda x, y: x.to(torch.float64),
    lambda x, y: x.shape[0] + x.size(1),
    lambda x, y: torch.add(x, other=y),
    lambda x, y: torch.add(x, y, alpha=x.shape[0]),
    lambda x, y: x.new_zeros(3) + y.new(torch.Size([2])),
    lambda x, y: x.new_ones(torch.Size((2, 2))),
    lambda x, y: x + torch.ones(3),
    lambda x, y: x.T + x.mT,
    lambda x, y: x.sum(**{Name("dim"): 0}),
    lambda x, y: getattr(x, Name("view"))(-1),
    lambda x, y: operator.itemgetter(0)(x),
    lambda x, y: x.add_(y).mul_(2),
    lambda x, y: torch.clamp(x, min=None, max=1.0),
    lambda x, y: {"x": x, "y": [y, x.relu()]},
    lambda x, y: torch.einsum("ij,jk", x, y),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_both_ways_record_the_same(program):
    short, long = Tracer().trace(program), long_way().trace(program)

    def told(graph):
        return [
            (
                *(node.name, node.op, node.target, str(node.args), str(node.kwargs), type(node.kwargs)),
                *(list(map(str, node.all_input_nodes)), list(map(str, node.users)), node.region),
                [(str(origin.source()), origin.module) for origin in node.origins],
            )
            for node in graph.nodes
        ]

    short.lint()
    assert told(short) == told(long)


def test_a_policy_is_told_of_each_node_on_both_ways():
    told = []
    policy = TracePolicy(node_created=lambda node, context: told.append(node.name))
    graph = Tracer(policy=policy).trace(lambda x: torch.cat([x.relu(), x + 1]).view(-1))
    assert told == [node.name for node in graph.nodes]


def test_a_value_of_another_trace_is_refused_on_the_short_way():
    kept = []
    Tracer().trace(lambda x: kept.append(x) or x)
    other = Graph().placeholder("x")

    with pytest.raises(FxplugError, match="another graph"):
        Tracer().trace(lambda x: x + kept[0])
    with pytest.raises(FxplugError, match="another graph"):
        Tracer().trace(lambda x: torch.add(x, Proxy(other)))


@pytest.mark.parametrize(
    ("kind", "target"), [("call_function", "relu"), ("call_method", torch.relu), ("call", "relu")]
)
def test_a_target_that_does_not_fit_is_refused(kind, target):
    tracer = Tracer()

    def program(x):
        return tracer.create_proxy(kind, target, (x,), {})

    with pytest.raises(FxplugError, match="Cannot create a"):
        tracer.trace(program)


def test_who_overrides_how_a_graph_makes_nodes_hears_of_all_of_them(monkeypatch):
    heard, create = [], Graph.create_node

    def create_node(graph, op, target, *args, **kwargs):
        heard.append(op)
        return create(graph, op, target, *args, **kwargs)

    monkeypatch.setattr(Graph, "create_node", create_node)
    graph = Tracer().trace(lambda x: x.relu() + 1)

    assert heard == [node.op for node in graph.nodes]

"""Graphs of classes of somebody's own: what they override is called as torch.fx would call it."""

from __future__ import annotations

import torch

import fxplug
from fxplug.passes import Snapshot


class Counting(fxplug.Graph):
    """Overrides with the signatures of torch.fx."""

    made: tuple[str, ...] = ()

    def create_node(self, op, target, args=None, kwargs=None, name=None, type_expr=None):
        self.made = (*self.made, op)
        return super().create_node(op, target, args, kwargs, name, type_expr)

    def __deepcopy__(self, memo):
        memo["seen"] = True
        return super().__deepcopy__(memo)


def module():
    graph = Counting()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.add, (graph.call_function(torch.tanh, (x,)), 1)))
    return fxplug.GraphModule(torch.nn.Module(), graph)


def tanh_and_one(x):
    return torch.add(torch.tanh(x), 1)


def sigmoid(x):
    return torch.sigmoid(x)


def test_a_replacement_is_made_by_the_methods_of_the_graph():
    captured = module()
    captured.graph.made = ()
    assert len(fxplug.replace_pattern(captured, tanh_and_one, sigmoid)) == 1
    assert captured.graph.made == ("call_function",)
    captured.graph.lint()
    x = torch.ones(3)
    torch.testing.assert_close(captured(x), torch.sigmoid(x))
    (node,) = captured.graph.find_nodes(op="call_function")
    assert all(origin.history for origin in node.origins)


def test_a_snapshot_copies_a_graph_by_its_own_method():
    captured = module()
    snapshot = Snapshot(captured)
    captured.graph.eliminate_dead_code()
    assert type(captured.graph) is Counting
    assert snapshot.restore() == []


def test_a_tracer_that_is_made_again_is_a_new_one():
    tracer = fxplug.Tracer()
    first = tracer.trace(tanh_and_one)
    tracer.__init__()
    assert tracer.graph is not first
    assert not tracer.graph.nodes
    assert [*tracer.root.children()] == []

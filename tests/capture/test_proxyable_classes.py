"""Classes whose construction from traced values is a node."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.fx
from torch import nn

import fxplug
import fxplug.fx
from fxplug.capture import PH, Proxy, ProxyableClassMeta, Tracer
from fxplug.execute import GraphModule, Interpreter

LIBRARIES = [fxplug, torch.fx]


def pair_class(fx):
    class Pair(metaclass=fx.ProxyableClassMeta):
        def __init__(self, left, right=0):
            self.left, self.right = left, right

        def add(self, other):
            return Pair(self.left + other.left, right=self.right + other.right)

    return Pair


def rows(graph):
    return [(node.op, node.name, str(node.args), str(dict(node.kwargs))) for node in graph.nodes]


def program_of(pair):
    def program(x, y):
        made = pair(y, [y, {"k": y}])
        return x.add(made).add(pair(1, right=y))

    return program


def test_graph_is_that_of_torch_fx():
    graphs = [fx.Tracer().trace(program_of(pair_class(fx))) for fx in LIBRARIES]

    assert rows(graphs[0]) == rows(graphs[1])


def test_construction_is_a_call_of_the_class():
    pair = pair_class(fxplug)
    graph = Tracer().trace(program_of(pair))

    assert len(graph.find_nodes(op="call_function", target=pair)) == 2


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_captured_program_makes_real_instances(fx):
    pair = pair_class(fx)

    def program(x, y):
        return pair(x, y).add(pair(1, right=y))

    x, y = torch.randn(3), torch.randn(3)
    made, expected = fx.symbolic_trace(program)(x, y), program(x, y)
    assert type(made) is pair
    torch.testing.assert_close((made.left, made.right), (expected.left, expected.right))


def test_construction_without_traced_values_makes_an_instance():
    pair = pair_class(fxplug)

    assert pair(1, right=2).right == 2
    made = []
    Tracer().trace(lambda x: made.append(pair(1)) or x)
    assert type(made[0]) is pair
    assert made[0].left == 1


def test_class_may_make_its_instances_itself():
    """torch.fx calls __new__ without arguments."""

    class Cached(metaclass=ProxyableClassMeta):
        def __new__(cls, value):
            made = super().__new__(cls)
            made.kept = value
            return made

        def __init__(self, value):
            self.value = value

    assert Cached(3).kept == 3


@pytest.mark.parametrize("fx", LIBRARIES, ids=["fxplug", "torch.fx"])
def test_instance_from_outside_is_a_constant(fx):
    pair = pair_class(fx)
    outside = pair(torch.ones(2), 3)
    root = nn.Module()
    tracer = fx.Tracer()
    graph = tracer.trace(lambda x: pair(x, x).add(outside))
    module = fx.GraphModule(tracer.root, graph)

    assert [node.target for node in graph.nodes if node.op == "get_attr"] == ["_Pair_constant_0"]
    assert module(torch.ones(2)).left.tolist() == [2, 2]
    assert not vars(root).get("_Pair_constant_0")


def test_instance_that_the_root_holds_is_read_from_it():
    pair = pair_class(fxplug)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = pair(1, 2)

        def forward(self, x):
            return pair(x, x).add(self.held)

    root = Root()
    graph = Tracer().trace(root)
    assert [node.target for node in graph.find_nodes(op="get_attr")] == ["held"]
    assert GraphModule(root, graph)(5).right == 7


def test_recorded_construction_is_run_by_every_means():
    pair = pair_class(fxplug)
    module = fxplug.symbolic_trace(lambda x: pair(x, x * 2))

    for run in (
        module,
        Interpreter(module).run,
        copy.deepcopy(module),
        fxplug.Transformer(module).transform(),
    ):
        assert run(3).right == 6


def test_proxies_made_by_hand_are_recorded_too():
    pair = pair_class(fxplug)
    graph = fxplug.Graph()
    made = pair(Proxy(graph.placeholder("x")))

    assert isinstance(made, Proxy)
    assert made.node.target is pair


def test_instances_may_be_given_as_placeholders():
    pair = pair_class(fxplug)
    made = pair(PH)

    assert type(made) is pair


def test_other_threads_make_instances_while_one_traces():
    pair = pair_class(fxplug)
    inside, done = threading.Event(), threading.Event()
    made = []

    def other():
        inside.wait(10)
        made.append(pair(1, 2))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()

    def program(x):
        inside.set()
        done.wait(10)
        return pair(x)

    graph = Tracer().trace(program)
    thread.join()
    assert type(made[0]) is pair
    assert len(graph.find_nodes(op="call_function", target=pair)) == 1

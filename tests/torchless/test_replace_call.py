"""Exchanging what a node calls, in place."""

from __future__ import annotations

import math
import operator

import pytest

from fxplug.errors import ForeignNodeError, GraphError, InvalidArgumentError
from fxplug.ir import Graph, RegionEntry
from fxplug.ir.origins import Origin, SourceLine


@pytest.fixture
def graph():
    return Graph()


@pytest.fixture
def chain(graph):
    """x, neg(x), abs(neg), output."""
    x = graph.placeholder("x")
    first = graph.call_function(operator.neg, (x,))
    second = graph.call_function(abs, (first,))
    return x, first, second, graph.output((first, second))


def order(graph):
    return [node.name for node in graph.nodes]


def test_the_node_calls_something_else_where_it_stood(graph, chain):
    x, first, second, output = chain

    assert graph.replace_call(first, math.sqrt) is first

    assert (first.op, first.target, first.args, first.kwargs) == ("call_function", math.sqrt, (x,), {})
    assert list(first.users) == [second, output]
    assert order(graph) == ["x", "sqrt", "abs_1", "output"]
    graph.lint()


def test_new_arguments_are_used_and_the_old_ones_no_more(graph, chain):
    x, first, second, _ = chain

    graph.replace_call(second, operator.add, (x, 2), {"key": x})

    assert (second.args, second.kwargs, second.all_input_nodes) == ((x, 2), {"key": x}, [x])
    assert second not in first.users
    assert second in x.users
    graph.lint()


def test_keywords_alone_may_be_exchanged(graph, chain):
    x, first, *_ = chain

    graph.replace_call(first, math.pow, kwargs={"y": x})

    assert (first.args, first.kwargs) == ((x,), {"y": x})


@pytest.mark.parametrize("op", ["call_method", "call_module"])
def test_the_opcode_may_change(graph, chain, op):
    graph.replace_call(chain[1], "relu", op=op)

    assert (chain[1].op, chain[1].target, chain[1].name) == (op, "relu", "relu")


def test_searches_find_the_node_under_its_new_target(graph, chain):
    first = chain[1]
    assert graph.find_nodes(op="call_function", target=operator.neg) == [first]

    graph.replace_call(first, math.sqrt)

    assert graph.find_nodes(op="call_function", target=operator.neg) == []
    assert graph.find_nodes(op="call_function", target=math.sqrt) == [first]


def test_its_own_name_is_free_again(graph, chain):
    graph.replace_call(chain[1], math.sqrt)

    graph.replace_call(chain[1], operator.neg)

    assert order(graph) == ["x", "neg", "abs_1", "output"]


def test_facts_about_the_value_go_and_everything_else_stays(graph, chain):
    first = chain[1]
    first.type = int
    first.meta.update(val=1, tensor_meta=2, example_value=3, type=4, mine=5)
    first.region = (RegionEntry(math.floor),)
    first.origins = (Origin(SourceLine("model.py", 3, "forward")),)
    region, origins = first.region, first.origins

    graph.replace_call(first, math.sqrt)

    assert (first.meta, first.type) == ({"mine": 5}, None)
    assert (first.region, first.origins) == (region, origins)


def test_version_and_observers_hear_of_it(graph, chain):
    heard = []
    graph.observers.append(lambda event, node: heard.append((event, node.name, node.target)))
    version = graph.version

    graph.replace_call(chain[1], math.sqrt)

    assert graph.version > version
    assert heard == [("changed", "sqrt", math.sqrt)]


def state(graph):
    return [
        (node.name, node.op, node.target, node.args, node.kwargs, list(node.users), dict(node.meta))
        for node in graph.nodes
    ]


def test_what_cannot_be_is_refused_and_nothing_changes(graph, chain):
    x, first, _, output = chain
    other = Graph()
    foreign = other.placeholder("foreign")
    before = state(graph)

    for call in (
        lambda: graph.replace_call(x, math.sqrt),
        lambda: graph.replace_call(output, math.sqrt),
        lambda: graph.replace_call(first, "sqrt"),
        lambda: graph.replace_call(first, math.sqrt, op="call_method"),
        lambda: graph.replace_call(first, "x", op="placeholder"),
        lambda: graph.replace_call(first, "x", op="call"),
    ):
        with pytest.raises(GraphError):
            call()
    with pytest.raises(ForeignNodeError, match="does not stand in this graph"):
        graph.replace_call(foreign, math.sqrt)
    with pytest.raises(ForeignNodeError, match="belongs to another graph"):
        graph.replace_call(first, math.sqrt, (foreign,))
    with pytest.raises(InvalidArgumentError):
        graph.replace_call(first, math.sqrt, 3)

    assert state(graph) == before


def test_an_erased_node_is_refused(graph, chain):
    node = graph.create_node("call_function", abs, (chain[0],))
    graph.erase_node(node)

    with pytest.raises(ForeignNodeError, match="does not stand in this graph"):
        graph.replace_call(node, math.sqrt)

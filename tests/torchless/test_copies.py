"""Copies of nodes and graphs: node_copy, graph_copy, deep copy."""

from __future__ import annotations

import contextlib
import copy
import operator

import pytest

from fxplug.errors import FxplugError
from fxplug.ir import Graph, Origin, RegionEntry, SourceLine, map_aggregate, map_arg

ORIGIN = Origin(SourceLine("model.py", 3, "forward"))


@pytest.fixture
def graph():
    """An add of x and 1, with annotation, region, origin and notes, and an output."""
    graph = Graph()
    x = graph.placeholder("x")
    call = graph.call_function(operator.add, (x, 1), {"k": [x]}, int, "total")
    call.region = (RegionEntry(open, (1,)),)
    call.origins = (ORIGIN,)
    call.meta["note"] = {"list": [1, {"deep": [2]}], "set": {3}}
    graph.output({"y": [call]})
    return graph


def last(graph, op="call_function"):
    return graph.find_nodes(op=op)[-1]


def test_a_copied_node_keeps_everything_but_its_arguments(graph):
    call = last(graph)
    other = Graph()
    x = other.placeholder("x")

    duplicate = other.node_copy(call, lambda node: x)

    assert duplicate is not call
    assert (duplicate.op, duplicate.target, duplicate.name) == ("call_function", operator.add, "total")
    assert (duplicate.args, duplicate.kwargs) == ((x, 1), {"k": [x]})
    assert (duplicate.type, duplicate.region, duplicate.origins) == (int, call.region, (ORIGIN,))
    assert duplicate.meta == call.meta
    other.lint()


def test_notes_of_a_copied_node_are_its_own(graph):
    call = last(graph)

    duplicate = graph.node_copy(call)
    duplicate.meta["note"]["list"][1]["deep"].append(9)
    duplicate.meta["note"]["set"].add(9)
    duplicate.meta["more"] = 1

    assert call.meta == {"note": {"list": [1, {"deep": [2]}], "set": {3}}}
    assert duplicate.name == "total_1"


def test_a_node_of_another_graph_needs_a_map_for_its_arguments(graph):
    with pytest.raises(FxplugError, match="belongs to another graph"):
        Graph().node_copy(last(graph))


def test_a_graph_is_copied_into_another_at_the_insertion_point(graph):
    outer = Graph()
    start = outer.placeholder("start")
    end = outer.output(start)
    mapping = {}

    with outer.inserting_before(end):
        result = outer.graph_copy(graph, mapping)

    assert [node.name for node in outer.nodes] == ["start", "x", "total", "output"]
    assert result == {"y": [last(outer)]}
    assert set(mapping) == {node for node in graph.nodes if node.op != "output"}
    outer.lint()


def test_a_graph_is_inlined_when_its_inputs_are_mapped(graph):
    outer = Graph()
    start = outer.placeholder("start")
    x = graph.find_nodes(op="placeholder")[0]

    result, output = outer.graph_copy(graph, {x: start}, return_output_node=True)

    assert [node.name for node in outer.nodes] == ["start", "total"]
    assert last(outer).args == (start, 1)
    assert result == {"y": [last(outer)]}
    assert output is graph.output_node()


def test_a_value_may_stand_for_a_copied_input(graph):
    outer = Graph()

    outer.graph_copy(graph, {graph.find_nodes(op="placeholder")[0]: 5})

    assert last(outer).args == (5, 1)
    assert last(outer).kwargs == {"k": [5]}


def test_a_copied_graph_keeps_its_keyword_only_parameters(run):
    graph = Graph()
    x = graph.placeholder("x", default_value=1)
    key = graph.placeholder("key")
    graph.keyword_only = frozenset({"key"})
    graph.output((x, key))
    other = Graph()

    other.output(other.graph_copy(graph, {}))

    assert run(other, key=2) == run(graph, key=2) == (1, 2)


def test_a_deep_copy_keeps_its_keyword_only_parameters(run):
    graph = Graph()
    graph.output((graph.placeholder("x"), graph.placeholder("key")))
    graph.keyword_only = frozenset({"key"})
    other = copy.deepcopy(graph)

    assert run(other, 1, key=2) == (1, 2)
    with pytest.raises(TypeError, match="positional argument"):
        run(other, 1, 2)


def test_a_graph_without_output_gives_nothing(graph):
    graph.erase_node(graph.output_node())
    outer = Graph()

    assert outer.graph_copy(graph, {}) is None
    assert len(outer.nodes) == 2


def test_the_copied_graph_is_left_as_it_was(graph):
    before, version = str(graph), graph.version

    Graph().graph_copy(graph, {})
    copy.deepcopy(graph)

    assert (str(graph), graph.version) == (before, version)


def test_a_graph_can_be_copied_into_itself(graph):
    class Bounded(dict):
        def __setitem__(self, key, value):
            assert len(self) < 50, "copies are copied"
            super().__setitem__(key, value)

    with graph.inserting_before(graph.output_node()):
        graph.graph_copy(graph, Bounded())

    assert len(graph.nodes) == 5


def test_a_deep_copy_has_the_same_nodes_and_shares_none(graph):
    other = copy.deepcopy(graph)

    assert str(other) == str(graph)
    assert not set(other.nodes) & set(graph.nodes)
    for ours, theirs in zip(graph.nodes, other.nodes, strict=True):
        assert (ours.name, ours.op, ours.target, ours.type) == (
            theirs.name,
            theirs.op,
            theirs.target,
            theirs.type,
        )
        assert (ours.region, ours.origins, ours.meta) == (theirs.region, theirs.origins, theirs.meta)
        assert theirs.graph is other
    other.lint()


def test_edits_of_a_deep_copy_stay_there(graph):
    before = str(graph)
    other = copy.deepcopy(graph)

    other.erase_node(other.output_node())
    last(other).args = (1, 2)
    last(other).name = "z"
    last(other).meta["note"]["list"][1]["deep"].append(9)
    last(other).meta["note"]["set"].clear()
    other.lifted["w"] = 1
    other.observers.append(print)

    assert str(graph) == before
    assert last(graph).meta == {"note": {"list": [1, {"deep": [2]}], "set": {3}}}
    assert (graph.lifted, graph.observers) == ({}, [])


def test_values_in_notes_are_shared_and_not_copied(graph):
    value = object()
    last(graph).meta["value"] = [value]

    assert last(copy.deepcopy(graph)).meta["value"][0] is value


def test_a_deep_copy_continues_the_names(graph):
    gone = graph.call_function(operator.sub, (1, 2))
    graph.erase_node(gone)
    other = copy.deepcopy(graph)

    for one in (graph, other):
        assert one.call_function(operator.sub, (1, 2)).name == "sub_1"
        assert one.call_function(operator.add, (1, 2), name="total").name == "total_1"


def test_a_deep_copy_keeps_the_code_generator_the_tracer_and_what_was_lifted():
    generator, value = object(), object()
    graph = Graph(tracer_cls=int, tracer_extras={"k": 1})
    graph.set_codegen(generator)
    graph.lifted["w"] = value

    other = copy.deepcopy(graph)

    assert other._codegen is generator
    assert (other._tracer_cls, other._tracer_extras) == (int, {"k": 1})
    assert other.lifted == {"w": value}


def test_a_graph_that_occurs_twice_is_copied_once(graph):
    first, second = copy.deepcopy([graph, graph])

    assert first is second


def test_a_large_graph_is_copied_without_recursion():
    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(3000):
        node = graph.call_function(operator.neg, (node,))

    assert len(copy.deepcopy(graph).nodes) == 3001


def test_lists_in_tuples_of_notes_are_copied_too(graph):
    last(graph).meta["note"] = ([1],)

    last(copy.deepcopy(graph)).meta["note"][0].append(2)

    assert last(graph).meta["note"] == ([1],)


def test_nodes_in_notes_of_a_deep_copy_are_its_own(graph):
    last(graph).meta["partner"] = [graph.output_node()]

    other = copy.deepcopy(graph)

    assert last(other).meta["partner"] == [other.output_node()]


def test_a_node_that_is_copied_beside_its_graph_stands_in_the_copy(graph):
    other, call = copy.deepcopy((graph, last(graph)))

    assert call is last(other)


@pytest.mark.parametrize("deep", [10, 3000])
def test_a_node_is_deep_copied_with_its_graph(deep):
    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(deep):
        node = graph.call_function(operator.neg, (node,))

    duplicate = copy.deepcopy(node)

    assert duplicate is not node
    assert duplicate.graph is not graph
    assert last(duplicate.graph) is duplicate
    assert len(duplicate.graph.nodes) == deep + 1


@pytest.mark.parametrize("kind", ["erased", "end"])
def test_a_node_outside_the_graph_is_deep_copied_or_refused(graph, kind):
    node = graph.call_function(operator.neg, (1,))
    if kind == "erased":
        graph.erase_node(node)
    else:
        node = node.next

    with contextlib.suppress(FxplugError):
        assert copy.deepcopy([node])[0] is not node


def test_a_graph_that_is_out_of_order_is_deep_copied_as_it_is(graph):
    graph.find_nodes(op="placeholder")[0].prepend(last(graph))

    assert str(copy.deepcopy(graph)) == str(graph)


def test_a_graph_that_is_out_of_order_is_not_copied_into_another(graph):
    graph.find_nodes(op="placeholder")[0].prepend(last(graph))

    with pytest.raises(FxplugError, match="total"):
        Graph().graph_copy(graph, {})


SHAPES = {
    "nothing": ((), {}),
    "one node": ("x", {}),
    "one node twice": ("xx", {}),
    "two nodes": ("xy", {}),
    "a constant": ((1,), {}),
    "a node and a constant": (("x", 1), {}),
    "nested": (([1, ("x", {"k": "y"})],), {}),
    "a slice": ((slice("x", None, 2),), {}),
    "a node and a keyword": ("x", {"k": 1}),
    "a node in a keyword": ((), {"k": ["x"]}),
    "the same node in both": ("x", {"k": "x"}),
    "constants and nodes in both": (("y", 1), {"k": "x", "j": [2]}),
    "a constant and a keyword": ((1,), {"k": 1}),
}


def fill(graph, shape):
    nodes = {name: graph.placeholder(name) for name in "xy"}
    args, kwargs = map_aggregate(shape, lambda leaf: nodes.get(leaf, leaf))
    return graph.call_function(print, args, kwargs)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_arguments_of_every_shape_are_copied(shape):
    graph = Graph()
    args, kwargs = shape
    call = fill(graph, (tuple(args), kwargs))

    other = copy.deepcopy(graph)

    assert str(other) == str(graph)
    assert last(other).args == map_arg(
        call.args, lambda node: other.find_nodes(op="placeholder", target=node.name)[0]
    )
    assert [node.name for node in last(other).all_input_nodes] == [node.name for node in call.all_input_nodes]
    for ours, theirs in zip(graph.nodes, other.nodes, strict=True):
        assert [user.name for user in ours.users] == [user.name for user in theirs.users]
    last(other).update_kwarg("new", 1)
    other.lint()


def test_constant_keyword_arguments_are_copied():
    graph = Graph()
    graph.call_function(dict, (), {"k": 1, "j": [2]})

    assert last(copy.deepcopy(graph)).kwargs == {"k": 1, "j": [2]}


def test_the_order_of_nodes_can_be_asked_for_in_a_copy(graph):
    for asked_before in (False, True):
        if asked_before:
            assert not last(graph) < graph.find_nodes(op="placeholder")[0]
        x, call, output = copy.deepcopy(graph).nodes
        assert x < call < output
        with x.graph.inserting_before(call):
            assert x < x.graph.placeholder("y") < call

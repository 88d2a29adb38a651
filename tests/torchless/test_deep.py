"""Arguments nested deeper than Python's recursion limit."""

from __future__ import annotations

import copy
import operator
import pickle

import pytest

from fxplug.codegen import compile_code
from fxplug.errors import FxplugError
from fxplug.ir import Graph, NodeRef, format_table, graph_to_data, iterate_leaves, map_arg

DEPTH = 3000
KINDS = {
    "tuple": lambda inner: (inner,),
    "list": lambda inner: [inner],
    "dict": lambda inner: {"k": inner},
    "slice": lambda inner: (slice(inner),),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def outcome_of(action):
    """Return what an action returned, or the name of its error: a report of a RecursionError may take minutes."""
    try:
        return action()
    except FxplugError:
        return "refused"
    except RecursionError:
        return "RecursionError"


def nest(kind, leaf, depth=DEPTH):
    for _ in range(depth):
        leaf = KINDS[kind](leaf)
    return leaf


def build(kind, depth=DEPTH):
    graph = Graph()
    x = graph.placeholder("x")
    call = graph.call_function(operator.pos, (nest(kind, x, depth),), {"key": nest(kind, x, depth)})
    graph.output(call)
    return graph, x, call


@each_kind
def test_nodes_take_deep_arguments(kind):
    graph, x, call = build(kind)

    assert call.all_input_nodes == [x]
    assert list(x.users) == [call]
    graph.lint()


@each_kind
def test_deep_arguments_are_mapped_and_replaced(kind):
    graph, x, call = build(kind)
    y = graph.placeholder("y")

    x.replace_all_uses_with(y)

    assert call.all_input_nodes == [y]
    mapped = map_arg(call.args, lambda node: node.name)
    assert [leaf for leaf in iterate_leaves(mapped) if leaf is not None] == ["y"]


@each_kind
def test_deep_arguments_are_deep_copied(kind):
    graph, _, _ = build(kind)

    x, call, _ = copy.deepcopy(graph).nodes

    assert call.all_input_nodes == [x]
    assert {leaf for leaf in iterate_leaves((call.args, call.kwargs)) if leaf is not None} == {x}


@each_kind
def test_deep_arguments_have_a_data_form(kind):
    graph, _, _ = build(kind)

    data = graph_to_data(graph)

    assert NodeRef(0) in set(iterate_leaves(data["nodes"][1]["args"]))


@each_kind
def test_deep_arguments_can_be_copied_into_another_graph(kind):
    outer = Graph()

    outer.graph_copy(build(kind)[0], {})

    assert outer.find_nodes(op="call_function")[0].all_input_nodes == outer.find_nodes(op="placeholder")


@each_kind
def test_deep_arguments_can_be_printed(kind):
    graph, _, call = build(kind)

    for text in (outcome_of(call.format_node), outcome_of(lambda: str(graph))):
        assert text.count("%x") >= 2


@each_kind
def test_deep_arguments_run_or_are_refused_with_an_error_of_ours(run, kind):
    graph, _, _ = build(kind)

    outcome = outcome_of(lambda: compile_code(graph.python_code()))

    assert outcome != "RecursionError"


@pytest.mark.parametrize("kind", ["list", "dict", "tuple", "slice"])
def test_arguments_that_python_cannot_parse_run_or_are_refused_with_an_error_of_ours(run, kind):
    """Python's parser takes 200 levels of brackets."""
    graph = Graph()
    graph.output(nest(kind, graph.placeholder("x"), 250))

    outcome = outcome_of(lambda: set(iterate_leaves(run(graph, 7))))

    assert outcome == "refused" or 7 in outcome


@pytest.mark.parametrize("kind", ["tuple", "list", "dict"])
def test_arguments_of_ninety_levels_run(run, kind):
    graph = Graph()
    graph.output(nest(kind, graph.placeholder("x"), 90))

    assert run(graph, 7) == nest(kind, 7, 90)


def test_deep_arguments_are_pickled_or_refused_as_python_does():
    graph, _, _ = build("list", 100)

    assert len(pickle.loads(pickle.dumps(graph)).nodes) == 3


def test_a_path_may_have_many_parts(run):
    class Node:
        pass

    root = Node()
    root.a = root
    graph = Graph()
    graph.output(graph.get_attr(".".join(["a"] * DEPTH)))

    assert outcome_of(lambda: run(graph, root=root)) in {root, "refused"}


def test_a_constant_of_a_deep_structure_can_be_freed():
    _graph, _, call = build("tuple", 20_000)

    call.args = (1,)
    call.kwargs = {}

    assert call.all_input_nodes == []


@each_kind
def test_deep_arguments_are_shown_in_the_output_in_defaults_and_in_the_table(kind):
    graph, _, call = build(kind)
    graph.output_node().args = (nest(kind, call),)
    deep = graph.placeholder("y", default_value=nest(kind, 7))

    for text in (graph.output_node().format_node(), deep.format_node(), format_table(graph.nodes)):
        assert len(text) > 2 * DEPTH
    assert "pos" in graph.output_node().format_node()
    assert "7" in deep.format_node()

"""The text of nodes and graphs, and the table."""

from __future__ import annotations

import functools
import operator
import typing

import pytest

from fxplug.ir import TABLE_HEADER, Graph, argument_text, format_table, node_rows, type_text


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


@pytest.fixture
def graph():
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.placeholder("y", default_value=3)
    weight = graph.get_attr("layer.weight")
    call = graph.call_function(operator.add, (x, weight), {"alpha": [1, {"k": y}]})
    method = graph.call_method("relu", (call,))
    module = graph.call_module("layer.0", (method, "text"))
    graph.output((module, {"y": y}))
    return graph


def test_a_graph_is_printed_as_one_line_for_each_node(graph):
    assert str(graph) == (
        "graph():\n"
        "    %x : [num_users=1] = placeholder[target=x]\n"
        "    %y : [num_users=2] = placeholder[target=y](default=3)\n"
        "    %layer_weight : [num_users=1] = get_attr[target=layer.weight]\n"
        "    %add : [num_users=1] = call_function[target=operator.add](args = (%x, %layer_weight), "
        "kwargs = {alpha: [1, {k: %y}]})\n"
        "    %relu : [num_users=1] = call_method[target=relu](args = (%add,), kwargs = {})\n"
        "    %layer_0 : [num_users=1] = call_module[target=layer.0](args = (%relu, text), kwargs = {})\n"
        "    return (layer_0, {'y': y})"
    )
    assert str(Graph()) == "graph():"


def test_an_annotation_stands_behind_the_name():
    graph = Graph()
    x = graph.placeholder("x", int)
    call = graph.call_function(operator.neg, (x,), type_expr=list[int])

    assert x.format_node() == "%x : int [num_users=1] = placeholder[target=x]"
    assert call.format_node().startswith("%neg : list[int] [num_users=0] = call_function[")


def test_placeholders_and_the_annotation_of_the_output_are_collected_when_asked(graph):
    graph.output_node().type = list
    next(iter(graph.nodes)).type = int
    names, returns = [], [""]

    lines = [node.format_node(names, returns) for node in graph.nodes]

    assert names == ["x : int", "y"]
    assert returns == [" -> list"]
    assert lines[:2] == [None, None]
    assert lines[-1] == "return (layer_0, {'y': y})"


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ((), "()"),
        ((1,), "(1,)"),
        ((1, "a"), "(1, a)"),
        ([1, (2,)], "[1, (2,)]"),
        ({"k": [1]}, "{k: [1]}"),
        (slice(1, None, 2), "slice(1, None, 2)"),
        (Point(1, (2,)), "Point(x=1, y=(2,))"),
        (None, "None"),
        (..., "Ellipsis"),
    ],
    ids=repr,
)
def test_the_text_of_arguments(argument, text):
    assert argument_text(argument) == text


def test_nodes_are_named_wherever_they_stand_in_arguments(graph):
    x = next(iter(graph.nodes))

    assert (
        argument_text((x, [x, {"k": slice(x)}], Point(x, 1)))
        == "(%x, [%x, {k: slice(None, %x, None)}], Point(x=%x, y=1))"
    )
    assert repr(x) == "x"


def test_the_text_of_annotations():
    assert type_text(int) == "int"
    assert type_text(functools.partial) == "functools.partial"
    assert type_text(list[int]) == "list[int]"
    assert type_text("Tensor") == "Tensor"
    assert type_text(None) == "None"


def test_the_table_has_aligned_columns(graph):
    table = format_table(graph.nodes)

    lines = table.splitlines()
    assert len(lines) == 2 + 7
    assert lines[0].split() == list(TABLE_HEADER)
    assert set(lines[1]) == {"-", " "}
    starts = [lines[0].index(title) for title in TABLE_HEADER]
    for line, row in zip(lines[2:], node_rows(graph.nodes), strict=True):
        assert [line[start:].startswith(cell) for start, cell in zip(starts, row, strict=True)] == [True] * 5
    assert node_rows(graph.nodes)[3] == (
        "call_function",
        "add",
        "operator.add",
        "(x, layer_weight)",
        "{'alpha': [1, {'k': y}]}",
    )


def test_the_table_is_printed(graph, capsys):
    graph.print_tabular()

    assert capsys.readouterr().out == format_table(graph.nodes) + "\n"


def test_the_table_of_an_empty_graph_is_its_header():
    assert (
        format_table(Graph().nodes)
        == "opcode  name  target  args  kwargs\n------  ----  ------  ----  ------"
    )


def test_a_graph_with_an_empty_output_can_be_printed():
    graph = Graph()
    graph.create_node("output", "output")

    assert "return" in str(graph)


class Size(tuple):
    """A tuple that shows itself in its own way."""

    __slots__ = ()

    def __repr__(self):
        return f"Size({list(self)})"


VALUES = [
    (), (1,), (1, "a"), [1, [None]], {"k": (1, [2])}, {1: {2: 3}}, slice(1, None, "x"), "text", 3.0, None, ...,
    Size((1, 2)), [Size((1,))], Point(1, (2,)), {"k": Point("a", [])}, [[], {}, ()], {"a", }, [int],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_is_returned_is_shown_as_python_shows_it(value):
    graph = Graph()

    assert graph.output(value).format_node() == f"return {value}"
    assert node_rows(graph.nodes)[0][3] == str((value,))

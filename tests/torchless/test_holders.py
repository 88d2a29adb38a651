"""Modules deep below the root are read once by generated code, and kept in a local that nothing else is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fxplug.codegen import compile_code
from fxplug.ir import Graph


def _double(value: int) -> int:
    return 2 * value


class Reader:
    """Counts what is read from it."""

    def __init__(self, **values: Any) -> None:
        self.__dict__["values"] = values
        self.__dict__["reads"] = []

    def __getattr__(self, name: str) -> Any:
        self.reads.append(name)
        return self.values[name]


def run(graph: Graph, root: Any, *args: Any) -> Any:
    return compile_code(graph.python_code()).function(root, *args)


def test_a_prefix_of_several_paths_is_read_once():
    inner = Reader(first=_double, second=_double, bias=5)
    root = Reader(blocks=SimpleNamespace(**{"0": inner}))
    graph = Graph()
    x = graph.placeholder("x")
    first = graph.call_module("blocks.0.first", (x,))
    second = graph.call_module("blocks.0.second", (first,))
    graph.output((second, graph.get_attr("blocks.0.bias")))
    assert run(graph, root, 3) == (12, 5)
    assert root.reads == ["blocks"]
    assert inner.reads == ["first", "second", "bias"]
    assert graph.python_code().src.count('getattr(self.blocks, "0")') == 1


def test_a_prefix_of_one_path_and_the_attributes_of_the_root_are_read_in_place():
    graph = Graph()
    x = graph.placeholder("x")
    one = graph.call_module("block.inner.layer", (x,))
    two = graph.call_module("other.layer", (one,))
    graph.output(graph.call_module("other.last", (two,)))
    source = graph.python_code().src
    assert "self.block.inner.layer(x)" in source
    assert "self.other.last(other_layer)" in source


def test_a_holder_is_read_from_the_holder_around_it():
    graph = Graph()
    x = graph.placeholder("x")
    for name in ("a.b.one", "a.b.two", "a.b.c.one", "a.b.c.two"):
        x = graph.call_module(name, (x,))
    graph.output(x)
    source = graph.python_code().src
    assert "a_b = self.a.b\n" in source
    assert "a_b_c = a_b.c\n" in source
    layer = SimpleNamespace(one=_double, two=_double)
    root = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(one=_double, two=_double, c=layer)))
    assert run(graph, root, 1) == 16


@pytest.mark.parametrize("name", ["a_b", "_fxp_a_b"])
def test_a_holder_takes_no_name_of_a_value(name):
    graph = Graph()
    x = graph.create_node("placeholder", name, name="a_b")
    other = graph.create_node("placeholder", "other", name="_fxp_a_b")
    first = graph.call_module("a.b.one", (x,))
    graph.output((graph.call_module("a.b.two", (first,)), x, other))
    root = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(one=_double, two=_double)))
    assert run(graph, root, 3, 4) == (12, 3, 4)


def test_a_holder_takes_no_name_of_a_function():
    def a_b(value: int) -> int:
        return value + 1

    a_b.__module__ = "a"
    a_b.__name__ = a_b.__qualname__ = "b"
    graph = Graph()
    x = graph.placeholder("x")
    first = graph.call_module("a.b.one", (graph.call_function(a_b, (x,)),))
    graph.output(graph.call_function(a_b, (graph.call_module("a.b.two", (first,)),)))
    root = SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(one=_double, two=_double)))
    assert run(graph, root, 3) == 17


def test_odd_names_on_the_way_stay_data():
    part = SimpleNamespace(**{'x" or 1': _double, "class": _double})
    root = SimpleNamespace(**{'a"b\\': SimpleNamespace(**{"1 + 1": part})})
    graph = Graph()
    x = graph.placeholder("x")
    for name in ('a"b\\.1 + 1.x" or 1', 'a"b\\.1 + 1.class'):
        x = graph.call_module(name, (x,))
    graph.output(x)
    assert run(graph, root, 2) == 8


def test_the_line_of_a_holder_names_the_node_that_needs_it():
    graph = Graph()
    x = graph.placeholder("x")
    first = graph.call_module("a.b.one", (x,))
    graph.output(graph.call_module("a.b.two", (first,)))
    code = graph.python_code()
    number = code.src.splitlines().index("    a_b = self.a.b") + 1
    assert code.lines[number] == first.name

"""The DOT text: what is in it, and that nothing in a graph is taken for DOT."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from xml.etree import ElementTree as ET

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fxplug
from fxplug.analyze import propagate_shapes
from fxplug.errors import ConfigError, InvalidArgumentError
from fxplug.ir import OPCODES
from fxplug_viz import dot_text
from fxplug_viz.dot import COLOURS

SVG = "{http://www.w3.org/2000/svg}"
DOT = shutil.which("dot")

needs_graphviz = pytest.mark.skipif(DOT is None, reason="Graphviz (dot) is not installed")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        y = self.block(x).flatten() * self.scale
        return y + y


class Named:
    """A callable whose name is any text."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__module__ = "names"

    def __call__(self, value):
        return value


def graph_of_names(names: list[str]) -> fxplug.Graph:
    graph = fxplug.Graph()
    value = graph.placeholder("x")
    for name in names:
        value = graph.call_function(Named(name), (value,))
    graph.output(value)
    return graph


def render(text: str) -> ET.Element:
    assert DOT is not None
    completed = subprocess.run(
        [DOT, "-Tsvg"], input=text.encode(), capture_output=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr.decode()
    assert completed.stderr == b""
    return ET.fromstring(completed.stdout)


def titles(picture: ET.Element, kind: str) -> list[str | None]:
    return [group.findtext(f"{SVG}title") for group in picture.iter(f"{SVG}g") if group.get("class") == kind]


def shown(picture: ET.Element) -> list[str]:
    return [(text.text or "").replace("\xa0", " ") for text in picture.iter(f"{SVG}text")]


# -- content ----------------------------------------------------------------------------------------------------


def test_the_text_of_a_small_graph():
    module = fxplug.symbolic_trace(Model())
    propagate_shapes(module, torch.randn(1, 4))

    assert dot_text(module) == (
        """\
digraph {
  graph [label="Model", labelloc="t", rankdir="TB", fontname="Helvetica"];
  node [shape="record", style="filled,rounded", fontname="Helvetica", fontsize="10", color="#555555"];
  edge [color="#555555"];
  "x" [label="{placeholder: x|x|float32[1, 4]}", fillcolor="#cfe8fc"];
  "block_0" [label="{call_module: block_0|block.0 (Linear)|float32[1, 3]}", fillcolor="#d5efd3"];
  "block_1" [label="{call_module: block_1|block.1 (ReLU)|float32[1, 3]}", fillcolor="#d5efd3"];
  "flatten" [label="{call_method: flatten|flatten|float32[3]}", fillcolor="#fbdcc4"];
  "scale" [label="{get_attr: scale|scale|float32[3]}", fillcolor="#e6e0f3"];
  "mul" [label="{call_function: mul|operator.mul|float32[3]}", fillcolor="#fdf0c8"];
  "add" [label="{call_function: add|operator.add|float32[3]}", fillcolor="#fdf0c8"];
  "output" [label="{output: output|output|float32[3]}", fillcolor="#f7cfd3"];
  "x" -> "block_0";
  "block_0" -> "block_1";
  "block_1" -> "flatten";
  "flatten" -> "mul";
  "scale" -> "mul";
  "mul" -> "add";
  "add" -> "output";
}
"""
    )


def test_a_graph_alone_is_drawn_without_shapes_and_module_classes():
    text = dot_text(fxplug.symbolic_trace(Model()).graph)

    assert 'label="graph"' in text
    assert '"block_0" [label="{call_module: block_0|block.0}"' in text


def test_the_same_program_gives_the_same_text_each_time():
    assert dot_text(fxplug.symbolic_trace(Model())) == dot_text(fxplug.symbolic_trace(Model()))


def test_drawing_changes_nothing():
    module = fxplug.symbolic_trace(Model())
    version = module.graph.version

    dot_text(module)

    assert module.graph.version == version


def test_every_opcode_has_a_colour_of_its_own():
    assert set(COLOURS) == set(OPCODES)
    assert len(set(COLOURS.values())) == len(OPCODES)


def test_nodes_inside_structures_and_keywords_are_connected_once():
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    y = graph.placeholder("y")
    graph.output({"both": [graph.call_function(torch.cat, ([x, y, x],), {"dim": 0}), (x, slice(y, None))]})

    edges = re.findall(r'"(\w+)" -> "(\w+)"', dot_text(graph))

    assert edges == [("x", "cat"), ("y", "cat"), ("cat", "output"), ("x", "output"), ("y", "output")]


def test_a_title_and_a_direction_can_be_given():
    text = dot_text(fxplug.symbolic_trace(Model()), title='The "first"', direction="LR")

    assert 'label="The \\"first\\""' in text
    assert 'rankdir="LR"' in text


def test_an_empty_graph_has_a_text():
    assert dot_text(fxplug.Graph()).endswith("}\n")


def test_long_names_are_cut():
    text = dot_text(graph_of_names(["long" * 3000]))

    label = re.search(r'label="\{call_function: (.*)\|(.*)\}"', text)
    assert label is not None
    assert len(label[2]) == 80
    assert label[2].endswith("…")


# -- what is refused --------------------------------------------------------------------------------------------


def test_a_module_that_was_not_captured_is_refused():
    with pytest.raises(InvalidArgumentError) as caught:
        dot_text(nn.Linear(2, 2))  # type: ignore[arg-type]

    assert str(caught.value) == (
        "Cannot draw a Linear: only a GraphModule or a Graph has nodes to draw. Capture it first: "
        "dot_text(fxplug.symbolic_trace(module)). [FXP-G003]"
    )


def test_an_unknown_direction_is_refused():
    with pytest.raises(ConfigError) as caught:
        dot_text(fxplug.Graph(), direction="UP")  # type: ignore[arg-type]

    assert str(caught.value) == "Cannot draw the graph with direction 'UP'. Use 'TB' or 'LR'. [FXP-F000]"


# -- escaping ---------------------------------------------------------------------------------------------------

NASTY = {
    'say "no"': 'say "no"',
    "{a|b}": "{a|b}",
    "<script>alert(1)</script>": "<script>alert(1)</script>",
    "<port> a": "<port> a",
    "a->b": "a->b",
    "back\\slash\\": "back\\slash\\",
    "\\N \\G \\l \\n": "\\N \\G \\l \\n",
    "line\nend\r\t": "line\\nend\\r\\t",
    "&amp; &lt; &#33;": "&amp; &lt; &#33;",
    " two  spaces  ": " two  spaces  ",
    "émoji 🎉 中文": "émoji 🎉 中文",
    "half \ud83c": "half \\ud83c",
    "null \x00 bell \x07": "null \\x00 bell \\x07",
    "}; x [label=y": "}; x [label=y",
    "// # /* */": "// # /* */",
}


@needs_graphviz
def test_graphviz_shows_every_name_as_it_is():
    picture = render(dot_text(graph_of_names(list(NASTY)), title='{"<&amp;\\N|\n>"}'))

    lines = shown(picture)
    assert lines[0] == '{"<&amp;\\N|\\n>"}'
    assert [line.removeprefix("names.") for line in lines if line.startswith("names.")] == list(
        NASTY.values()
    )


@needs_graphviz
def test_graphviz_draws_every_node_and_edge_once():
    module = fxplug.symbolic_trace(Model())
    picture = render(dot_text(module))

    assert Counter(titles(picture, "node")) == Counter(node.name for node in module.graph.nodes)
    expected = [
        f"{source.name}->{node.name}" for node in module.graph.nodes for source in node.all_input_nodes
    ]
    assert Counter(titles(picture, "edge")) == Counter(expected)


@needs_graphviz
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.text(st.sampled_from('"{}|<>\\&;nlN #-\n\r\x00 a🎉'), max_size=30), min_size=1, max_size=5)
)
def test_graphviz_never_interprets_a_name(names):
    picture = render(dot_text(graph_of_names(names)))

    expected = ["".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in name) for name in names]
    found = [line.removeprefix("names.") for line in shown(picture) if line.startswith("names.")]
    assert found == expected


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_no_quote_and_no_line_end_leaves_a_label(name):
    text = dot_text(graph_of_names([name]), title=name)
    text.encode("utf-8")

    statement = re.compile(r'  "\w+" \[label="(?:[^"\\\n]|\\.)*", fillcolor="#\w{6}"\];')
    assert len(text.splitlines()) == 4 + 3 + 2 + 1
    assert all(statement.fullmatch(line) for line in text.splitlines()[4:7])

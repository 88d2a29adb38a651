"""Graph modules that a graph calls: drawn and viewed with what is inside."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from torch import nn

import fxplug
from fxplug_viz import dot_text, tree_text, view
from fxplug_viz.viewer_data import graph_data


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x, scale=2.0):
        return self.linear(x) * scale


@pytest.fixture
def nested():
    inner = fxplug.symbolic_trace(Inner())
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    first = graph.call_module("part", (x,))
    second = graph.call_module("part", (first,), {"scale": x})
    graph.output((second, graph.call_function(torch.relu, (first,))))
    return fxplug.GraphModule({"part": inner}, graph)


EDGES = {
    ("x", "part_linear"), ("part_linear", "part_mul"), ("part_scale", "part_mul"), ("part_mul", "part"),
    ("part", "part_1_linear"), ("part_1_linear", "part_1_mul"), ("x", "part_1_mul"), ("part_1_mul", "part_1"),
    ("part", "relu"), ("relu", "output"), ("part_1", "output"),
}  # fmt: skip


def test_what_is_inside_is_drawn_once_with_every_edge(nested):
    text = dot_text(nested, unfold=True)

    names = Counter(re.findall(r'"(\w+)" \[label=', text))
    assert names == Counter({name for edge in EDGES for name in edge})
    assert Counter(re.findall(r'"(\w+)" -> "(\w+)"', text)) == Counter(EDGES)
    assert text.count("subgraph") == 2
    assert "called as part_1" in text
    assert "part.linear (Linear)" in text
    assert "part_linear" not in dot_text(nested)


def test_the_graph_itself_stays_as_it_is(nested):
    version, names = nested.graph.version, [node.name for node in nested.graph.nodes]

    dot_text(nested, unfold=True)
    graph_data(nested)

    assert nested.graph.version == version
    assert [node.name for node in nested.graph.nodes] == names
    assert all(not any("frames" in str(key) for key in node.meta) for node in nested.part.graph.nodes)


def test_names_of_the_outer_graph_are_never_taken(nested):
    graph = nested.graph
    with graph.inserting_before(graph.find_nodes(op="output")[0]):
        later = graph.create_node(
            "call_function", torch.relu, (graph.find_nodes(op="placeholder")[0],), name="part_linear"
        )
    assert later.name == "part_linear"

    nodes = {node["n"]: node for node in graph_data(nested)["nodes"]}

    assert nodes["part_linear"]["t"] == "torch.relu"
    assert nodes["part_linear_"]["t"] == "part.linear"


def test_colours_and_text_know_what_is_inside(nested):
    assert dot_text(nested, unfold=True, color_by="partition").count('fillcolor="#f4f4f4"') == 3
    assert "part_1_mul" in tree_text(nested, unfold=True)
    assert "part_1_mul" not in tree_text(nested)


def test_graph_modules_in_graph_modules_are_unfolded_too(nested):
    graph = fxplug.Graph()
    graph.output(graph.call_module("whole", (graph.placeholder("y"),)))
    outer = fxplug.GraphModule({"whole": nested}, graph)

    data = graph_data(outer)

    names = [node["n"] for node in data["nodes"]]
    assert len(names) == len(set(names)) == 11
    assert "whole_part_1_mul" in names
    assert {group["t"] for group in data["groups"] if group["k"] == "module"} == {"whole", "whole.part"}


def test_a_graph_that_is_not_sound_is_drawn_as_it_is(nested):
    nodes = list(nested.graph.nodes)
    nodes[1].args = (nodes[2],)

    assert '"part_linear"' not in dot_text(nested, unfold=True)
    assert "Not sound" in dot_text(nested, unfold=True)


def test_a_graph_module_folds_in_the_viewer(page, nested, tmp_path):
    page.open(view(nested, tmp_path / "nested.html", {"time": {"part": 1.0, "part_1": 2.0}}))
    page.app("await app.setAll(true)")
    edges = page.app(
        "app.picture.scene.ways.map((edge) => [app.model.name(edge.from), app.model.name(edge.to)])"
    )
    assert {tuple(edge) for edge in edges} == EDGES

    page.app("await app.setAll(false)")
    assert len(page.visible()) == 5
    assert sum(page.app("app.model.children[app.model.root].map((id) => app.model.sizes[id])")) == 10

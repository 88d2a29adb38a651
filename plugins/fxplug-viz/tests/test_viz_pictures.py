"""Real models, drawn by Graphviz: every node and edge is in the picture, once."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import fxplug
from fxplug.analyze import propagate_shapes
from fxplug_viz import DrawingError, DrawOptions, GraphDrawer, diff, draw, draw_diff, view_diff
from fxplug_viz.clusters import modules_around
from fxplug_viz.selection import columns_of, shown_edges

SVG = "{http://www.w3.org/2000/svg}"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
MODELS = {"resnet50": "resnet50", "transformer": "transformer", "learning_to_paint": "actor"}

pytestmark = pytest.mark.skipif(
    shutil.which("dot") is None and "CI" not in os.environ, reason="Graphviz (dot) is not installed"
)


def example(name):
    spec = importlib.util.spec_from_file_location(f"viz_example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=MODELS)
def traced(request):
    program = example(request.param)
    module = fxplug.symbolic_trace(getattr(program, MODELS[request.param])())
    propagate_shapes(module, *program.example_inputs())
    return module


def titles(path, kind):
    groups = ET.parse(path).iter(f"{SVG}g")
    return Counter(group.findtext(f"{SVG}title") for group in groups if group.get("class") == kind)


def edges_of(graph):
    return Counter(f"{used.name}->{node.name}" for node in graph.nodes for used in node.all_input_nodes)


@pytest.mark.parametrize(
    "settings", [{}, {"clusters": False, "wrap": False}, {"detail": "brief", "direction": "LR"}]
)
def test_every_node_and_edge_is_in_the_svg_once(traced, tmp_path, settings):
    path = draw(traced, tmp_path / "model.svg", **settings)

    assert titles(path, "node") == Counter(node.name for node in traced.graph.nodes)
    assert titles(path, "edge") == edges_of(traced.graph)


def test_columns_stand_in_the_order_of_the_program(traced, tmp_path):
    path = draw(traced, tmp_path / "model.svg", wrap=True)

    groups = [group for group in ET.parse(path).iter(f"{SVG}g") if group.get("class") == "node"]
    places = {
        group.findtext(f"{SVG}title"): float(next(group.iter(f"{SVG}text")).get("x", "nan"))
        for group in groups
    }
    nodes = list(traced.graph.nodes)
    length = DrawOptions(wrap=True).column_length(len(nodes))
    columns = columns_of(nodes, shown_edges(nodes, ()), length)
    middles = [sum(places[node.name] for node in column) / len(column) for column in columns]
    assert len(columns) > 1
    assert middles == sorted(middles)


def test_columns_end_where_blocks_end():
    """A cut behind the addition would break one edge fewer, and tear the last call off its block."""
    graph = fxplug.symbolic_trace(example("resnet50").resnet50()).graph
    nodes = list(graph.nodes)

    columns = columns_of(nodes, shown_edges(nodes, ()), DrawOptions.of({}).column_length(len(nodes)))

    lasts = [modules_around(column[-1]) for column in columns[:-1]]
    firsts = [modules_around(column[0]) for column in columns[1:]]
    assert len(columns) > 2
    assert all(last[-1] not in first for last, first in zip(lasts, firsts, strict=True))


def test_real_models_are_drawn_as_png_and_pdf(traced, tmp_path):
    assert draw(traced, tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")
    assert draw(traced, tmp_path / "model.pdf").read_bytes().startswith(b"%PDF")


def test_the_same_graph_gives_the_same_picture(traced, tmp_path):
    first, second = (draw(traced, tmp_path / name, "svg").read_bytes() for name in ("first", "second"))

    assert first == second


def test_a_thousand_nodes_have_a_sensible_size(tmp_path):
    def chain(x):
        for _ in range(500):
            x = (x + 1).relu()
        return x

    path = draw(fxplug.symbolic_trace(chain), tmp_path / "chain.svg")

    width, height = (
        float(ET.parse(path).getroot().get(side).removesuffix("pt")) for side in ("width", "height")
    )
    assert titles(path, "node").total() == 1002
    assert max(width, height) < 10_000
    assert 0.2 < width / height < 5


@pytest.fixture(scope="module")
def resnet():
    program = example("resnet50")
    model = program.resnet50()
    inputs = tuple(value[..., :64, :64] for value in program.example_inputs())
    return fxplug.symbolic_trace(model), fxplug.optimize(model, inputs).graph_module


def test_the_inference_pipeline_fuses_53_pairs_in_resnet50(resnet):
    difference = diff(*resnet)

    assert difference.counts() == {
        "same": 5,
        "changed": 1,  # The last layer is packed.
        "moved": 0,
        "fused": 53,
        "added": 0,
        "removed": 0,
    }
    for change in difference.of_kind("fused"):
        conv, norm = change.before[:2]  # Behind them the sums and activations that the convolution does, too.
        assert conv.name in difference.line(change)
        assert norm.name in difference.line(change)
        assert [type(resnet[0].get_submodule(node.target)).__name__ for node in (conv, norm)] == [
            "Conv2d",
            "BatchNorm2d",
        ]
        assert any("fuse-conv-bn of fxplug" in text for text in change.details)


def test_both_origins_of_every_fusion_are_in_the_picture(resnet, tmp_path):
    path = draw_diff(diff(*resnet), tmp_path / "diff.svg", longest=200)

    lines = [text.text.replace("\xa0", " ") for text in ET.parse(path).iter(f"{SVG}text")]
    fused = [line for line in lines if line.startswith("fused from ")]
    assert len(fused) == 53
    assert all("(Conv2d) + " in line and "(BatchNorm2d)" in line for line in fused)
    assert titles(path, "node") == Counter(node.name for node in resnet[1].graph.nodes)
    assert titles(path, "edge") == edges_of(resnet[1].graph)


def test_both_origins_of_every_fusion_are_on_the_page(resnet, tmp_path):
    html = view_diff(diff(*resnet), tmp_path / "diff.html").read_text(encoding="utf-8")

    data = json.loads(html.partition('id="data">')[2].partition("</script>")[0])
    before, after = data["graphs"]
    fused = [node["x"][1] for node in after["nodes"] if node["x"][0] == "fused"]
    assert len(fused) == 53
    assert all("(Conv2d)" in conv[1] and "(BatchNorm2d)" in norm[1] for conv, norm, *_ in fused)
    names = {node["n"]: node for node in before["nodes"]}
    assert all("y" in names[name] for origins in fused for name, _ in origins)
    assert data["steps"][1]["note"].endswith("53 fused")


def test_a_program_can_add_to_a_picture(traced):
    drawer = GraphDrawer(traced, "model")

    picture = drawer.get_dot_graph()
    picture.node("note", shape="plain")

    shown = ET.fromstring(picture.pipe(format="svg"))
    names = {group.findtext(f"{SVG}title") for group in shown.iter(f"{SVG}g") if group.get("class") == "node"}
    assert names == {"note", *(node.name for node in traced.graph.nodes)}
    assert drawer.get_main_dot_graph().source == drawer.get_all_dot_graphs()["model"].source


def test_graph_modules_inside_are_drawn_by_their_path():
    inner = fxplug.symbolic_trace(lambda x: x + 1)
    graph = fxplug.Graph()
    graph.output(graph.call_module("part.inner", (graph.placeholder("x"),)))
    drawer = GraphDrawer(fxplug.GraphModule({"part.inner": inner}, graph), "model")

    assert list(drawer.get_all_dot_graphs()) == ["model", "model.part.inner"]
    assert "operator.add" in drawer.get_dot_graph("part.inner").source
    with pytest.raises(fxplug.FxplugError, match="There is no graph module named 'part'"):
        drawer.get_submod_dot_graph("part")


def test_what_graphviz_says_is_passed_on(tmp_path):
    drawing = importlib.import_module("fxplug_viz.drawing")

    with pytest.raises(
        DrawingError, match=r"'dot' of Graphviz ended with 1: .*syntax error.*The DOT text was written"
    ):
        drawing.write_picture("digraph { ->", tmp_path / "wrong.svg", "svg")

    assert (tmp_path / "wrong.dot").read_text() == "digraph { ->"

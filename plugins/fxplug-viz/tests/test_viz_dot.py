"""The DOT text: what is in it, and that nothing in a graph is taken for DOT."""

from __future__ import annotations

import copy
import os
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
from fxplug.errors import FxplugError, InvalidArgumentError
from fxplug.ir import OPCODES, ModuleScope, Origin, SourceLine
from fxplug_viz import dot_text
from fxplug_viz.dot import COLOURS

SVG = "{http://www.w3.org/2000/svg}"
DOT = shutil.which("dot")

needs_graphviz = pytest.mark.skipif(
    DOT is None and "CI" not in os.environ, reason="Graphviz (dot) is not installed"
)


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


def statements(text: str) -> list[str]:
    """Return nodes and edges, without where they come from."""
    plain = re.sub(r', tooltip="(?:[^"\\\n]|\\.)*"', "", text)
    return [line.strip() for line in plain.splitlines() if line.strip().startswith('"')]


def test_the_text_of_a_small_graph():
    module = fxplug.symbolic_trace(Model())
    propagate_shapes(module, torch.randn(1, 4))

    text = dot_text(module)

    assert statements(text) == [
        '"x" [label="{placeholder: x|{float32[1, 4]|1 user}}", fillcolor="#cfe8fc"];',
        '"flatten" [label="{call_method: flatten|flatten|{float32[3]|1 user}}", fillcolor="#fbdcc4"];',
        '"scale" [label="{get_attr: scale|scale|parameter [3]|{float32[3]|1 user}}", fillcolor="#e6e0f3"];',
        '"mul" [label="{call_function: mul|operator.mul|{float32[3]|1 user}}", fillcolor="#fdf0c8"];',
        '"add" [label="{call_function: add|operator.add|{float32[3]|1 user}}", fillcolor="#fdf0c8"];',
        '"output" [label="{output: output|float32[3]}", fillcolor="#f7cfd3"];',
        (
            '"block_0" [label="{call_module: block_0|block.0 (Linear)|weight [3, 4], bias [3]|{float32[1, 3]|1 user}}"'
            ', fillcolor="#d5efd3"];'
        ),
        '"block_1" [label="{call_module: block_1|block.1 (ReLU)|{float32[1, 3]|1 user}}", fillcolor="#d5efd3"];',
        '"x" -> "block_0";',
        '"block_0" -> "block_1";',
        '"block_1" -> "flatten";',
        '"flatten" -> "mul";',
        '"scale" -> "mul";',
        '"mul" -> "add";',
        '"add" -> "output";',
    ]
    assert 'subgraph "cluster_0" {\n    graph [label="block (Sequential)"' in text


def test_a_graph_alone_is_drawn_without_shapes_and_module_classes():
    text = dot_text(copy.deepcopy(fxplug.symbolic_trace(Model()).graph))

    assert ">graph</FONT>" in text
    assert '"block_0" [label="{call_module: block_0|block.0|1 user}"' in text


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

    assert ">The &quot;first&quot;</FONT>" in text
    assert 'rankdir="LR"' in text


@needs_graphviz
@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_rows_stand_below_each_other_in_both_directions(direction):
    graph = fxplug.Graph()
    graph.call_method("join", (graph.placeholder("x"), "and"))

    picture = render(dot_text(graph, direction=direction))

    (node,) = [group for group in picture.iter(f"{SVG}g") if group.findtext(f"{SVG}title") == "join"]
    places = [(float(text.get("x")), float(text.get("y"))) for text in node.iter(f"{SVG}text")]
    assert len(places) == 4
    assert [y for _, y in places] == sorted({y for _, y in places})
    assert max(x for x, _ in places) - min(x for x, _ in places) < 2


def test_an_empty_graph_says_so():
    assert "There are no nodes." in dot_text(fxplug.Graph())


def test_long_names_are_cut():
    text = dot_text(graph_of_names(["long" * 3000]))

    label = re.search(r'label="\{call_function: (.*)\|(.*)\|1 user\}"', text)
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"direction": "UP"}, "There is no direction named 'UP'. Available: 'LR', 'TB'."),
        (
            {"color_by": "mood"},
            "There is no colouring named 'mood'. Available: 'dtype', 'op', 'partition', 'plugin'.",
        ),
        (
            {"hide": ["get_attrs"]},
            "There is no kind of node to hide named 'get_attrs'. Did you mean 'get_attr'?",
        ),
        ({"hide": "getitem"}, "Cannot hide 'getitem': give a collection of names, such as ['getitem']."),
        ({"colour_by": "op"}, "There is no drawing option named 'colour_by'. Did you mean 'color_by'?"),
        ({"longest": 0}, "Cannot cut texts to 0 characters. Give a number from 1 on."),
        (
            {"color_by": 3},
            (
                "Cannot colour nodes by a int. Use one of op, plugin, partition, dtype, a function that returns the "
                "group of a node, or a dict from the name of a node to its group."
            ),
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(FxplugError) as caught:
        dot_text(fxplug.Graph(), **settings)

    assert caught.value.message == message


# -- settings ---------------------------------------------------------------------------------------------------


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.other = torch.ones(2)

    def forward(self, x):
        first, second = x.chunk(2)
        return first * self.scale + torch.add(second, self.other, alpha=2)


def test_nodes_of_a_kind_can_be_hidden():
    module = fxplug.symbolic_trace(Pair())
    names = {node.name for node in module.graph.nodes}

    def hidden(*kinds):
        return names - {
            line.split('"')[1] for line in statements(dot_text(module, hide=kinds)) if " [label=" in line
        }

    assert hidden() == set()
    assert hidden("get_attr") == {node.name for node in module.graph.nodes if node.op == "get_attr"}
    assert hidden("get_attr") - hidden("constants") == {"scale"}
    assert hidden("getitem") == {"getitem", "getitem_1"}


def test_users_of_hidden_elements_are_connected_to_what_holds_them():
    text = dot_text(fxplug.symbolic_trace(Pair()), hide=["getitem"])

    assert '"chunk" -> "mul" [label="[0]"];' in text
    assert '"chunk" -> "add" [label="[1]"];' in text


def test_values_among_the_arguments_are_shown_unless_constants_are_hidden():
    module = fxplug.symbolic_trace(Pair())

    assert any("alpha=2" in line for line in statements(dot_text(module)))
    assert not any("alpha=2" in line for line in statements(dot_text(module, hide=["constants"])))


def colours(text: str) -> dict[str, str]:
    return dict(re.findall(r'"(\w+)" \[label=.*?fillcolor="(#\w+)"', text))


def test_colours_can_tell_the_dtype():
    module = fxplug.symbolic_trace(lambda x: (x + 1, x > 1))
    propagate_shapes(module, torch.ones(2))

    text = dot_text(module, color_by="dtype")

    assert ">float32</FONT>" in text
    assert ">bool</FONT>" in text
    assert colours(text)["add"] == colours(text)["x"] != colours(text)["gt"]


def test_colours_can_tell_who_made_a_node():
    result = fxplug.optimize(
        nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).eval(), (torch.ones(1, 1, 2, 2),)
    )

    text = dot_text(result.graph_module, color_by="plugin")

    assert ">as captured</FONT>" in text
    assert f">fxplug {fxplug.__version__}</FONT>" in text


def test_colours_can_tell_any_group():
    module = fxplug.symbolic_trace(Model())

    by_name = dot_text(module, color_by={"add": "hot", "mul": "hot"})
    by_function = dot_text(module, color_by=lambda node: "hot" if node.name in {"add", "mul"} else None)

    assert by_name == by_function
    assert colours(by_name)["add"] == colours(by_name)["mul"] != colours(by_name)["flatten"]


def test_colours_can_tell_partitions():
    module = fxplug.symbolic_trace(Model())
    next(iter(module.graph.find_nodes(op="call_method"))).meta["partition"] = 3

    assert ">3</FONT>" in dot_text(module, color_by="partition")


def test_frames_and_legend_can_be_left_out():
    text = dot_text(fxplug.symbolic_trace(Model()), clusters=False, legend=False)

    assert "subgraph" not in text
    assert "BGCOLOR" not in text


def test_a_graph_with_an_error_is_drawn_with_what_is_wrong():
    module = fxplug.symbolic_trace(Model())
    del module.block

    text = dot_text(module)

    assert "Not sound: " in text
    assert '"block_0" [label="{call_module: block_0|block.0 (does not exist)|1 user}"' in text


def test_a_long_graph_is_broken_into_columns_and_keeps_every_edge():
    graph = graph_of_names([f"f{number}" for number in range(200)])

    wrapped, straight = dot_text(graph), dot_text(graph, wrap=False)

    assert 'constraint="false"' in wrapped
    assert 'constraint="false"' not in straight
    plain = re.compile(r' \[constraint="false", weight="0", style="dashed"\]')
    shown = [plain.sub("", line) for line in statements(wrapped)]
    points = [line for line in shown if "column " in line]
    assert sorted(line for line in shown if line not in points) == sorted(statements(straight))
    assert points
    assert all('style="invis"' in line for line in points)


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
    lines = [line for line in text.splitlines() if " [label=" in line and not line.startswith("  graph")]
    assert len(text.splitlines()) == 4 + 3 + 2 + 1
    assert len(lines) == 3
    assert all(statement.fullmatch(line) for line in lines)


@needs_graphviz
def test_constants_of_any_length_are_shown_as_they_are():
    graph = fxplug.Graph()
    constant = "".join(NASTY.values()) * 60 + "x" * 10_000
    graph.output(graph.call_method("join", (graph.placeholder("x"), constant)))

    picture = render(dot_text(graph, longest=50_000))

    expected = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in repr(constant))
    assert len(expected) > 16384
    assert any(expected in line for line in shown(picture))
    assert max(len(line) for line in shown(render(dot_text(graph)))) == 80


@needs_graphviz
def test_names_of_any_length_are_drawn():
    graph = fxplug.Graph()
    graph.output(graph.create_node("call_function", len, (graph.placeholder("x"),), name="n" * 30_000))

    picture = render(dot_text(graph))

    assert titles(picture, "node") == ["x", "n" * 30_000, "output"]


@needs_graphviz
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(st.sampled_from('"{}|<>\\&;nlNGTELH#-\n\r\x00 a🎉[]()/'), min_size=1, max_size=30))
def test_titles_groups_modules_and_places_are_never_interpreted(text):
    graph = graph_of_names(["a", "b"])
    origin = Origin(SourceLine(text, 1, text), module=ModuleScope(f"p{text}p", f"k{text}k"))
    for node in graph.find_nodes(op="call_function"):
        node.origins = (origin,)

    picture = render(dot_text(graph, title=text, color_by=lambda node: f"g{text}g"))

    plain = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    lines = shown(picture)
    kind = f"k{plain}k".rpartition(".")[2]
    assert plain in lines
    assert lines.count(f"g{plain}g") == 1
    assert f"p{plain}p ({kind})".replace(" ", "") in [line.replace(" ", "") for line in lines]
    places = {link.get("{http://www.w3.org/1999/xlink}title") for link in picture.iter(f"{SVG}a")}
    assert {(place or "").replace("\xa0", " ") for place in places} == {f"{plain}:1"}

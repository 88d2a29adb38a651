"""The viewer in a real browser: it loads alone, folds, finds, tells, colours, and interprets nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fxplug
from fxplug.analyze import propagate_shapes
from fxplug.errors import InvalidArgumentError, StorageError
from fxplug_viz import Overlay, view
from fxplug_viz.viewer import graph_with_overlays, viewer_html
from fxplug_viz.viewer_data import graph_data
from fxplug_viz.viewer_overlays import overlays_of
from fxplug_viz.viewer_page import embedded_json


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.linear(x)) + x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.Sequential(*(Block() for _ in range(5)))

    def forward(self, x):
        return self.blocks(self.stem(x)).sum()


@pytest.fixture(scope="module")
def module() -> fxplug.GraphModule:
    traced = fxplug.symbolic_trace(Model().eval())
    propagate_shapes(traced, torch.randn(2, 4))
    return traced


# -- in the browser ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_loads_without_network_and_console_messages_in_both_themes(new_page, module, tmp_path, theme):
    path = view(module, tmp_path / "model.html", title="A model")
    with new_page(color_scheme=theme, offline=True) as page:
        page.open(path)
        page.app("new Promise((done) => setTimeout(done, 200))")
        page.page.screenshot(path=tmp_path / f"{theme}.png")

        assert page.page.title() == "A model"
        assert page.text("h1") == "A model"
        assert page.app("document.documentElement.dataset.theme") == theme
        painted = page.app("app.picture.context.getImageData(2, 2, 1, 1).data[0]")
        assert (painted > 200) == (theme == "light")
        page.page.click("#theme")
        assert page.app("document.documentElement.dataset.theme") != theme
        assert page.complaints == []
        assert [url.partition(":")[0] for url in page.requests] == ["file", "blob"]


def test_repeated_blocks_are_one_until_they_are_unfolded(page, module, tmp_path):
    page.open(view(module, tmp_path / "model.html"))

    assert page.rows() == ["x", "Linear", "blocks", "0 … 4", "sum", "output"]
    assert page.page.locator("#tree .badge").all_inner_texts() == ["\N{MULTIPLICATION SIGN}5"]
    page.page.locator("#tree .row", has_text="0 … 4").locator(".twist").click()
    page.wait("fxplugView.app.picture.scene.boxes.size === 11")
    assert page.rows() == ["x", "Linear", "blocks", "0 … 4", "0", "1", "2", "3", "4", "sum", "output"]
    page.page.click("#expand")
    page.wait("fxplugView.app.picture.scene.boxes.size === 26")
    assert page.visible().count("blocks_3_linear") == 1
    page.page.click("#collapse")
    page.wait("fxplugView.app.picture.scene.boxes.size === 5")
    assert page.rows() == ["x", "Linear", "blocks", "sum", "output"]


def test_every_edge_leads_to_what_is_visible(page, module, tmp_path):
    page.open(view(module, tmp_path / "model.html"))
    page.app("await app.setAll(true)")

    edges = page.app(
        "app.picture.scene.ways.map((edge) => [app.model.name(edge.from), app.model.name(edge.to)])"
    )
    expected = [[source.name, node.name] for node in module.graph.nodes for source in node.all_input_nodes]
    assert sorted(edges) == sorted(expected)
    page.app("await app.setAll(false)")
    edges = page.app(
        "app.picture.scene.ways.map((edge) => [app.model.name(edge.from), app.model.name(edge.to)])"
    )
    assert sorted(edges) == [["blocks", "sum_1"], ["stem", "blocks"], ["sum_1", "output"], ["x", "stem"]]


def test_a_click_shows_what_is_known_of_a_node(page, module, tmp_path):
    page.open(view(module, tmp_path / "model.html"))
    left, top, width, height = page.app("app.picture.screenBox(app.model.byName.get('stem'))")

    page.page.locator("#canvas").click(position={"x": left + width / 2, "y": top + height / 2})

    details = page.text("#details")
    assert "stem" in details.splitlines()[0]
    for expected in (
        "call_module",
        "float32[2, 4]",
        "%x",
        "Linear(in_features=4, out_features=4, bias=True)",
    ):
        assert expected in details
    assert "stem = self.stem(x)" in page.text("#details pre.code")
    assert "self.blocks(self.stem(x)).sum()" in page.text("#details .stack")
    assert "test_viz_viewer.py" in page.text("#details .stack")
    page.page.locator("#details .links button", has_text="x").first.click()
    assert page.text("#details h2") == "x"


def test_a_double_click_unfolds(page, module, tmp_path):
    page.open(view(module, tmp_path / "model.html"))
    page.app("await app.setAll(false)")
    left, top, width, height = page.app("app.picture.screenBox(app.model.count + 1)")

    page.page.locator("#canvas").dblclick(position={"x": left + width / 2, "y": top + height / 2})

    page.wait("fxplugView.app.picture.scene.boxes.size === 6")


def test_search_finds_and_reveals(page, module, tmp_path):
    page.open(view(module, tmp_path / "model.html"))

    page.page.keyboard.press("/")
    page.page.keyboard.type("blocks_3 linear")
    assert page.page.locator("#results li").first.inner_text().startswith("blocks_3_linear")
    page.page.keyboard.press("Enter")

    page.wait("location.hash === '#node=blocks_3_linear'")
    assert page.text("#details h2") == "blocks_3_linear"
    page.wait("fxplugView.app.picture.screenBox(fxplugView.app.selected) !== null")
    left, top, _, _ = page.app("app.picture.screenBox(app.selected)")
    assert 0 < left < 1300
    assert 0 < top < 850
    page.page.keyboard.press("/")
    page.page.keyboard.type("no such thing")
    assert page.text("#results") == "Nothing is called so."
    page.page.fill("#search", "blocks.3 add")  # The path of the module says it, the name does not.
    assert page.page.locator("#results li").first.inner_text().startswith("add_3")


def test_an_arrow_leads_into_an_unfolded_module(page, module, tmp_path):
    page.open(view(module, tmp_path / "model.html"), "#module=blocks.2")
    page.page.keyboard.press("e")
    page.wait("fxplugView.app.model.allGroups().every((id) => fxplugView.app.model.expanded.has(id))")
    page.wait("fxplugView.app.picture.scene.boxes.size > 15")

    page.page.keyboard.press("ArrowDown")

    page.wait("document.querySelector('#details h2').textContent === 'blocks_2_linear'")


def test_a_link_leads_to_a_node_and_to_a_module(page, module, tmp_path):
    path = view(module, tmp_path / "model.html")

    page.open(path, "#node=blocks_4_relu")
    assert page.text("#details h2") == "blocks_4_relu"
    assert "blocks_4_relu" in page.visible()
    page.page.evaluate("location.hash = '#module=blocks.2'")
    page.wait("document.querySelector('#details h2').textContent === 'blocks.2'")
    page.open(path, "#node=nothing")


def test_the_keyboard_is_enough(page, module, tmp_path):
    page.open(view(module, tmp_path / "model.html"))

    page.page.focus("#tree")
    page.page.keyboard.press("Home")
    assert page.text("#details h2") == "x"
    for _ in range(3):
        page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowRight")
    page.wait("fxplugView.app.picture.scene.boxes.size === 11")
    page.page.keyboard.press("ArrowLeft")
    page.wait("fxplugView.app.picture.scene.boxes.size === 6")
    page.page.focus("#canvas")
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    assert page.text("#details h2") == "stem"
    page.page.keyboard.press("ArrowUp")
    assert page.text("#details h2") == "x"
    before = page.app("app.picture.transform.k")
    page.page.keyboard.press("+")
    assert page.app("app.picture.transform.k") > before
    page.page.keyboard.press("?")
    assert "d3-zoom" in page.page.locator("dialog pre").text_content()


def test_overlays_colour_picture_tree_and_a_sortable_table(page, module, tmp_path):
    times = {node.name: 1e-3 * at for at, node in enumerate(module.graph.nodes) if at}
    support = {"stem": "supported", "sum_1": "no converter"}
    page.open(
        view(module, tmp_path / "model.html", {"time": Overlay("time", times, "s"), "backend": support})
    )

    page.page.select_option("#overlay", label="time")
    legend = page.text("#legend")
    assert "time" in legend
    assert "0 s" in legend
    assert "1 node has no value" in legend
    low, high = page.app("['stem', 'output'].map((name) => app.colouring.colour(app.model.byName.get(name)))")
    assert low != high
    total = page.app("app.model.overlays[0].all.get(app.model.root)")
    assert total == pytest.approx(sum(times.values()))
    page.page.click("#show-table")
    page.page.get_by_role("columnheader", name="time").click()
    assert page.page.locator("#table .row").first.inner_text().startswith("output")
    page.page.get_by_role("columnheader", name="time").click()
    first = page.page.locator("#table .row").first
    assert first.inner_text().startswith("stem")
    first.click()
    assert page.text("#details h2") == "stem"
    assert page.app("app.picture.selected === app.model.byName.get('stem')")
    page.page.select_option("#overlay", label="backend")
    assert "no converter" in page.text("#legend")


def test_several_graphs_stand_in_one_file(page, module, tmp_path):
    other = fxplug.symbolic_trace(lambda x: x.cos())
    graphs = [
        graph_with_overlays(module, key="before", title="Before"),
        graph_with_overlays(other, key="after", title="After"),
    ]
    (tmp_path / "two.html").write_text(viewer_html(graphs, title="Two"), encoding="utf-8")

    page.open(tmp_path / "two.html", "#graph=after&node=cos")
    assert page.text("#details h2") == "cos"
    page.page.select_option("#graph", label="Before")
    page.wait("fxplugView.app.picture.scene.boxes.size === 6")


def test_an_empty_graph_has_a_page(page, tmp_path):
    page.open(view(fxplug.Graph(), tmp_path / "empty.html"))

    assert "The graph has no nodes." in page.text("#details")


def test_ten_thousand_nodes_can_be_used(page, tmp_path):
    graph = fxplug.Graph()
    values = [graph.placeholder("x")]
    for at in range(9_998):
        values.append(graph.call_function(torch.add, (values[-1], values[max(0, at - 7)])))
    graph.output(values[-1])
    page.open(view(graph, tmp_path / "large.html"))

    assert len(page.visible()) < 100
    # Of sections beside each other, none is unfolded alone.
    assert page.rows() == ["nodes 1 … 3600", "nodes 3601 … 7200", "nodes 7201 … 10000"]
    page.app("await app.select(app.model.byName.get('add_7000'), { move: true })")
    assert page.text("#details h2") == "add_7000"
    assert page.page.locator("#tree .row").count() < 100


# -- nothing is interpreted -------------------------------------------------------------------------------------

NASTY = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "<img src=x onerror=alert(1)>",
    "say \"no\" 'or' `so`",
    "{{ 7 * 7 }} {% raw %}",
    "line\nend\r\t\u2028\u2029",
    "émoji 🎉 中文 \u202e",
    "half \ud83c",
    "null \x00 bell \x07",
    "a->b &amp; &lt; \\u003c",
    "long" * 3000,
]


class Named:
    """A callable whose name is any text."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__module__ = "names"

    def __call__(self, value, text=""):
        return value


def graph_of_names(names: list[str]) -> fxplug.Graph:
    graph = fxplug.Graph()
    value = graph.placeholder("x")
    for name in names:
        value = graph.call_function(Named(name), (value, name))
    graph.output(value)
    return graph


def embedded(html: str) -> Any:
    text = html.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    return json.loads(text)


def test_the_browser_shows_every_name_as_it_is(page, tmp_path):
    path = view(
        graph_of_names(NASTY),
        tmp_path / "names.html",
        {name[:50]: {"x": 1.0} for name in NASTY[:4]},
        title=NASTY[0],
    )
    page.open(path)

    assert page.page.title() == NASTY[0]
    assert page.page.locator("h1").text_content() == NASTY[0]
    assert page.page.locator("script").count() == 4
    assert page.page.locator("img").count() == 0
    nodes = embedded(path.read_text(encoding="utf-8"))["graphs"][0]["nodes"]
    for at, name in enumerate(NASTY, start=1):
        page.app(f"await app.select({at}, {{ move: true }})")
        visible = name.encode("utf-8", "backslashreplace").decode()
        shown = page.page.locator("#details dd").first.text_content()
        assert shown == f"names.{visible}"
        assert page.page.locator("#details section dd").nth(1).text_content() == nodes[at]["a"][1][1]
        assert nodes[at]["a"][1][1] == repr(name).encode("utf-8", "backslashreplace").decode()
    page.page.click("#show-table")


def test_the_browser_shows_every_word_of_a_table_as_it_is(page, tmp_path):
    graph = graph_of_names(["f"] * len(NASTY))
    names = [node.name for node in graph.nodes][1:-1]
    words = dict(zip(names, NASTY, strict=True))
    numbers = dict.fromkeys(names, 1.0)
    path = view(graph, tmp_path / "table.html", {NASTY[0]: words, NASTY[2]: {"x": numbers["f"], **numbers}})
    page.open(path)
    page.page.click("#show-table")

    for title in (NASTY[0], NASTY[2]):
        page.page.select_option("#overlay", label=title)
        assert title in page.page.locator("#legend").text_content()
        assert page.page.get_by_role("columnheader", name=title).count() == 1
    cells = page.page.locator("#table .row span").all_text_contents()
    shown = [cell for cell in cells if cell.startswith(("</script>", "<!--", "<img", "{{ 7"))]
    assert shown == [NASTY[0], NASTY[1], NASTY[2], NASTY[4]]
    assert page.page.locator("script").count() == 4
    assert page.page.locator("img").count() == 0


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.text(st.sampled_from("<>/&!-\"'{}%scriptSCRIPT\n\x00 🎉\u2028\ud83c"), max_size=40),
        min_size=1,
        max_size=4,
    )
)
def test_no_name_leaves_its_place_in_the_page(names):
    data = graph_with_overlays(graph_of_names(names), title=names[0])
    text = embedded_json(data)

    assert "<" not in text
    assert ">" not in text
    assert json.loads(text) == json.loads(json.dumps(data))


# -- data -------------------------------------------------------------------------------------------------------


def test_the_same_graph_gives_the_same_page(module, tmp_path):
    first = view(module, tmp_path / "1.html").read_bytes()

    assert view(module, tmp_path / "2.html").read_bytes() == first


def test_viewing_changes_nothing(module, tmp_path):
    version = module.graph.version

    view(module, tmp_path / "1.html")

    assert module.graph.version == version


def test_a_graph_with_errors_is_shown_all_the_same(module, tmp_path):
    broken = fxplug.GraphModule(nn.Module(), fxplug.Graph())
    graph = broken.graph
    gone = graph.call_module("no.such.module", (graph.placeholder("x"),))
    graph.call_function(torch.add, (gone, gone))

    data = graph_data(broken)

    assert [node["n"] for node in data["nodes"]] == ["x", gone.name, "add"]
    assert view(broken, tmp_path / "broken.html").exists()


def test_fused_nodes_name_their_origins_and_who_made_them():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    result = fxplug.optimize(model, (torch.randn(1, 3, 8, 8),), measure=False)

    (fused,) = [node for node in graph_data(result.graph_module)["nodes"] if node.get("k") == "FusedConv2d"]
    assert any("fuse-conv-bn" in text for text in fused["h"])


def test_guards_effects_and_regions_are_told():
    def program(x):
        if x.shape[0] > 1:
            with torch.no_grad():
                return x.add_(1)
        return x

    data = graph_data(fxplug.trace(program, (torch.randn(2, 3),)))

    (written,) = [node for node in data["nodes"] if node.get("t") == "add_"]
    assert written["e"] == "writes argument 0"
    assert "no_grad" in written["r"][0]
    assert any("shape[0]" in text and "test_viz_viewer.py" in line for text, line, _ in data["guards"])


def test_tables_of_fxplug_are_overlays(module):
    inputs = (torch.randn(2, 4),)
    names = [node.name for node in module.graph.nodes]

    made = overlays_of(
        {"cost": fxplug.cost(module, inputs), "run": fxplug.profile(module, inputs, runs=1, warm_up=0)}, names
    )

    assert [overlay.title for overlay in made] == [
        "cost: multiply-adds", "cost: bytes moved", "cost: parameters", "cost: alive at the most", "run: measured time",
        "run: result",
    ]  # fmt: skip
    assert made[0].values["stem"] == 32
    assert all(not overlay.unmatched for overlay in made)


def test_a_table_of_another_graph_is_refused(module):
    with pytest.raises(InvalidArgumentError) as caught:
        overlays_of({"time": {"other": 1.0}}, ["x"])

    assert "no node is called 'other'" in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="Cannot lay 'time' over the graph: it is a list"):
        overlays_of({"time": [1]}, ["x"])
    with pytest.raises(InvalidArgumentError, match="for node 'x' it holds a object"):
        overlays_of({"time": {"x": object()}}, ["x"])


def test_numbers_that_are_none_are_left_out():
    (overlay,) = overlays_of(
        {"error": {"x": float("nan"), "y": float("inf"), "z": 1, "w": None, "gone": 2}}, ["x", "y", "z", "w"]
    )

    assert overlay.values == {"z": 1, "gone": 2}
    assert overlay.unmatched == ("gone",)


def test_something_else_than_a_graph_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError) as caught:
        view(nn.Linear(2, 2), tmp_path / "model.html")  # type: ignore[arg-type]

    assert str(caught.value) == (
        "Cannot show a Linear: only a GraphModule or a Graph has nodes to show. Capture it first: "
        "view(fxplug.symbolic_trace(module), path). [FXP-G003]"
    )


@pytest.mark.parametrize("place", ["missing/model.html", "folder"])
def test_a_page_that_cannot_be_written_leaves_nothing_behind(module, tmp_path, place):
    (tmp_path / "folder").mkdir()

    with pytest.raises(StorageError, match="Cannot write the page to"):
        view(module, tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


# -- what can be read -------------------------------------------------------------------------------------------


def test_names_in_the_tree_are_those_inside_their_module(page, module, tmp_path):
    page.open(view(module, tmp_path / "model.html", {"time": {"blocks_3_linear": 2.0}}))
    page.app("await app.setAll(true)")

    row = page.page.locator("#tree .row", has=page.page.locator('.label:text-is("Linear")')).nth(1)
    assert row.locator(".note").inner_text() == "linear"
    assert row.get_attribute("title").splitlines()[0] == "blocks_0_linear"
    page.page.select_option("#overlay", label="time")
    texts = page.page.locator("#tree .row .value").all_inner_texts()
    assert texts.count("2") == 4  # The blocks, those that repeat, one of them, and the node.
    assert page.app("app.model.nameIn(app.model.byName.get('stem'))") == "stem"


def test_a_long_thin_picture_begins_readable_and_stays_in_sight_as_a_whole(page, tmp_path):
    def chain(x):
        for _ in range(700):
            x = x.sin()
        return x

    page.open(view(fxplug.symbolic_trace(chain), tmp_path / "chain.html"))
    page.app("await app.setAll(true)")
    assert page.app("app.picture.transform.k") > 0.8

    page.page.keyboard.press("0")
    page.app("new Promise((done) => setTimeout(done, 200))")

    assert page.app("app.picture.transform.k") < 0.05
    # Somewhere in the middle row there is something else than background.
    different = page.app(
        "(() => { const { context, canvas } = app.picture; const at = canvas.height >> 1;"
        "const { data } = context.getImageData(0, at, canvas.width, 1); let count = 0;"
        "for (let x = 4; x < data.length; x += 4) count += Math.abs(data[x] - data[0]) > 5; return count; })()"
    )
    assert different >= 2

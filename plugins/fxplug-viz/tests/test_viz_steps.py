"""Steps of a pipeline and both sides of a difference, as pages with a slider."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fxplug
import fxplug.cli
from fxplug.errors import ConfigError, StorageError
from fxplug.passes import PassEvent, Pipeline, PipelineStep
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_viz import PassSteps, diff, plugin, view_diff
from fxplug_viz.pass_steps import diff_html


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout()

    def forward(self, x):
        return self.dropout(self.bn(self.conv(x)).relu())


PASSES = ["dead-code", "remove-identities", "fuse-conv-bn"]


@pytest.fixture(scope="module")
def inputs():
    return (torch.randn(1, 3, 8, 8),)


@pytest.fixture(scope="module")
def steps(inputs):
    heard = PassSteps(inputs)
    fxplug.optimize(Model().eval(), inputs, passes=PASSES, measure=False, observer=heard)
    return heard


def embedded(html):
    text = html.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    return json.loads(text)


# -- what is kept -----------------------------------------------------------------------------------------------


def test_there_is_a_step_for_each_pass_and_a_graph_for_each_that_changed_it(steps):
    assert [(step.name, step.kind) for step in steps.steps] == [
        ("", "start"),
        ("dead-code", "unchanged"),
        ("remove-identities", "changed"),
        ("fuse-conv-bn", "changed"),
    ]
    assert [len(step.shown.graph.nodes) for step in steps.steps] == [6, 6, 5, 4]
    assert steps.steps[1].shown is steps.steps[0].shown


def test_the_page_says_what_became_of_each_node(steps):
    data = embedded(steps.html(title="Mine"))

    assert data["title"] == "Mine"
    assert [graph["id"] for graph in data["graphs"]] == ["graph-0", "graph-1", "graph-2"]
    assert [step["graph"] for step in data["steps"]] == ["graph-0", "graph-0", "graph-1", "graph-2"]
    assert data["steps"][3]["note"] == "folded 1 batch norm; 5 nodes → 4 nodes: 3 same, 1 fused"
    conv = next(node for node in data["graphs"][2]["nodes"] if node["n"] == "conv")
    kind, before, details = conv["x"]
    assert kind == "fused"
    assert before == [["conv", "conv (Conv2d)"], ["bn", "bn (BatchNorm2d)"]]
    assert any("fuse-conv-bn" in text for text in details)
    assert {node["n"]: node.get("y") for node in data["graphs"][1]["nodes"]}["bn"] == "conv"
    assert data["graphs"][1]["gone"] == ["dropout"]
    assert conv["s"] == "float32[1, 4, 6, 6]"


def test_what_is_kept_shares_tensors_with_the_module_and_is_another_graph(inputs):
    module = fxplug.symbolic_trace(Model().eval())
    heard = PassSteps()
    weight = module.conv.weight

    PluginManager(candidates=[]).resolve_pipeline(PASSES).run(module, inputs, [heard])

    assert heard.steps[0].shown.conv.weight is weight
    assert heard.steps[0].shown.bn is not None
    assert "bn" not in {node.name for node in heard.steps[-1].shown.graph.nodes}
    assert all(step.shown.graph is not module.graph for step in heard.steps)


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "float32[1, 3, 8, 8]"), ((2,), "float32[2, 3, 8, 8]")]
)
def test_shapes_are_those_of_the_inputs_that_passes_get_or_of_ones_own(inputs, given, expected):
    heard = PassSteps(None if given is None else torch.randn(*given, 3, 8, 8))

    fxplug.optimize(Model().eval(), inputs, passes=PASSES, measure=False, observer=heard)

    graphs = embedded(heard.html())["graphs"]
    assert [graph["nodes"][0]["s"] for graph in graphs] == [expected] * 3
    assert type(heard.steps[0].shown.conv.weight) is nn.Parameter


def test_without_inputs_there_are_no_shapes():
    module = fxplug.symbolic_trace(Model().eval())
    heard = PassSteps()

    PluginManager(candidates=[]).resolve_pipeline(PASSES).run(module, None, [heard])

    assert all("s" not in node for graph in embedded(heard.html())["graphs"] for node in graph["nodes"])


def test_inputs_that_a_program_cannot_take_leave_the_page_without_shapes(inputs):
    heard = PassSteps(torch.randn(1, 7))

    fxplug.optimize(Model().eval(), inputs, passes=PASSES, measure=False, observer=heard)

    assert [step.kind for step in heard.steps] == ["start", "unchanged", "changed", "changed"]
    assert all("s" not in node for graph in embedded(heard.html())["graphs"] for node in graph["nodes"])


def test_a_pass_that_fails_is_a_step_too(inputs):
    class Fails(fxplug.Pass):
        def run(self, module, context):
            module.graph.find_nodes(op="call_method")[0].target = "tanh"
            raise ValueError("<b>no</b>")

    module = fxplug.symbolic_trace(Model().eval())
    heard = PassSteps()
    record = fxplug.PassRecord("fails", Fails, "Fails.")
    reports = Pipeline("own", [PipelineStep("fails", record)], on_error="rollback").run(
        module, inputs, [heard]
    )

    assert reports[0].error
    assert [(step.kind, step.shown is heard.steps[0].shown) for step in heard.steps] == [
        ("start", True),
        ("failed", True),
    ]
    assert heard.steps[1].note == "failed and was undone: <b>no</b>"
    assert heard.steps[1].shown.graph.find_nodes(op="call_method")[0].target == "relu"
    assert "<b>no" not in heard.html()


def test_a_module_that_cannot_be_copied_is_kept_as_a_graph(monkeypatch):
    def refuse(self, memo):
        raise TypeError("no copies")

    module = fxplug.symbolic_trace(Model().eval())
    monkeypatch.setattr(fxplug.GraphModule, "__deepcopy__", refuse)
    heard = PassSteps()
    heard(PassEvent("nothing", "own", 0, 1, module))

    assert isinstance(heard.steps[0].shown, fxplug.Graph)
    assert heard.steps[0].shown is not module.graph
    assert len(embedded(heard.html())["graphs"][0]["nodes"]) == 6


def test_steps_that_nobody_took_are_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        PassSteps().view(tmp_path / "steps.html")

    assert str(caught.value).startswith("Cannot show the steps of a pipeline: none were heard of.")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(steps, tmp_path):
    with pytest.raises(StorageError, match="Cannot write the page to"):
        steps.view(tmp_path / "missing" / "steps.html")


# -- in the browser ---------------------------------------------------------------------------------------------


def test_the_slider_goes_from_pass_to_pass(page, steps, tmp_path):
    page.open(steps.view(tmp_path / "steps.html"))
    assert page.text("#step-text").startswith("4 of 4: fuse-conv-bn")
    assert page.visible() == ["x", "conv", "relu", "output"]
    assert "conv (Conv2d) + bn (BatchNorm2d)" in page.text("#details")
    fused = page.app("app.colouring.colour(app.model.byName.get('conv'))")
    assert fused != page.app("app.colouring.colour(app.model.byName.get('x'))")
    assert "fused" in page.text("#legend")

    page.page.locator("#step").focus()
    page.page.keyboard.press("ArrowLeft")
    page.wait("fxplugView.app.picture.scene.boxes.size === 5")
    assert page.text("#step-text").startswith("3 of 4: remove-identities")
    assert "1 removed" in page.text("#details")
    page.page.keyboard.press("p")
    page.wait("fxplugView.app.shownStep === 1 && fxplugView.app.picture.scene.boxes.size === 6")
    assert "(nothing changed)" in page.text("#step-text")
    assert page.text("#legend") == ""
    page.page.locator("#step").fill("0")
    page.wait("fxplugView.app.shownStep === 0")
    assert page.page.locator("#step-back").is_disabled()
    assert page.page.evaluate("location.hash") == "#step=1"


def test_what_is_selected_goes_along(page, steps, tmp_path):
    page.open(steps.view(tmp_path / "steps.html"), "#step=3&node=bn")
    assert page.text("#details h2") == "bn"

    page.page.click("#step-on")

    page.wait("location.hash === '#step=4&node=conv'")
    assert page.text("#details h2") == "conv"
    assert "FUSED FROM" in page.text("#details").upper()
    page.page.locator("#details button", has_text="bn (BatchNorm2d)").click()
    page.wait("location.hash === '#step=3&node=bn'")
    page.page.locator("#details section", has_text="In the next step").get_by_role("button").click()
    page.wait("location.hash === '#step=4&node=conv'")


def test_what_was_removed_leads_to_where_it_was(page, steps, tmp_path):
    page.open(steps.view(tmp_path / "steps.html"), "#step=3")
    page.page.locator("summary", has_text="1 removed").click()

    page.page.locator("#details").get_by_role("button", name="dropout", exact=True).click()

    page.wait("location.hash === '#step=2&node=dropout'")
    assert "It is gone." in page.text("#details")


def test_both_sides_of_a_difference_are_on_one_page(page, steps, tmp_path):
    difference = diff(steps.steps[0].shown, steps.steps[-1].shown)
    page.open(view_diff(difference, tmp_path / "diff.html"))

    assert page.text("#step-text") == "2 of 2: after 6 nodes → 4 nodes: 2 same, 1 changed, 1 fused, 1 removed"
    changed = page.page.locator("#details .changes details", has_text="1 changed").inner_text()
    assert "argument %" in changed
    page.page.keyboard.press("p")
    page.wait("fxplugView.app.picture.scene.boxes.size === 6")
    assert page.page.locator("#graph-choice").is_hidden()


NASTY = (
    "</script><script>alert(1)</script><!-- {{ 7 * 7 }} \"quote\" 'one' a->b \n\u2028 \U0001f389 \ud83c <b>"
)


class Named:
    def __init__(self, name):
        self.__name__, self.__module__ = name, "names"

    def __call__(self, *values):
        return values[0]


def named_graph(*names):
    graph = fxplug.Graph()
    value = graph.placeholder("x")
    for name in names:
        value = graph.call_function(Named(name), (value, name * 100))
    graph.output(value)
    return graph


def test_no_name_is_interpreted_on_a_page_with_steps(page, tmp_path):
    difference = diff(named_graph("a", NASTY, NASTY), named_graph(NASTY, "b"))
    path = view_diff(difference, tmp_path / "names.html", title=NASTY)
    text = path.read_text(encoding="utf-8")

    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert "<" not in data
    assert "alert(1)" in data
    page.open(path)
    assert page.page.locator("script").count() == 4
    assert page.page.locator("b").count() == 0
    for at in range(4):
        page.app(f"await app.select({at}, {{ move: true }})")
    page.page.keyboard.press("p")
    page.wait("fxplugView.app.shownStep === 0")


HOSTILE = st.text(
    st.sampled_from("<>/&!-\"'{}%|\\\\;scriptSCRIPT\n\x00 \U0001f389\u2028\ud83c"), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(HOSTILE, min_size=1, max_size=3), st.lists(HOSTILE, min_size=1, max_size=3), HOSTILE)
def test_no_name_leaves_its_place_in_pages_of_steps_and_differences(before, after, said):
    first, second = named_graph(*before), named_graph(*after)
    heard = PassSteps()
    for graph, name in ((first, before[0]), (second, after[0])):
        module = fxplug.GraphModule(nn.Module(), graph)
        heard(PassEvent(name, "own", 0, 1, module, result=fxplug.PassResult(modified=True, summary=said)))
    pages = [heard.html(title=said), diff_html(diff(first, second), title=said)]

    for html in pages:
        text = html.partition('id="data">')[2].partition("</script>")[0]
        assert "<" not in text
        assert ">" not in text
        assert html.count("<script") == 4
    data = embedded(pages[0])
    assert [step["title"] for step in data["steps"]] == ["as captured", before[0], after[0]]
    assert data["steps"][1]["note"].startswith(said)


def test_empty_graphs_have_a_page_with_steps(page, tmp_path):
    page.open(view_diff(diff(fxplug.Graph(), fxplug.Graph()), tmp_path / "empty.html"))

    assert "Every node is the same." in page.text("#details")
    page.page.keyboard.press("p")
    page.wait("fxplugView.app.shownStep === 0")


def test_a_page_without_steps_has_no_slider(page, steps, tmp_path):
    page.open(fxplug_view(steps.steps[0].shown, tmp_path / "one.html"))

    assert page.page.locator("#steps").is_hidden()
    page.page.keyboard.press("n")
    assert page.page.evaluate("location.hash") == ""


def fxplug_view(module, path):
    from fxplug_viz import view

    return view(module, path)


# -- the commands -----------------------------------------------------------------------------------------------

MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).eval()
"""


@pytest.fixture
def run_fxplug(monkeypatch, tmp_path):
    manager = PluginManager(candidates=[PluginCandidate.of_module(plugin, "viz")], environ={})
    monkeypatch.setattr("fxplug.plugins.default_manager", lambda: manager)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    return lambda *arguments: CliRunner().invoke(fxplug.cli.main, [str(argument) for argument in arguments])


def test_optimize_leaves_a_page_with_the_steps(run_fxplug, tmp_path):
    result = run_fxplug(
        "optimize",
        "model.py:build",
        "--example",
        "1x3x8x8",
        "--out",
        "out",
        "--no-measure",
        "--pass",
        "fuse-conv-bn",
    )

    assert result.exit_code == 0, result.output
    data = embedded((tmp_path / "out" / "steps.html").read_text(encoding="utf-8"))
    assert [(step["title"], step["kind"]) for step in data["steps"]] == [
        ("as captured", "start"),
        ("fuse-conv-bn", "changed"),
    ]
    assert data["title"] == "Sequential, pass by pass"
    assert '<a href="steps.html">' in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "`steps.html` shows the graph behind each pass." in (tmp_path / "out" / "report.md").read_text()
    # No pass of these notes shapes; the example tells them.
    assert [[node.get("s") for node in graph["nodes"]] for graph in data["graphs"]] == [
        ["float32[1, 3, 8, 8]", *["float32[1, 4, 6, 6]"] * 4],
        ["float32[1, 3, 8, 8]", *["float32[1, 4, 6, 6]"] * 3],
    ]


def test_view_runs_a_pipeline_or_passes(run_fxplug, tmp_path):
    result = run_fxplug("view", "model.py:build", "--pass", "fuse-conv-bn", "--out", "steps.html")
    assert result.exit_code == 0, result.output
    assert result.output == "Wrote steps.html: 1 pass, 4 nodes behind the last one. Open it in a browser.\n"

    result = run_fxplug(
        "view", "model.py:build", "--example", "1x3x8x8", "--pipeline", "inference", "--out", "a.html"
    )
    assert result.exit_code == 0, result.output
    assert len(embedded((tmp_path / "a.html").read_text(encoding="utf-8"))["steps"]) > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline", "a", "--pass", "b"], "--pipeline and --pass exclude each other"),
        (["--pass", "fuse-conv-bn", "--example", "1x3x8x8", "--profile"], "are about one graph, and passes make"),
        (["--pass", "fuse-conv"], "There is no pass named 'fuse-conv'"),
    ],
)  # fmt: skip
def test_view_says_what_is_wrong_with_passes(run_fxplug, tmp_path, arguments, message):
    result = run_fxplug("view", "model.py:build", *arguments)

    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert not list(tmp_path.glob("*.html"))


def test_diff_writes_a_page(run_fxplug, tmp_path):
    result = run_fxplug(
        "diff",
        "model.py:build",
        "model.py:build",
        "--example",
        "1x3x8x8",
        "--out",
        "diff.html",
        "--title",
        "Both",
    )

    assert result.exit_code == 0, result.output
    assert "Wrote diff.html." in result.output
    data = embedded((tmp_path / "diff.html").read_text(encoding="utf-8"))
    assert (data["title"], [step["title"] for step in data["steps"]]) == ("Both", ["before", "after"])

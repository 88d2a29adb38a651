"""``report.html`` and ``fxplug view``: what they say, and that nothing in them is interpreted."""

from __future__ import annotations

import copy
import json
import re
import time
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import fxplug
import fxplug.cli
from fxplug.plugins import PluginCandidate, PluginManager, ReportContext
from fxplug_viz import plugin
from fxplug_viz.report import report_html

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
import torch
from torch import nn

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        return self.bn(self.conv(x)).relu()

def build():
    return Small()
"""


class Text(HTMLParser):
    """The text of a page, without its style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        if self.tags and self.tags[-1] != "style":
            self.parts.append(data)

    def __str__(self) -> str:
        return " ".join(" ".join(self.parts).split())


@pytest.fixture
def run_fxplug(monkeypatch, tmp_path):
    manager = PluginManager(candidates=[PluginCandidate.of_module(plugin, "viz")], environ={})
    monkeypatch.setattr("fxplug.plugins.default_manager", lambda: manager)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(fxplug.cli.main, [str(argument) for argument in arguments])

    return run


@pytest.fixture
def optimised(run_fxplug, tmp_path) -> Path:
    result = run_fxplug("optimize", "model.py:build", "--example", "1x3x8x8", "--out", "out", "--runs", "2")
    assert result.exit_code == 0, result.output
    assert "report.html (" in result.output
    return tmp_path / "out"


# -- the report -------------------------------------------------------------------------------------------------


def test_optimize_leaves_a_report_that_reads_from_top_to_bottom(optimised):
    html = (optimised / "report.html").read_text(encoding="utf-8")
    page = Text(html)
    text = str(page)

    expected = [
        "Small, optimised", "float32[1, 3, 8, 8]", "One call takes", "the program went from 5 to 3 steps.",
        "Time of one call", "original", "optimised", "What was captured", "5 steps, called nodes",
        "What the passes did",
        "fuse-conv-bn", "folded 1 batch norm", "5 → 4", "How far the result is from the original", "passed",
        "Biggest nodes", "FusedConv2d", "3.89 thousand", "What to do with it", "PyTorch",
    ]  # fmt: skip
    place = 0
    for words in expected:
        place = text.find(words, place)
        assert place >= 0, words
        place += len(words)
    assert "script" not in page.tags
    assert "@media print" in html
    assert "default-src 'none'" in unescape(html)


def test_the_page_and_the_terminal_tell_one_time_of_capturing(run_fxplug, tmp_path, monkeypatch):
    def slow(module):
        time.sleep(0.2)
        return copy.deepcopy(module)

    monkeypatch.setattr("fxplug.api.preparing.copy_module", slow)

    result = run_fxplug("optimize", "model.py:build", "--example", "1x3x8x8", "--out", "out", "--no-measure")

    (told,) = re.findall(r"^ok +trace .*?(\S+ m?s)$", result.output, re.MULTILINE)
    assert float(told.split()[0]) >= 200
    text = str(Text((tmp_path / "out" / "report.html").read_text(encoding="utf-8")))
    assert f"That took {told}, with the copy that the passes work on" in text


def test_it_is_said_where_nothing_could_be_compared(run_fxplug, tmp_path):
    run_fxplug("optimize", "model.py:build", "--example", "0x3x8x8", "--out", "out", "--no-measure")

    text = str(Text((tmp_path / "out" / "report.html").read_text(encoding="utf-8")))
    assert "Nothing was compared with the original" in text
    assert "bit by bit" not in text


def test_it_is_said_for_which_sizes_a_backend_compiled(run_fxplug, tmp_path, monkeypatch):
    monkeypatch.setattr("fxplug.lower.eager.EagerBackend.profile", fxplug.Backend.profile)
    monkeypatch.setattr("fxplug.lower.eager.EagerBackend.compile", lambda self, part, *_: copy.copy(part))
    wanted = ("--example", "1x3x8x8", "--out", "out", "--no-measure", "--backend", "eager")
    run_fxplug("optimize", "model.py:build", *wanted)

    text = str(Text((tmp_path / "out" / "report.html").read_text(encoding="utf-8")))
    assert "What runs now was lowered to 'eager' for the very sizes of the examples." in text


def test_the_other_reports_name_the_page(optimised):
    report = json.loads((optimised / "report.json").read_text(encoding="utf-8"))

    assert report["files"] == [
        "module.fxplug", "module.py", "report.json", "report.md", "report.html", "steps.html",
    ]  # fmt: skip
    assert "- `report.html`: from a section above" in (optimised / "report.md").read_text(encoding="utf-8")


def test_a_folder_with_the_page_is_replaced_and_one_with_a_stranger_is_not(optimised, run_fxplug):
    again = ("optimize", "model.py:build", "--example", "1x3x8x8", "--out", "out", "--no-measure")
    result = run_fxplug(*again)
    assert result.exit_code == 0, result.output
    assert "was not measured" in (optimised / "report.html").read_text(encoding="utf-8")

    (optimised / "mine.txt").write_text("mine")
    result = run_fxplug(*again)
    assert result.exit_code == 1
    assert "mine.txt" in result.output


def test_nothing_in_a_report_is_interpreted(optimised):
    data = json.loads((optimised / "report.json").read_text(encoding="utf-8"))
    nasty = "<script>alert(1)</script>{{ 7 * 7 }}\"'&amp;\n🎉"
    data["model"]["class"] = data["model"]["reference"] = nasty
    data["passes"][0].update(name=nasty, summary=nasty, error=nasty)
    data["warnings"] = [nasty, "long" * 2500]
    data["check"]["values"][0].update(path=nasty, max_abs_error=None)
    module = fxplug.symbolic_trace(nn.ReLU())

    page = Text(report_html(ReportContext(module, (torch.ones(1),), data)))

    assert "script" not in page.tags
    assert str(page).count("<script>alert(1)</script>{{ 7 * 7 }}\"'&amp; 🎉") >= 6
    assert "(8,000 more characters)" in str(page)
    assert "not a number" in str(page)


def hostile_everywhere(value, text):
    """Return the data of a report with a text in place of every text."""
    if isinstance(value, dict):
        return {key: hostile_everywhere(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [hostile_everywhere(each, text) for each in value]
    return text if isinstance(value, str) else value


@pytest.fixture(scope="module")
def data_of_a_report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    (folder / "small.py").write_text(MODEL)
    result = CliRunner().invoke(
        fxplug.cli.main,
        [
            "optimize",
            f"{folder / 'small.py'}:build",
            "--example",
            "1x3x8x8",
            "--out",
            str(folder / "out"),
            "--runs",
            "1",
        ],
    )
    assert result.exit_code == 0, result.output
    data = json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
    data["warnings"] = ["warning"]
    data["backend"] = {
        "name": "engine", "runs_the_module": False, "fallback": "too small", "coverage": 0.25,
        "unsupported": [{"node": "n", "target": "t", "reason": "no converter", "source": "m.py:1"}],
        "partitions": [{"name": "p", "backend": "engine", "nodes": ["a"], "compute_nodes": 1, "transfer_bytes": 1,
                        "fallback": "broke"}],
    }  # fmt: skip
    return data


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(st.sampled_from("<>/&!-\"'{}%#scriptSCRIPT\n\x00 🎉\u2028"), min_size=1, max_size=40))
def test_no_text_of_a_report_is_interpreted(data_of_a_report, text):
    plain = Text(
        report_html(ReportContext(fxplug.symbolic_trace(nn.ReLU()), (torch.ones(1),), data_of_a_report))
    )

    data = hostile_everywhere(data_of_a_report, text)
    html = report_html(ReportContext(fxplug.symbolic_trace(nn.ReLU()), (torch.ones(1),), data))

    assert Text(html).tags == plain.tags
    assert "{{" not in html or "{{" in text


def test_guards_and_a_backend_are_reported(optimised):
    def program(x):
        return x + 1 if x.shape[0] > 1 else x

    data = json.loads((optimised / "report.json").read_text(encoding="utf-8"))
    unsupported = [
        {"node": f"n{at}", "target": "t", "reason": "no converter", "source": "m.py:1"} for at in range(50)
    ]
    data["backend"] = {
        "name": "engine", "runs_the_module": False, "fallback": "too small", "coverage": 0.25,
        "unsupported": unsupported,
        "partitions": [
            {"name": f"engine_{at}", "backend": "engine", "nodes": nodes, "compute_nodes": len(nodes),
             "transfer_bytes": 4096, "fallback": fallback}
            for at, (nodes, fallback) in enumerate([(["conv", "bn"], None), (["relu"] * 200, "<b>it broke</b>")])
        ],
    }  # fmt: skip
    module = fxplug.trace(program, (torch.ones(2),))
    assert data["capture"]["mode"] == "symbolic"
    as_captured = str(Text(report_html(ReportContext(module, (torch.ones(2),), data))))
    data["capture"]["mode"] = "value"

    text = str(Text(report_html(ReportContext(module, (torch.ones(2),), data))))

    assert "captured without values (mode symbolic" in as_captured
    assert "captured on the example inputs (mode value" in text
    assert "shape[0]" in text
    assert "test_viz_report.py" in text
    assert "Backend engine" in text
    assert "engine_0 2 4.10 kB runs in engine conv, bn" in text
    assert "engine_1 200 4.10 kB stays in PyTorch: <b>it broke</b> relu, relu" in text
    assert "25.0%" in text
    assert "10 more are in report.json." in text


def report_text(data):
    return str(Text(report_html(ReportContext(fxplug.symbolic_trace(nn.ReLU()), (torch.ones(1),), data))))


def test_a_backend_that_runs_parts_of_a_module_is_told_of_as_such(data_of_a_report):
    data = copy.deepcopy(data_of_a_report)
    part = {"backend": "engine", "nodes": ["a"], "compute_nodes": 1, "transfer_bytes": None, "fallback": None}
    data["backend"] = {
        "name": "engine", "runs_the_module": False, "fallback": None, "coverage": 0.9996, "unsupported": [],
        "left": [{"node": "n", "target": "t", "reason": "too small to be worth it", "source": "m.py:1"}],
        "partitions": [{"name": "p", **part}, {"name": "q", **part}, {"name": "r", **part, "fallback": "broke"}],
    }  # fmt: skip

    text = report_text(data)

    runs = "supports 99.9% of its calls, and runs 2 parts of it; PyTorch runs the rest."
    assert f"The backend engine {runs}" in text
    assert "It supports 99.9% of the calls, and runs 2 parts of it; PyTorch runs the rest." in text
    assert "None" not in text
    assert "p 1 not known runs in engine" in text
    assert "n t too small to be worth it m.py:1" in text

    data["backend"].update(runs_the_module=True, coverage=1.0, left=[])
    assert "The backend engine supports all of its calls, and runs it." in report_text(data)
    data["backend"].update(runs_the_module=False, fallback="too small.", coverage=0.0)
    assert "supports none of its calls, and does not run it: too small. " in report_text(data)


def test_passes_that_failed_are_told_of_at_the_top(data_of_a_report):
    data = copy.deepcopy(data_of_a_report)
    data["passes"][0].update(error="ValueError: no")
    name = data["passes"][0]["name"]
    assert f"1 pass failed and was undone: {name}." in report_text(data)
    assert "failed and was undone: ValueError: no" in report_text(data)
    data["passes"][1].update(error="ValueError: no")
    assert f"2 passes failed and were undone: {name}, {data['passes'][1]['name']}." in report_text(data)


def test_no_page_is_written_where_no_report_is():
    (record,) = plugin.fxplug_register_report_sections()

    assert record.factory(ReportContext(fxplug.symbolic_trace(nn.ReLU()), (), {})) is None


# -- the command ------------------------------------------------------------------------------------------------


def test_view_takes_a_file(run_fxplug, optimised):
    result = run_fxplug("view", "out/module.fxplug")

    assert result.exit_code == 0, result.output
    assert result.output == "Wrote module.html: 3 nodes. Open it in a browser.\n"
    assert "fuse-conv-bn" in (optimised.parent / "module.html").read_text(encoding="utf-8")


def test_view_captures_a_program_and_lays_numbers_over_it(run_fxplug, tmp_path):
    (tmp_path / "own.csv").write_text("name,error,note\nconv,0.5,bad\nbn,0.25,\n", encoding="utf-8")

    result = run_fxplug(
        "view", "model.py:build", "--example", "1x3x8x8", "--profile", "--runs", "1", "--table", "own.csv",
        "--out", "a.html", "--title", "Mine", "--device-name", "nvidia-h200-sxm",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    (graph,) = json.loads(text.partition('id="data">')[2].partition("</script>")[0])["graphs"]
    assert graph["title"] == "Mine"
    titles = [overlay["title"] for overlay in graph["overlays"]]
    expected = [
        "cost: multiply-adds",
        "profile: measured time",
        "nvidia-h200-sxm: predicted time",
        "own: error",
        "own: note",
    ]
    assert set(expected) <= set(titles)
    errors = graph["overlays"][titles.index("own: error")]
    assert [(graph["nodes"][at]["n"], value) for at, value in errors["values"]] == [
        ("conv", 0.5),
        ("bn", 0.25),
    ]


def test_view_without_an_example_captures_symbolically(run_fxplug, tmp_path):
    result = run_fxplug("view", "model.py:build")

    assert result.exit_code == 0, result.output
    assert (tmp_path / "build.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.fxplug"], "there is no such file"),
        (["model.py:build", "--profile"], "--profile and --device-name need inputs"),
        (["model.py:build", "--out", "missing/a.html"], "Cannot write the page to"),
        (["model.py:build", "--table", "model.py"], "no node is called"),
        (["model.py:build", "--table", "one.csv"], "its first line names 1 column."),
    ],
)
def test_view_says_what_is_wrong(run_fxplug, tmp_path, arguments, message):
    (tmp_path / "one.csv").write_text("name\nconv\n")
    if "model.py" in arguments:
        (tmp_path / "model.csv").write_text("name,x\nother,1\n")
        arguments = [*arguments[:-1], "model.csv"]

    result = run_fxplug("view", *arguments)

    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert not list(tmp_path.glob("*.html"))


# -- what people are told ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (102_400_000, 102_400_000, "102 MB"),
        (102_400_000, 102_100_000, "102 MB (less by 300 kB)"),
        (102_400_000, 102_400_100, "102 MB (more by 100 B)"),
        (4_000_000, 1_000_000, "4 MB → 1 MB"),
    ],
)
def test_a_change_of_weights_is_told_although_both_numbers_read_the_same(optimised, before, after, text):
    data = json.loads((optimised / "report.json").read_text(encoding="utf-8"))
    data["passes"][0].update(bytes_before=before, bytes_after=after)

    page = report_html(ReportContext(fxplug.symbolic_trace(nn.ReLU()), (torch.ones(1),), data))

    assert f"<td>{text}</td>" in page


def test_a_report_is_laid_out_for_paper_and_fits_it(optimised, page):
    page.page.emulate_media(media="print", color_scheme="dark")
    page.page.set_viewport_size({"width": 680, "height": 1000})  # A4 without its margins.
    page.page.goto((optimised / "report.html").as_uri())

    assert page.page.evaluate("document.documentElement.scrollWidth") <= 680
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.page.pdf(format="A4").startswith(b"%PDF")


def test_a_report_fits_a_telephone(optimised, page):
    page.page.set_viewport_size({"width": 400, "height": 800})
    page.page.goto((optimised / "report.html").as_uri())

    assert page.page.evaluate("document.documentElement.scrollWidth") <= 400

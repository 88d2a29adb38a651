"""What the plugin tells fxplug, and the command that it adds."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import fxplug
import fxplug.cli
from fxplug.analyze import propagate_shapes
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_viz import dot_text, plugin
from fxplug_viz.rendering import render

if TYPE_CHECKING:
    from pathlib import Path


needs_graphviz = pytest.mark.skipif(
    shutil.which("dot") is None and "CI" not in os.environ, reason="Graphviz (dot) is not installed"
)


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "viz")], environ={})


@pytest.fixture
def saved(tmp_path) -> Path:
    module = fxplug.symbolic_trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    propagate_shapes(module, torch.randn(1, 4))
    fxplug.save(module, tmp_path / "module.fxplug")
    return tmp_path / "module.fxplug"


def test_it_answers_for_text_and_pictures(manager):
    module = fxplug.symbolic_trace(nn.Sequential(nn.ReLU()), manager=manager)

    assert fxplug.represent(module, "dot", manager=manager) == dot_text(module)
    with pytest.raises(fxplug.PluginError, match="no active plugin knows that format"):
        fxplug.represent(module, "gif", manager=manager)


@needs_graphviz
def test_notebooks_show_modules_and_graphs_as_pictures(manager, monkeypatch):
    monkeypatch.setattr("fxplug.api.representation.default_manager", lambda: manager)
    module = fxplug.symbolic_trace(nn.Sequential(nn.ReLU()), manager=manager)

    assert module._repr_svg_() == fxplug.represent(module, "svg", manager=manager)
    assert module._repr_html_().startswith("<div ")
    assert module._repr_html_().endswith("</svg>\n</div>")
    assert module.graph._repr_svg_() == module._repr_svg_()
    assert fxplug.represent(module, "png", manager=manager).startswith(b"\x89PNG")
    alone = fxplug.Graph()
    alone.output(alone.call_module("part", (alone.get_attr("weight"),)))
    assert ">call_module: part</text>" in alone._repr_svg_()


def test_a_notebook_shows_a_large_module_as_a_tree_and_draws_nothing(manager, monkeypatch):
    monkeypatch.setattr("fxplug.api.representation.default_manager", lambda: manager)
    monkeypatch.setattr("fxplug_viz.notebook.render", lambda *_: pytest.fail("a picture was made"))

    def chain(x):
        for _ in range(2000):
            x = x + "<b>"
        return x

    module = fxplug.symbolic_trace(chain, manager=manager)

    assert module._repr_svg_() is None
    assert module.graph._repr_svg_() is None
    assert module._repr_html_().startswith("<div ")
    assert "&lt;b&gt;" in module._repr_html_()
    assert "<b>" not in module._repr_html_()
    assert sorted(module._repr_mimebundle_()) == ["text/html", "text/plain"]


def test_without_graphviz_a_notebook_says_so_and_shows_text(manager, monkeypatch):
    monkeypatch.setattr("fxplug.api.representation.default_manager", lambda: manager)
    monkeypatch.setenv("PATH", "")
    render.cache_clear()
    module = fxplug.symbolic_trace(nn.Sequential(nn.ReLU(), nn.Tanh()), manager=manager)

    with pytest.warns(UserWarning, match="Shown as text: .*'dot' of Graphviz was not found on PATH"):
        assert module._repr_svg_() is None
    with pytest.warns(UserWarning, match="Shown as text"):
        assert module._repr_mimebundle_() is None


@pytest.fixture
def run_fxplug(manager, monkeypatch):
    monkeypatch.setattr("fxplug.plugins.default_manager", lambda: manager)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(fxplug.cli.main, [str(argument) for argument in arguments])

    return run


# -- what it offers ---------------------------------------------------------------------------------------------


def test_it_offers_commands():
    records = list(plugin.fxplug_register_commands())

    assert [record.name for record in records] == ["draw", "diff", "view"]
    assert all(isinstance(record.factory(), click.Command) for record in records)


def test_the_host_takes_the_plugin(manager):
    (info,) = manager.plugin_infos()

    assert info.status == "active"
    assert info.hooks == ("fxplug_register_commands", "fxplug_register_report_sections", "fxplug_represent")
    assert info.commands == ("viz:draw", "viz:diff", "viz:view")


def test_the_plugin_needs_neither_click_nor_jinja_nor_graphviz_until_it_is_called():
    program = """
import sys
for name in ("click", "rich", "graphviz", "jinja2"):
    sys.modules[name] = None
from fxplug_viz import dot_text, plugin
record = next(iter(plugin.fxplug_register_commands()))
import fxplug
assert dot_text(fxplug.symbolic_trace(lambda x: x + 1, manager=fxplug.plugins.PluginManager(candidates=[])))
try:
    record.factory()
except ImportError:
    print("click was asked for")
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip() == "click was asked for"


# -- the command ------------------------------------------------------------------------------------------------


def test_draw_writes_the_text_of_a_saved_module(run_fxplug, saved, tmp_path):
    out = tmp_path / "graph.dot"
    out.write_text("older")

    result = run_fxplug("draw", saved, "--out", out)

    assert result.exit_code == 0, result.output
    assert result.stdout == f"Wrote {out}: 4 nodes, 3 edges, as DOT text.\n"
    text = out.read_text(encoding="utf-8")
    assert text == dot_text(fxplug.load(saved))
    assert "float32[1, 3]" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.dot", "module.fxplug"]


def test_draw_takes_title_and_direction(run_fxplug, saved, tmp_path):
    out = tmp_path / "graph.gv"

    result = run_fxplug("draw", saved, "--out", out, "--title", "A title", "--direction", "LR")

    assert result.exit_code == 0, result.output
    assert out.read_text() == dot_text(fxplug.load(saved), title="A title", direction="LR")


MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())
"""


@pytest.fixture
def reference(tmp_path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:build"


@needs_graphviz
def test_draw_captures_a_model_and_makes_a_picture(run_fxplug, reference, tmp_path):
    out = tmp_path / "graph.svg"

    result = run_fxplug(
        *("draw", reference, "--example", "1x4", "--out", out, "--color-by", "dtype", "--hide", "get_attr"),
        *("--no-legend", "--no-clusters"),
    )

    assert result.exit_code == 0, result.output
    assert result.stdout == f"Wrote {out}: 4 nodes, 3 edges, as SVG.\n"
    assert "float32[1, 3]" in out.read_text(encoding="utf-8").replace("&#160;", " ")


@pytest.mark.parametrize("command", ["draw", "view"])
def test_a_function_gives_examples_by_name(run_fxplug, tmp_path, command):
    (tmp_path / "named.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n    def forward(self, x, scale=1.0, bias=None):\n        return x * scale + bias\n"
        "def inputs():\n    return {'bias': torch.ones(3), 'x': torch.ones(2, 3)}\n"
        "def wrong():\n    return {'bais': torch.ones(3)}\n"
    )
    out = tmp_path / ("graph.dot" if command == "draw" else "graph.html")
    model = f"{tmp_path / 'named.py'}:Net"

    result = run_fxplug(command, model, "--example-from", f"{tmp_path / 'named.py'}:inputs", "--out", out)
    refused = run_fxplug(command, model, "--example-from", f"{tmp_path / 'named.py'}:wrong", "--out", out)

    assert result.exit_code == 0, result.output
    assert "float32" in out.read_text()
    assert refused.exit_code != 0
    assert "bais" in refused.output


def test_draw_prints_a_tree(run_fxplug, reference):
    result = run_fxplug("draw", reference, "--example", "1x4", "--text")

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[2] == "├─ _0  0 (Linear)  float32[1, 3]  weight [3, 4], bias [3]"


@pytest.mark.parametrize("options", [(), ("--text", "--out", "graph.svg")])
def test_draw_wants_either_a_file_or_text(run_fxplug, saved, options):
    result = run_fxplug("draw", saved, *options)

    assert result.exit_code == 2
    assert "Say either where the picture goes, with --out FILE, or --text." in result.output


@pytest.mark.parametrize("name", ["graph.gif", "graph"])
def test_draw_refuses_formats_that_nobody_knows(run_fxplug, saved, tmp_path, name):
    result = run_fxplug("draw", saved, "--out", tmp_path / name)

    assert result.exit_code == 2
    assert f"{name}': the name does not say which format is meant." in result.output
    assert not (tmp_path / name).exists()


def test_diff_tells_what_became_of_a_model(run_fxplug, reference, saved, tmp_path):
    result = run_fxplug("diff", saved, reference, "--out", tmp_path / "diff.dot")

    assert result.exit_code == 0, result.output
    assert result.stdout == f"4 nodes -> 4 nodes: 4 same\nWrote {tmp_path / 'diff.dot'}.\n"
    assert "4 same</FONT>" in (tmp_path / "diff.dot").read_text()


OTHER = """
import torch

class Other(torch.nn.Module):
    def forward(self, left, right):
        return torch.cumsum(left @ right, 0)
"""


def test_diff_of_programs_with_nothing_in_common_has_every_node(run_fxplug, saved, tmp_path):
    (tmp_path / "other.py").write_text(OTHER)
    other = f"{tmp_path / 'other.py'}:Other"

    result = run_fxplug("diff", saved, other, "--out", tmp_path / "diff.html")

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "4 nodes -> 5 nodes: 5 added, 4 removed; the two programs have nothing in common"
    assert [line.split()[0] for line in lines[1:-1]] == ["removed"] * 4 + ["added"] * 5
    assert " → Other</title>" in (tmp_path / "diff.html").read_text(encoding="utf-8")
    assert run_fxplug("diff", other, saved, "--out", tmp_path / "diff.dot").exit_code == 0
    assert '"before: matmul" [label=' in (tmp_path / "diff.dot").read_text()


def test_diff_and_view_refuse_names_that_say_something_else(run_fxplug, saved, tmp_path):
    result = run_fxplug("diff", saved, saved, "--out", tmp_path / "diff.gif")
    assert result.exit_code == 2
    assert ".pdf, .html, or name the format" in result.output

    result = run_fxplug("view", saved, "--out", tmp_path / "model.svg")
    assert result.exit_code == 2
    assert "model.svg': the name is that of a picture, and a browser would not open it." in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["module.fxplug"]


def test_diff_gives_data_to_programs(run_fxplug, saved):
    result = run_fxplug("diff", saved, saved, "--json")

    data = json.loads(result.stdout)
    assert data["counts"]["same"] == 4
    assert data["changes"][0] == {"kind": "same", "before": ["input_1"], "after": "input_1", "details": []}


def test_draw_names_a_file_that_does_not_exist(run_fxplug, tmp_path):
    result = run_fxplug("draw", tmp_path / "missing.fxplug", "--out", tmp_path / "graph.dot")

    assert result.exit_code == 1
    assert "missing.fxplug': there is no such file." in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_draw_refuses_a_file_of_another_kind(run_fxplug, tmp_path):
    (tmp_path / "model.py").write_text("raise RuntimeError")

    result = run_fxplug("draw", tmp_path / "model.py", "--out", tmp_path / "graph.dot")

    assert result.exit_code == 2
    assert "model.py" in result.output
    assert not (tmp_path / "graph.dot").exists()


@pytest.mark.parametrize("place", ["missing/graph.dot", "folder.dot"])
def test_draw_leaves_nothing_behind_where_it_cannot_write(run_fxplug, saved, tmp_path, place):
    (tmp_path / "folder.dot").mkdir()
    before = sorted(tmp_path.rglob("*"))

    result = run_fxplug("draw", saved, "--out", tmp_path / place)

    assert result.exit_code == 1
    assert "Cannot write the picture to" in result.output
    assert "Name a file in a folder that exists and can be written to." in result.output
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("command", "suffix"), [("view", "html"), ("draw", "dot")])
def test_what_is_allowed_is_found_in_the_working_directory(
    run_fxplug, tmp_path, monkeypatch, command, suffix
):
    (tmp_path / "operations_of_mine.py").write_text(
        "import fxplug\nfrom torch import nn\n\n@fxplug.wrap\ndef twice(x):\n    return x * 2\n\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return twice(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        made = importlib.import_module("operations_of_mine").Net()
        fxplug.save(fxplug.symbolic_trace(made), "mine.fxplug", allow=["operations_of_mine:twice"])
    monkeypatch.delitem(sys.modules, "operations_of_mine")

    result = run_fxplug(
        command, "mine.fxplug", "--allow", "operations_of_mine:twice", "--out", f"mine.{suffix}"
    )

    assert result.exit_code == 0, result.output
    assert "twice" in (tmp_path / f"mine.{suffix}").read_text(encoding="utf-8")

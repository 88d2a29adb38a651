"""What the plugin tells fxplug, and the command that it adds."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "viz")], environ={})


@pytest.fixture
def saved(tmp_path) -> Path:
    module = fxplug.symbolic_trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    propagate_shapes(module, torch.randn(1, 4))
    fxplug.save(module, tmp_path / "module.fxplug")
    return tmp_path / "module.fxplug"


def test_it_answers_for_dot_and_for_nothing_else(manager):
    module = fxplug.symbolic_trace(nn.Sequential(nn.ReLU()), manager=manager)

    assert fxplug.represent(module, "dot", manager=manager) == dot_text(module)
    with pytest.raises(fxplug.PluginError, match="no active plugin knows that format"):
        fxplug.represent(module, "svg", manager=manager)


@pytest.fixture
def run_fxplug(manager, monkeypatch):
    monkeypatch.setattr("fxplug.plugins.default_manager", lambda: manager)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(fxplug.cli.main, [str(argument) for argument in arguments])

    return run


# -- what it offers ---------------------------------------------------------------------------------------------


def test_it_offers_its_commands():
    records = list(plugin.fxplug_register_commands())

    assert [record.name for record in records] == ["draw", "view"]
    assert all(isinstance(record.factory(), click.Command) for record in records)


def test_the_host_takes_the_plugin(manager):
    (info,) = manager.plugin_infos()

    assert info.status == "active"
    assert info.hooks == ("fxplug_register_commands", "fxplug_register_report_sections", "fxplug_represent")
    assert info.commands == ("viz:draw", "viz:view")


def test_the_plugin_needs_neither_click_nor_jinja_nor_graphviz_until_it_is_called():
    program = """
import sys
for name in ("click", "rich", "graphviz", "jinja2"):
    sys.modules[name] = None
from fxplug_viz import dot_text, plugin
record, _ = plugin.fxplug_register_commands()
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
    assert result.output == f"Wrote {out}: 4 nodes, 3 edges, as DOT text.\n"
    text = out.read_text(encoding="utf-8")
    assert text == dot_text(fxplug.load(saved))
    assert "float32[1, 3]" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.dot", "module.fxplug"]


def test_draw_takes_title_and_direction(run_fxplug, saved, tmp_path):
    out = tmp_path / "graph.gv"

    result = run_fxplug("draw", saved, "--out", out, "--title", "A title", "--direction", "LR")

    assert result.exit_code == 0, result.output
    assert out.read_text() == dot_text(fxplug.load(saved), title="A title", direction="LR")


@pytest.mark.parametrize("name", ["graph.svg", "graph"])
def test_draw_does_not_pretend_to_make_pictures(run_fxplug, saved, tmp_path, name):
    result = run_fxplug("draw", saved, "--out", tmp_path / name)

    assert result.exit_code == 2
    message = " ".join(result.output.split())
    assert f"{name}' does not end in .dot or .gv, and only DOT text is written so far." in message
    assert "dot -Tsvg graph.dot -o graph.svg" in message
    assert not (tmp_path / name).exists()


def test_draw_names_a_file_that_does_not_exist(run_fxplug, tmp_path):
    result = run_fxplug("draw", tmp_path / "missing.fxplug", "--out", tmp_path / "graph.dot")

    assert result.exit_code == 1
    assert "missing.fxplug': there is no such file." in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_draw_refuses_a_file_of_another_kind(run_fxplug, tmp_path):
    (tmp_path / "model.py").write_text("raise RuntimeError")

    result = run_fxplug("draw", tmp_path / "model.py", "--out", tmp_path / "graph.dot")

    assert result.exit_code == 1
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

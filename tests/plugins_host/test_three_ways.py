"""One program that nobody changes is captured in three ways, by changing ``pyproject.toml`` alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "plugins" / "fxplug-sample" / "src"
PARTS = """
import torch
from torch import nn

def scale(x):
    return x * 3

class SampleBlock(nn.Module):
    def forward(self, x):
        return x + 1

class Gate(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = SampleBlock()
        self.gate = Gate()

    def forward(self, x):
        return scale(self.gate(self.block(x)))
"""
PROGRAM = """
import fxplug
from parts import Model

graph = fxplug.trace(Model()).graph
for node in graph.nodes:
    if node.op.startswith("call_"):
        print(node.op, node.target if isinstance(node.target, str) else node.target.__name__)
"""

BLOCK, ADD = "call_module block", "call_function add"
GATE, SIGMOID = "call_module gate", "call_function sigmoid"
SCALE, MUL = "call_function scale", "call_function mul"


@pytest.fixture
def run(tmp_path):
    """Runs the program in a folder of its own, where the sample plugin is installed."""
    site = tmp_path / "site"
    info = site / "fxplug_sample-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fxplug-sample\nVersion: 0.1.0\nRequires-Dist: fxplug<0.2,>=0.1\n"
    )
    (info / "entry_points.txt").write_text("[fxplug]\nsample = fxplug_sample.plugin\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "parts.py").write_text(PARTS)
    (project / "program.py").write_text(PROGRAM)
    environ = {name: text for name, text in os.environ.items() if not name.startswith("FXPLUG_")}
    path = [str(site), str(SOURCE), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))

    def start(configuration):
        (project / "pyproject.toml").write_text(configuration)
        return subprocess.run(
            [sys.executable, "program.py"],
            cwd=project,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return start


def test_the_graphs_differ_as_declared(run):
    graphs = {
        text: run(text).stdout.splitlines()
        for text in (
            "",
            '[tool.fxplug.trace]\nleaf_modules = ["parts.Gate"]\n',
            '[tool.fxplug.trace]\nleaf_functions = ["parts:scale"]\n',
            '[tool.fxplug.plugins]\ndisable = ["sample"]\n',
        )
    }

    assert list(graphs.values()) == [
        [BLOCK, SIGMOID, MUL],
        [BLOCK, GATE, MUL],
        [BLOCK, SIGMOID, SCALE],
        [ADD, SIGMOID, MUL],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[tool.fxplug.trace]\n\nleaf_module = []\n",
            "line 3: there is no key 'leaf_module' in [trace]. Did you mean 'leaf_modules'?",
        ),
        (
            '[tool.fxplug.plugins]\ndisable = ["sampel"]\n',
            "There is no plugin named 'sampel'. Did you mean 'sample'? The name stands in plugins.disable at {file}:2.",
        ),
    ],
)
def test_what_is_misspelt_ends_the_program_with_the_nearest_name_and_the_line(run, tmp_path, text, message):
    done = run(text)

    assert done.returncode == 1
    assert done.stdout == ""
    assert message.format(file=tmp_path / "project" / "pyproject.toml") in done.stderr
    assert str(tmp_path / "project" / "pyproject.toml") in done.stderr

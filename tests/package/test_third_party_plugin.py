"""A plugin from somewhere else: its wheel is built, installed, used and removed."""

from __future__ import annotations

import json

import pytest

# A program that knows nothing of plugins: it defines a model and uses fxplug's public functions.
PROGRAM = """
import json
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import fxplug
import torch
from torch import nn


class SampleBlock(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = SampleBlock()

    def forward(self, x):
        return torch.relu(torch.relu(self.block(x)))


model, example = Model().eval(), (torch.linspace(-2, 2, 5),)
traced = fxplug.symbolic_trace(model)
result = fxplug.optimize(model, example, measure=False)
print(json.dumps({
    "traced": [f"{node.op} {node.target if isinstance(node.target, str) else node.target.__name__}"
               for node in traced.graph.nodes],
    "notes": [node.meta.get("sample.note") for node in traced.graph.nodes],
    "passes": [report.name for report in result.passes],
    "relus": sum(node.target is torch.relu for node in result.graph_module.graph.nodes),
    "equal": torch.equal(traced(*example), model(*example)) and torch.equal(result.module(*example), model(*example)),
}))
"""


@pytest.fixture
def use(full_environment, tmp_path):
    """A function that runs the program and returns what it saw."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)

    def run_program():
        return json.loads(full_environment.python("-W", "ignore", str(path)).splitlines()[-1])

    return run_program


def test_it_is_listed_while_it_is_installed_and_leaves_no_trace(full_environment, sample_wheel):
    with full_environment.installed(sample_wheel, "fxplug-sample"):
        assert "fxplug-sample" in full_environment.python("-m", "fxplug", "plugins", "list")

    assert "sample" not in full_environment.python("-m", "fxplug", "plugins", "list")


def test_it_changes_traces_and_pipelines_without_a_line_of_user_code(full_environment, sample_wheel, use):
    before = use()
    with full_environment.installed(sample_wheel, "fxplug-sample"):
        during = use()
    after = use()

    # The leaf rule keeps the block as one node.
    assert "call_module block" not in before["traced"]
    assert during["traced"][1] == "call_module block"
    # The annotation is on every node of the trace.
    assert set(before["notes"]) == {None}
    assert all(note.startswith("Model: ") for note in during["notes"])
    # The pass joins the default pipeline and does its work.
    assert "sample:single-relu" not in before["passes"]
    assert "sample:single-relu" in during["passes"]
    assert (before["relus"], during["relus"]) == (2, 1)
    assert before["equal"]
    assert during["equal"]
    # Uninstalled, it leaves no trace.
    assert after == before

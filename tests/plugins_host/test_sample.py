"""The sample plugin, as a third party would write it, found through its metadata."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fxplug.api import symbolic_trace
from fxplug.plugins import PluginManager, discover

SOURCE = Path(__file__).resolve().parents[1] / "plugins" / "fxplug-sample" / "src"


class SampleBlock(nn.Module):
    def forward(self, x):
        return x * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = SampleBlock()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(torch.relu(self.linear(self.block(x))))


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """A manager that finds the sample plugin and nothing else."""
    info = tmp_path / "fxplug_sample-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: fxplug-sample\nVersion: 0.1.0\nRequires-Dist: fxplug<0.2,>=0.1\n"
    )
    (info / "entry_points.txt").write_text("[fxplug]\nsample = fxplug_sample.plugin\n")
    monkeypatch.syspath_prepend(str(SOURCE))
    candidates = discover([str(tmp_path)])
    yield PluginManager(candidates=candidates, environ={}, version="0.1.0", strict=True)
    for name in ("fxplug_sample", "fxplug_sample.plugin"):
        sys.modules.pop(name, None)


def test_it_changes_a_trace_and_a_pipeline_with_no_user_code(sample):
    model = Model()
    module = symbolic_trace(model, manager=sample)

    assert [node.op for node in module.graph.nodes] == [
        "placeholder",
        "call_module",
        "call_module",
        "call_function",
        "call_function",
        "output",
    ]
    assert next(iter(module.graph.nodes)).meta["sample.note"] == "Model: placeholder"

    pipeline = sample.resolve_pipeline("inference")
    assert [step.name for step in pipeline.steps] == [
        "dead-code",
        "remove-identities",
        "fuse-conv-bn",
        "sample:single-relu",
        "onednn-fuse",
        "propagate-shapes",
    ]
    x = torch.randn(2, 3)
    reports = pipeline.run(module, (x,))
    assert reports[3].result.details == {"removed": 1}
    assert sum(node.op == "call_function" for node in module.graph.nodes) == 1
    assert torch.equal(module(x), model(x))


def test_without_it_nothing_of_it_is_left():
    manager = PluginManager(candidates=[], environ={})

    module = symbolic_trace(Model(), manager=manager)

    assert not any("sample.note" in node.meta for node in module.graph.nodes)
    assert not any(node.target == "block" for node in module.graph.nodes)
    assert len(manager.resolve_pipeline("inference").steps) == 5

"""What is said of an engine in reports: by TensorRT on a GPU, and elsewhere of its network, which is said, too."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import fxplug
from fxplug.lower import lower, lowered_partitions
from fxplug.plugins import ReportContext
from fxplug_tensorrt import TensorRTBackend, TensorRTModule, load_module, plugin
from fxplug_tensorrt.summary import NetworkSummary, engine_facts, size_text

needs_tensorrt = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)


def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def built(**options):
    backend = TensorRTBackend(targets=("SM86",), **options)
    module = lower(fxplug.symbolic_trace(model()), backend, (X,), name="tensorrt", strict=True).module
    (partition,) = lowered_partitions(module).values()
    return module, partition.engine


def engines_run():
    from fxplug_tensorrt._trt import why_engines_do_not_run

    return not why_engines_do_not_run()


@needs_tensorrt
def test_the_summary_counts_what_is_in_the_network():
    from fxplug_tensorrt.summary import summarize_network

    backend = TensorRTBackend("fp16", batch_sizes=(1, 2, 4))
    converted = backend.converted(fxplug.symbolic_trace(model()), (X,))
    net = converted.build.net

    summary = summarize_network(converted)

    assert sum(summary.layers.values()) == net.num_layers
    assert summary.layers["CONVOLUTION"] == 1
    assert summary.layers["MATRIX_MULTIPLY"] == 1
    assert set(summary.precisions) >= {"HALF", "FLOAT"}
    assert summary.weights == len(converted.build.kept)
    assert summary.weight_bytes == sum(value.nbytes for value in converted.build.kept.values())
    assert summary.inputs == ("input_0 FLOAT ?x3x8x8",)
    again = summarize_network(backend.converted(fxplug.symbolic_trace(model()), (X,)))
    assert again.structure == summary.structure
    other = backend.converted(fxplug.symbolic_trace(nn.Sequential(model(), nn.ReLU())), (X,))
    assert summarize_network(other).structure != summary.structure
    assert NetworkSummary.of(json.loads(json.dumps(summary.data()))) == summary


@needs_tensorrt
def test_where_the_engine_does_not_run_its_network_is_told_of_and_that_is_said(tmp_path):
    if engines_run():
        pytest.skip("TensorRT runs engines here")
    _, engine = built()
    engine.save(tmp_path / "engine")

    facts = load_module(tmp_path / "engine").facts()

    assert facts == engine.facts()
    of = {(where, what): found for where, what, found in facts}
    assert of["engine", "built by"].endswith("for SM86")
    assert of["engine", "size"] == size_text(len(engine.record.plan))
    assert of["engine", "layers, tactics, memory"].startswith("not known, as the engine does not run here: ")
    assert "CONVOLUTION 1" in of["network as written", "layers"]
    assert of["network as written", "precision of layers"].startswith("FLOAT ")
    assert of["network as written", "inputs"] == "input_0 FLOAT 2x3x8x8"
    assert "tensors, " in of["network as written", "weights"]


INSPECTED = {
    "Layers": [
        {
            "Name": "conv + relu",
            "LayerType": "gemm",
            "Outputs": [{"Name": "y", "Dimensions": [2, 8], "Format/Datatype": "Half NHWC"}],
            "TacticName": "sm86_conv_half",
        },
        {
            "Name": "copy",
            "LayerType": "Reformat",
            "Outputs": [{"Name": "z", "Format/Datatype": "Float NCHW"}],
        },
    ],
    "Bindings": ["x", "z"],
}


def test_what_the_inspector_tells_is_counted():
    assert engine_facts(json.dumps(INSPECTED), 3 * 2**20, 2000) == [
        ("layers", "2: gemm 1, Reformat 1"),
        ("precision and layout of results", "Half NHWC 1, Float NCHW 1"),
        ("tactics", "sm86_conv_half 1"),
        ("memory of a call", "3.0 MiB"),
        ("engine", "2.0 KiB"),
    ]


def test_an_inspector_that_tells_names_alone_is_understood():
    found = engine_facts(json.dumps({"Layers": ["conv", "relu"]}), 10, 20)

    assert found[0] == ("layers", "2, of which only names are known")
    assert [what for what, _ in found] == ["layers", "memory of a call", "engine"]


@needs_tensorrt
def test_where_the_engine_runs_the_inspector_is_asked(monkeypatch):
    from fxplug_tensorrt import runtime

    class Engine:
        device_memory_size_v2 = 4096

    _, engine = built()
    monkeypatch.setattr(runtime, "why_engines_do_not_run", lambda: "")
    monkeypatch.setattr(engine, "_engine", Engine())
    monkeypatch.setattr(engine, "layers", lambda: json.dumps(INSPECTED))

    facts = engine.facts()

    assert {of for of, _, _ in facts} == {"engine"}
    assert ("engine", "tactics", "sm86_conv_half 1") in facts
    assert ("engine", "memory of a call", "4.0 KiB") in facts


@needs_tensorrt
def test_the_section_has_a_row_for_each_fact_and_none_without_engines():
    (record,) = plugin.fxplug_register_report_sections()
    module, engine = built()
    program = fxplug.symbolic_trace(model())

    rows = record.factory(ReportContext(program, (X,), {}, lowered=module))

    assert rows == [("partition", "of", "what", "found"), *(("submod_0", *fact) for fact in engine.facts())]
    assert isinstance(engine, TensorRTModule)
    assert record.factory(ReportContext(program, (X,), {}, lowered=program)) is None
    assert record.factory(ReportContext(program, (X,), {})) is None


@needs_tensorrt
def test_reports_of_the_command_line_have_the_section(tmp_path):
    (tmp_path / "model.py").write_text("from torch import nn\nbuild = nn.ReLU\n")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.fxplug.backends.tensorrt]\ntargets = ["SM86"]\n', encoding="utf-8"
    )
    # The engine is for another machine: what it computes comes from PyTorch.
    (tmp_path / "started.py").write_text(
        "import runpy, torch\n"
        "from fxplug_tensorrt import TensorRTModule\n"
        "TensorRTModule.forward = lambda engine, x: torch.relu(x)\n"
        "runpy.run_module('fxplug', run_name='__main__')\n"
    )
    arguments = ["optimize", "model.py:build", "--example", "1x4", "--backend", "tensorrt", "--no-measure"]
    completed = subprocess.run(
        [sys.executable, "started.py", *arguments, "--out", "out"],
        cwd=tmp_path, env={**os.environ, "FXPLUG_LOAD_PLUGINS": "tensorrt"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert completed.returncode == 0, completed.stdout + completed.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    (section,) = [entry for entry in report["sections"] if entry["name"] == "tensorrt:engines"]
    assert section["error"] is None
    assert section["rows"][0] == ["partition", "of", "what", "found"]
    assert {row[0] for row in section["rows"][1:]} == {"submod_0"}
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "## Engines of TensorRT" in text
    assert "| submod_0 | engine | built by | TensorRT for RTX" in text

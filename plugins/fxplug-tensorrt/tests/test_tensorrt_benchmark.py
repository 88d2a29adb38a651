"""The benchmark on a GPU, as far as it goes without one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from fxplug import lower

FILE = Path(__file__).resolve().parents[3] / "benchmarks" / "tensorrt_gpu.py"


@pytest.fixture
def benchmark():
    spec = importlib.util.spec_from_file_location("tensorrt_gpu", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)
def test_where_engines_do_not_run_it_keeps_what_tensorrt_says(tmp_path, benchmark):
    import json

    from fxplug_tensorrt._trt import why_engines_do_not_run

    reason = why_engines_do_not_run()
    if not reason:
        pytest.skip("TensorRT runs engines here")

    with pytest.raises(SystemExit, match="Nothing is measured: TensorRT runs no engines on this machine"):
        benchmark.main([str(tmp_path / "results.json")])

    written = json.loads((tmp_path / "results.json").read_text())
    assert reason in written["not_measured"]
    assert written["versions"]["tensorrt"].startswith("TensorRT for RTX 1.")
    assert "models" not in written


def test_contenders_are_measured_and_compared_with_eager(monkeypatch, benchmark):
    """What would run on a GPU, with stand-ins for the clock of the GPU and the engine."""
    clock = iter(range(1, 100))
    made = []

    def built(module, backend, inputs, **options):
        made.append((backend.options.precision, backend.options.cuda_graphs, options["strict"]))
        return type("Lowered", (), {"module": module})

    monkeypatch.setattr(
        benchmark, "_milliseconds", lambda call: call() is None or {"median_ms": float(next(clock))}
    )
    monkeypatch.setattr(lower, "lower", built)
    monkeypatch.setattr(torch, "compile", lambda model: model)

    with torch.no_grad():
        found = benchmark._measured(torch.nn.Linear(3, 2), (torch.ones(1, 3),))

    assert made == [("fp32", False, True), ("tf32", False, True), ("fp16", False, True), ("fp16", True, True)]
    assert list(found) == [
        *("eager", "eager, fp16", "torch.compile", "fxplug-tensorrt, fp32", "fxplug-tensorrt, tf32"),
        *("fxplug-tensorrt, fp16", "fxplug-tensorrt, fp16, CUDA graph"),
    ]
    assert found["fxplug-tensorrt, fp32"]["largest_difference"] == 0.0
    assert found["fxplug-tensorrt, tf32"]["times_eager"] == pytest.approx(1 / 5)

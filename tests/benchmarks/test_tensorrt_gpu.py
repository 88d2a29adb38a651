"""The benchmark of TensorRT on a GPU: what it does on machines that it cannot measure on, and with wheels."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
# Neither edition is there, whatever is installed.
PROGRAM = f"""
import runpy, sys
sys.path.append({str(CHECKOUT)!r})
sys.modules["tensorrt_rtx"] = sys.modules["tensorrt"] = None
runpy.run_module("benchmarks.tensorrt_gpu", run_name="__main__")
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder, env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_without_tensorrt_it_measures_nothing_and_says_what_to_install(tmp_path):
    completed = run(tmp_path, "results.json")

    assert completed.returncode == 1
    reason = json.loads((tmp_path / "results.json").read_text())["not_measured"]
    assert 'Install the former with: pip install "fxplug-tensorrt[rtx]"' in reason
    assert completed.stderr.endswith(f"Nothing is measured: {reason}\n")
    assert "Traceback" not in completed.stderr


def test_a_folder_without_wheels_is_named(tmp_path):
    completed = run(tmp_path, "--wheels", "empty")

    assert completed.returncode == 1
    # Before it stand warnings of PyTorch where NumPy is not installed.
    assert completed.stderr.splitlines()[-1] == "Nothing is measured: there are no wheels in empty."
    assert "Traceback" not in completed.stderr


@pytest.fixture
def benchmark():
    spec = importlib.util.spec_from_file_location("tensorrt_gpu", CHECKOUT / "benchmarks" / "tensorrt_gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_that_was_cut_is_put_together_in_the_order_of_its_pieces(tmp_path, benchmark):
    folder, target = tmp_path / "wheels", tmp_path / "whole"
    folder.mkdir()
    target.mkdir()
    (folder / "one-1.0-py3-none-any.whl").write_bytes(b"one")
    for number in range(11):
        (folder / f"two-1.0-py3-none-any.whl.{number}").write_bytes(bytes([number]))

    found = benchmark.join_wheels(folder, target)

    assert {path.name: path.read_bytes() for path in found} == {
        "one-1.0-py3-none-any.whl": b"one",
        "two-1.0-py3-none-any.whl": bytes(range(11)),
    }

"""A wheel of a stranger adds a converter: installed by pip, found by its entry point, built into an engine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile

import pytest
import torch

import fxplug
from fxplug.lower import plan_lowering
from fxplug_tensorrt import TensorRTBackend

CONVERTER = """
import torch
from fxplug import hookimpl


@hookimpl(optionalhook=True)
def tensorrt_converters():
    from fxplug_tensorrt import ConverterRecord

    def entropy(build, x):
        return -(x * x.unary("LOG"))

    return [ConverterRecord(torch.ops.aten.special_entr.default, entropy)]
"""
PROGRAM = """
import torch
import fxplug
from fxplug.lower import lower, lowered_partitions
from fxplug_tensorrt import TensorRTBackend
from fxplug_tensorrt.testing import check_call

backend = TensorRTBackend(targets=("SM86",))
x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) + 0.1
module = fxplug.symbolic_trace(lambda x: torch.special.entr(x) + 1)
lowered = lower(module, backend, (x,), name="tensorrt", strict=True)
(partition,) = lowered_partitions(lowered.module).values()
assert len(partition.engine.record.plan) > 1000
assert check_call(torch.ops.aten.special_entr.default, x, converters=backend.converters).plan
print(backend.converters[torch.ops.aten.special_entr.default].function.__module__)
"""


def write_wheel(folder):
    info = "acme_entropy-1.0.dist-info"
    contents = {
        "acme_entropy.py": CONVERTER,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: acme-entropy\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[fxplug]\nacme = acme_entropy\n",
    }
    record = "".join(f"{path},,\n" for path in (*contents, f"{info}/RECORD"))
    wheel = folder / "acme_entropy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed"
)
def test_a_wheel_of_a_stranger_adds_a_converter(tmp_path):
    def program(x):
        return torch.special.entr(x) + 1

    def run(*arguments, **variables):
        completed = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env={**os.environ, **variables}, capture_output=True,
            text=True, timeout=300, check=False,
        )  # fmt: skip
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return completed.stdout

    report = plan_lowering(fxplug.symbolic_trace(program), TensorRTBackend(), "tensorrt", (torch.rand(3, 4),))
    assert [node.reason for node in report.unsupported] == [
        "there is no converter for aten.special_entr.default"
    ]

    target = str(tmp_path / "site")
    run(
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--target",
        target,
        str(write_wheel(tmp_path)),
    )

    assert run("-c", PROGRAM, PYTHONPATH=target).strip() == "acme_entropy"

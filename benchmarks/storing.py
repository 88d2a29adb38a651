"""Saving and loading, beyond the input and output of the weights themselves."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.fx

import fxplug
from benchmarks.programs import resnet50
from benchmarks.report import Comparison, Figure, compare_samples, promised
from benchmarks.timing import interleave

if TYPE_CHECKING:
    from benchmarks.modes import Mode
    from benchmarks.report import Bound

__all__ = ["compare_storing", "measure_lazy_loading"]

_MEBIBYTE = 1 << 20
_WEIGHT = 64 * _MEBIBYTE

_WRITE = """
import sys
import torch
import fxplug

graph = fxplug.Graph()
names = [f"weight{number}" for number in range(int(sys.argv[2]))]
graph.output([graph.get_attr(name) for name in names])
weights = {name: torch.empty(int(sys.argv[3]) // 4).fill_(1) for name in names}
fxplug.save(fxplug.GraphModule(weights, graph), sys.argv[1])
"""

_READ = """
import sys
from pathlib import Path
import fxplug

module = fxplug.load(sys.argv[1], lazy=True)
rows = dict(row.split(":", 1) for row in Path("/proc/self/status").read_text().splitlines())
sys.stdout.write(rows["VmHWM"].split()[0])
"""


def compare_storing(mode: Mode) -> list[Comparison]:
    """Compare `fxplug.save` and `fxplug.load` with torch.fx's pickle round trip, both through a file.

    What counts is the time that the process computes, since waiting for the disk is input and output: fxplug has its
    file flushed to the disk, torch.fx leaves that to the system. Once the weights are on the meta device, so that
    neither side writes or reads any; once each has a single element, so that both sides do what they do for every
    tensor, and hardly any bytes are moved. torch.fx compiles what it has loaded; fxplug compiles in the first call,
    which is not part of the time.
    """
    return [
        _compare(
            "save and load, ResNet-50 without weights",
            resnet50().to("meta"),
            mode,
            promised(mode, "at least 5", least=5),
        ),
        _compare(
            "save and load, ResNet-50 with weights of one element",
            _with_tiny_weights(resnet50()),
            mode,
            None,
        ),
    ]


def _with_tiny_weights(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            shape = [min(size, 1) for size in parameter.shape]
            setattr(module, name, torch.nn.Parameter(torch.zeros(shape)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            shape = [min(size, 1) for size in buffer.shape]
            setattr(module, name, torch.zeros(shape, dtype=buffer.dtype))
    return model


def _compare(name: str, model: torch.nn.Module, mode: Mode, bound: Bound | None) -> Comparison:
    ours, theirs = fxplug.symbolic_trace(model), torch.fx.symbolic_trace(model)
    for node in theirs.graph.nodes:  # torch.fx cannot pickle annotations that are texts.
        node.type = None
    theirs.recompile()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fxplug"

        def round_trip() -> object:
            fxplug.save(ours, path)
            return fxplug.load(path)

        def pickled() -> object:
            other = path.with_suffix(".pickle")
            other.write_bytes(pickle.dumps(theirs))
            return pickle.loads(other.read_bytes())  # noqa: S301 - what is compared

        samples = interleave(
            {
                "torch.fx": pickled,
                "fxplug": round_trip,
            },
            mode.rounds,
            time.process_time,
        )
    return compare_samples(name, "ms", samples["torch.fx"], samples["fxplug"], 1e3, bound)


def measure_lazy_loading(mode: Mode) -> list[Figure]:
    """Measure the memory of a fresh process that has loaded a large module lazily, before its first use."""
    if not sys.platform.startswith("linux"):
        return []
    count = 32 if mode.judged else 2
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "large.fxplug")
        subprocess.run([sys.executable, "-c", _WRITE, path, str(count), str(_WEIGHT)], check=True)
        result = subprocess.run(
            [sys.executable, "-c", _READ, path], check=True, capture_output=True, text=True
        )
    size = count * _WEIGHT // _MEBIBYTE
    return [
        Figure(
            f"memory of a process with a module of {size:,} MiB, loaded lazily, PyTorch included",
            "MiB",
            int(result.stdout) / 1024,
            promised(mode, "at most 300", most=300),
        )
    ]

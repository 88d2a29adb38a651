"""Saving and loading, beyond the input and output of the weights themselves."""

from __future__ import annotations

import os
import pickle
import shutil
import statistics
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
from benchmarks.timing import interleave, run_in_process
from fxplug.storage.weights import memory_of

if TYPE_CHECKING:
    from benchmarks.modes import Mode
    from benchmarks.report import Bound

__all__ = ["compare_storing", "measure_lazy_loading"]

_MEBIBYTE = 1 << 20
_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30
_LEAST = 1e-6
_WEIGHT = 64 * _MEBIBYTE
_NEW_MEMORY = "MALLOC_MMAP_THRESHOLD_", "131072"
"""glibc's own default, which it raises whenever a large block is given back unless somebody has set it."""

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
    file flushed to the disk, torch.fx leaves that to the system. Once with all weights, less what it takes in the same
    rounds to write their bytes to a file and to read them back; once the weights are on the meta device, so that
    neither side writes or reads any; once each has a single element, so that both sides do what they do for every
    tensor, and hardly any bytes are moved. torch.fx compiles what it has loaded; fxplug compiles in the first call,
    which is not part of the time.

    Each of them gets its memory from the system, as in a process that saves or loads a model once. Otherwise some
    would be given what others have just freed, and which ones changes from run to run: for memory that is new, the
    system takes longer than for reading weights into it.
    """
    name, value = _NEW_MEMORY
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        return run_in_process(_compare_all, mode)
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _compare_all(mode: Mode) -> list[Comparison]:
    promise = promised(mode, "at least 5", least=5)
    model = resnet50()
    return [
        _compare("save and load, ResNet-50, beyond input and output of its weights", model, mode, promise),
        _compare("save and load, ResNet-50 without weights", resnet50().to("meta"), mode, promise),
        _compare(
            "save and load, ResNet-50 with weights of one element", _with_tiny_weights(model), mode, None
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
    weights = [] if _is_on_meta(model) else [_bytes_of(tensor) for tensor in model.state_dict().values()]
    with tempfile.TemporaryDirectory(dir=_MEMORY if _is_roomy(_MEMORY) else None) as folder:
        path = Path(folder) / "model.fxplug"

        def round_trip() -> object:
            fxplug.save(ours, path)
            return fxplug.load(path)

        def pickled() -> object:
            other = path.with_suffix(".pickle")
            with other.open("wb") as file:
                pickle.dump(theirs, file)
            with other.open("rb") as file:
                return pickle.load(file)  # noqa: S301 - what is compared

        samples = interleave(
            {
                "weights": lambda: _move(weights, path.with_suffix(".weights")),
                "torch.fx": pickled,
                "fxplug": round_trip,
            },
            mode.rounds,
            time.process_time,
        )
    moving = statistics.median(samples["weights"])
    theirs_beyond, ours_beyond = (
        [max(sample - moving, _LEAST) for sample in samples[way]] for way in ("torch.fx", "fxplug")
    )
    return compare_samples(name, "ms", theirs_beyond, ours_beyond, 1e3, bound)


def _is_on_meta(model: torch.nn.Module) -> bool:
    return next(model.parameters()).is_meta


def _is_roomy(folder: Path) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free > _ROOM


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor."""
    return memory_of(tensor.view(-1).view(torch.uint8))


def _move(weights: list[memoryview], path: Path) -> object:
    """Write weights to a file, and read them into new memory, which nobody fills with zeros before."""
    with path.open("wb") as file:
        for weight in weights:
            file.write(weight)
    read = [torch.empty(len(weight), dtype=torch.uint8) for weight in weights]
    with path.open("rb") as file:
        for memory in read:
            file.readinto(memory_of(memory))
    return read


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

"""Tracing a very long function, in an interpreter of its own: what it costs per node, and how much memory it takes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import fxplug
from benchmarks.programs import count_text
from benchmarks.report import Figure, promised

if TYPE_CHECKING:
    from benchmarks.modes import Mode

__all__ = ["measure_scaling"]

_SHORT = 10_000

# The folders go to the end of the path, so that a checkout is found and an installed fxplug changes nothing.
_PROGRAM = """
import gc, json, statistics, sys, time
sys.path += {folders!r}
import fxplug
from benchmarks.programs import long_function

def peak():
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def seconds_per_node(count):
    function = long_function(count)
    gc.collect()
    started = time.perf_counter()
    graph = fxplug.Tracer().trace(function)
    return (time.perf_counter() - started) / count

before = peak()
short = [seconds_per_node({short}) for _ in range(5)]
long = seconds_per_node({long})
after = peak()
short += [seconds_per_node({short}) for _ in range(5)]
print(json.dumps([statistics.median(short), long, before, after]))
"""


def measure_scaling(mode: Mode) -> list[Figure]:
    """Measure the trace of a function of ``mode.huge_length`` nodes against one of 10,000, and the peak memory.

    Each round is a fresh interpreter, where the short function is traced before and after the long one. The peak is
    what the operating system counted for the whole process: Python, PyTorch and the program besides the graph. On
    Linux that is ``VmHWM``, because there ``ru_maxrss`` of a process begins with that of the one that started it.
    """
    rounds = [_run(mode.huge_length) for _ in range(mode.huge_rounds)]
    ratio = statistics.median(long / short for short, long, _, _ in rounds)
    short, long, before, after = (statistics.median(values) for values in zip(*rounds, strict=True))
    name = f"trace alone, function of {count_text(mode.huge_length)}"
    return [
        Figure(f"trace alone, function of {count_text(_SHORT)}, fresh process", "µs per node", short * 1e6),
        Figure(f"{name}, fresh process", "µs per node", long * 1e6),
        Figure(
            f"{name}, against {count_text(_SHORT)}",
            "times per node",
            ratio,
            promised(mode, "at most 1.3", most=1.3),
        ),
        Figure(
            f"{name}: peak memory of the process, PyTorch included",
            "MB",
            after / 1e6,
            promised(mode, "at most 1500", most=1500),
        ),
        Figure("peak memory of that process before, with PyTorch imported", "MB", before / 1e6),
    ]


def _run(count: int) -> tuple[float, float, float, float]:
    folders = [str(Path(fxplug.__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1])]
    completed = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(folders=folders, short=_SHORT, long=count)],
        env={**os.environ, "FXPLUG_LOAD_PLUGINS": ""},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    short, long, before, after = json.loads(completed.stdout)
    return short, long, before, after

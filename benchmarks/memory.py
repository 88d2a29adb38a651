"""What a graph weighs."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import torch.fx

import fxplug
from benchmarks.programs import count_text, long_function
from benchmarks.report import Comparison, compare_samples, promised

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.modes import Mode

__all__ = ["compare_memory", "retained_bytes"]


def retained_bytes(build: Callable[[], object]) -> int:
    """Return how many bytes of Python's memory what `build` returns keeps alive.

    `build` runs twice, so that caches which it fills once and for all do not count.
    """
    build()
    gc.collect()
    tracemalloc.start()
    try:
        kept = build()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return size


def compare_memory(mode: Mode) -> list[Comparison]:
    """Compare the memory of the graph of a long function, per node, everything included that a trace keeps with it."""
    count = mode.memory_length
    function = long_function(count)
    theirs = retained_bytes(lambda: torch.fx.Tracer().trace(function))
    ours = retained_bytes(lambda: fxplug.Tracer().trace(function))
    name = f"memory of a graph, function of {count_text(count)}"
    bound = promised(mode, "at most 60 % of torch.fx", least=1 / 0.6)
    return [compare_samples(name, "bytes per node", [theirs], [ours], 1 / count, bound)]

"""Running a graph node by node."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import torch.fx

import fxplug
from benchmarks.programs import arithmetic, count_text
from benchmarks.report import Comparison, Figure, compare_samples, promised
from benchmarks.timing import interleave

if TYPE_CHECKING:
    from benchmarks.modes import Mode

__all__ = ["measure_interpreters"]


class _TheirObserver(torch.fx.Interpreter):
    """What an analysis looks like: it sees every node."""

    def run_node(self, n: torch.fx.Node) -> Any:
        return super().run_node(n)


class _OurObserver(fxplug.Interpreter):
    """The same for fxplug."""

    def run_node(self, n: fxplug.Node) -> Any:
        return super().run_node(n)


def measure_interpreters(mode: Mode) -> tuple[list[Comparison], list[Figure]]:
    """Compare what an Interpreter that overrides ``run_node`` costs on top of plain eager execution, per node.

    The calls are arithmetic on a number: next to tensors, the scatter of the calls would hide the Interpreter's part.
    """
    count = mode.lengths[0]
    function = arithmetic(count)
    theirs = _TheirObserver(torch.fx.symbolic_trace(function))
    ours = _OurObserver(fxplug.symbolic_trace(function))
    samples = interleave(
        {"eager": lambda: function(1), "torch.fx": lambda: theirs.run(1), "fxplug": lambda: ours.run(1)},
        mode.rounds,
    )
    eager = statistics.median(samples["eager"])
    comparison = compare_samples(
        f"Interpreter overhead over eager, {count_text(count)}",
        "µs per node",
        [seconds - eager for seconds in samples["torch.fx"]],
        [seconds - eager for seconds in samples["fxplug"]],
        1e6 / count,
        promised(mode, "at least 3", least=3),
    )
    plain = Figure(
        "eager execution of the function that the Interpreters run", "µs per node", eager * 1e6 / count
    )
    return [comparison], [plain]

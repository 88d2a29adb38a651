"""Measuring how long two modules take, side by side."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.isolation import copy_values

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Latency", "measure_latency"]

_WARM_UP_RUNS = 3
_FEWEST_RUNS = 7
_MOST_RUNS = 51
_BUDGET_SECONDS = 8.0


@dataclass(frozen=True)
class Latency:
    """Wall-clock times of single calls in seconds; before and after took turns in one process, after a warm-up."""

    before_runs: tuple[float, ...]
    after_runs: tuple[float, ...]

    @property
    def runs(self) -> int:
        """How often each of the two was measured."""
        return len(self.before_runs)

    @property
    def before(self) -> float:
        """Median of the eager module."""
        return statistics.median(self.before_runs)

    @property
    def after(self) -> float:
        """Median of the optimised module."""
        return statistics.median(self.after_runs)

    @property
    def before_spread(self) -> float:
        """How much the runs of the eager module vary, as a share of their median."""
        return _spread(self.before_runs)

    @property
    def after_spread(self) -> float:
        """How much the runs of the optimised module vary, as a share of their median."""
        return _spread(self.after_runs)

    @property
    def ratio(self) -> float:
        """How many times as fast the optimised module is; below 1 it is slower."""
        return self.before / self.after


def _spread(times: tuple[float, ...]) -> float:
    """Return half the range in which the middle half of the times lies, as a share of the median."""
    if len(times) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(times, n=4, method="inclusive")
    return (upper - lower) / 2 / middle


def measure_latency(
    before: Callable[..., Any],
    after: Callable[..., Any],
    inputs: tuple[Any, ...],
    *,
    runs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Latency:
    """Measure two callables in turns, so that whatever else the machine does falls on both alike.

    Args:
        before: The eager module.
        after: The optimised module.
        inputs: Both get copies, so that what a call writes into its inputs does not reach the next one.
        runs: How often each is measured; None = 7 to 51 times, in about eight seconds.
        progress: Called with (runs done, runs planned) between two measurements.
    """
    # A GPU works on while Python goes ahead.
    synchronize = torch.cuda.synchronize if torch.cuda.is_initialized() else _do_nothing

    def timed(function: Callable[..., Any]) -> float:
        arguments = copy_values(inputs)
        synchronize()
        started = time.perf_counter()
        function(*arguments)
        synchronize()
        return time.perf_counter() - started

    last = 0.0
    for _ in range(_WARM_UP_RUNS):
        last = timed(before) + timed(after)
    planned = runs
    if planned is None:
        planned = int(min(max(_BUDGET_SECONDS / max(last, 1e-9), _FEWEST_RUNS), _MOST_RUNS))
    times: tuple[list[float], list[float]] = ([], [])
    for run in range(planned):
        # Who goes first changes: the second of two calls finds warmer caches.
        for which in (0, 1) if run % 2 == 0 else (1, 0):
            times[which].append(timed((before, after)[which]))
        if progress is not None:
            progress(run + 1, planned)
    return Latency(tuple(times[0]), tuple(times[1]))


def _do_nothing() -> None:
    """Stand for waiting where there is nothing to wait for."""

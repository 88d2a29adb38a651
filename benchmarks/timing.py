"""Measuring contenders in turn, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Fresh", "Ratio", "Samples", "interleave", "paired_ratio", "run_in_process"]

Samples = dict[str, list[float]]
"""Contender -> seconds of each round, in the order of the rounds."""


ValueT = TypeVar("ValueT")
ArgumentT = TypeVar("ArgumentT")


@dataclass(frozen=True)
class Fresh(Generic[ValueT]):
    """A contender that needs something new each time, which is made outside of the measured time."""

    prepare: Callable[[], ValueT]
    """Makes what `run` is given."""
    run: Callable[[ValueT], object]
    """What is timed."""


@dataclass(frozen=True)
class Ratio:
    """How many times more one contender costs than another."""

    median: float
    """Median over the rounds of the ratio inside one round."""
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""


def interleave(
    contenders: Mapping[str, Callable[[], object] | Fresh[Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Samples:
    """Time every contender once per round, after one round that does not count.

    Every other round goes backwards, so that none always profits from what ran before it. Garbage is collected
    before each sample, outside the measured time; during it the collector works as it does for users. What a
    contender returns is freed after the clock was read.

    Args:
        contenders: Name -> what is timed.
        rounds: How many rounds count.
        clock: Gives seconds.
    """
    samples: Samples = {name: [] for name in contenders}
    order = list(contenders)
    for number in range(rounds + 1):
        for name in order if number % 2 == 0 else reversed(order):
            run = _ready(contenders[name])
            gc.collect()
            started = clock()
            result = run()
            seconds = clock() - started
            del result, run
            if number > 0:
                samples[name].append(seconds)
    return samples


def _ready(contender: Callable[[], object] | Fresh[Any]) -> Callable[[], object]:
    if isinstance(contender, Fresh):
        return partial(contender.run, contender.prepare())
    return contender


def paired_ratio(reference: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Return how many times more `reference` took than `candidate`, round by round.

    Args:
        reference: What the candidate is measured against.
        candidate: One sample for each sample of `reference`; all above zero.
    """
    ratios = [before / after for before, after in zip(reference, candidate, strict=True)]
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def run_in_process(measure: Callable[[ArgumentT], ValueT], argument: ArgumentT) -> ValueT:
    """Return what a function of a module returns in a process of its own.

    What ran before has freed memory, and who is given some of that needs none that is new, which would take longer.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, argument).result()

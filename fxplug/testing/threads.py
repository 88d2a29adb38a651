"""Running something in several threads so that what they share shows."""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_at_once"]

ResultT = TypeVar("ResultT")

_SWITCH_SECONDS = 1e-5


def run_at_once(work: Callable[[], ResultT], count: int) -> tuple[list[ResultT], list[Exception]]:
    """Call a function in several threads that begin together and take turns quickly.

    No garbage is collected meanwhile: threads that read the state of PyTorch's random generators could lock one another
    out for ever (see `fxplug.semantics.random_state`).

    Args:
        work: Called once in each thread.
        count: How many threads there are.

    Returns:
        What the calls returned and what they raised.
    """
    results: list[ResultT] = []
    errors: list[Exception] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        try:
            results.append(work())
        except Exception as error:  # Handed to the caller.
            errors.append(error)

    interval, collects = sys.getswitchinterval(), gc.isenabled()
    gc.disable()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        threads = [threading.Thread(target=run, name=f"fxplug-check-{number}") for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        if collects:
            gc.enable()
    return results, errors

"""Pausing the cyclic garbage collector while many objects are made that all stay alive."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["paused_collection"]


class _Pause:
    """Keeps automatic collection off while anybody has entered it, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if self._entered == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._entered += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0 and self._was_enabled:
                gc.enable()


_pause = _Pause()


def paused_collection() -> AbstractContextManager[None]:
    """Keep automatic collection off while the context lasts; it comes back when the last such context ends.

    Tracing or copying allocates containers that live on in the graph, so every collection meanwhile walks all of
    them in vain: with 100,000 nodes that is most of the time.
    """
    return _pause

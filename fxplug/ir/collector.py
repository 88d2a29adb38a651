"""Pausing the cyclic garbage collector while many objects are made that all stay alive."""

from __future__ import annotations

import gc
import os
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
            self._entered = max(self._entered - 1, 0)
            if self._entered == 0 and self._was_enabled:
                gc.enable()

    def end_in_child(self) -> None:
        """End it in a process that was forked meanwhile: whoever had entered it in another thread is not there."""
        self._lock = threading.Lock()
        if self._entered and self._was_enabled:
            gc.enable()
        self._entered = 0


_pause = _Pause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pause.end_in_child)


def paused_collection() -> AbstractContextManager[None]:
    """Keep automatic collection off while the context lasts; it comes back when the last such context ends.

    Tracing or copying allocates containers that live on in the graph, so every collection meanwhile walks all of
    them in vain: with 100,000 nodes that is most of the time.
    """
    return _pause

"""Pausing the cyclic garbage collector while many objects are made that all stay alive."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["paused_collection"]

_lock = threading.Lock()
_pausing = 0
_was_enabled = False


@contextmanager
def paused_collection() -> Generator[None]:
    """Keep automatic collection off while the context lasts; it comes back when the last such context ends.

    Tracing or copying allocates containers that live on in the graph, so every collection meanwhile walks all of
    them in vain: with 100,000 nodes that is most of the time.
    """
    global _pausing, _was_enabled  # noqa: PLW0603 - the collector is process-wide
    with _lock:
        if _pausing == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pausing += 1
    try:
        yield
    finally:
        with _lock:
            _pausing -= 1
            if _pausing == 0 and _was_enabled:
                gc.enable()

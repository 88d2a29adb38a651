"""How deep calls may lie in one another while a program is traced.

The frames of a trace lie between those of the program: up to eight for each module that it enters. A program that runs
without a trace is not to fail in one for that.

Calls through C take memory of the thread's stack, and a program that never ends is to be told so before that is used
up: the process would be gone. So calls may lie deeper only where the size of the stack is known, in the main thread.
"""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING

try:
    import resource
except ImportError:  # Windows, where stacks are small.
    resource = None

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["deeper_calls"]

_FACTOR = 4
"""A module that calls another one takes three or four frames, and up to twelve in a trace."""
_DEEPEST = 4000
"""A program that lets calls lie deeper by itself is left to that."""
_NEEDED = 8 << 20
"""Bytes of stack that so many calls through C may take; a quarter of it was not enough."""


class _Depth:
    """Lets calls lie deeper in one another while anybody has entered it, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._former = self._lent = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._entered == 0:
                self._former = sys.getrecursionlimit()
                self._lent = max(self._former, min(self._former * _FACTOR, _DEEPEST))
                sys.setrecursionlimit(self._lent)
            self._entered += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._entered -= 1
            # The program may have set another one, which it keeps.
            if self._entered == 0 and sys.getrecursionlimit() == self._lent:
                sys.setrecursionlimit(self._former)


_depth = _Depth()


def deeper_calls() -> AbstractContextManager[None]:
    """Let calls lie deeper in one another while the context lasts, if the stack of this thread is large enough."""
    return _depth if _has_room() else nullcontext()


def _has_room() -> bool:
    if resource is None or threading.current_thread() is not threading.main_thread():
        return False
    size, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return size == resource.RLIM_INFINITY or size >= _NEEDED

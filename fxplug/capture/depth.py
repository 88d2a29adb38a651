"""How deep calls may lie in one another while a program is traced.

The frames of a trace lie between those of the program: up to eight for each module that it enters. A program that runs
without a trace is not to fail in one for that.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["deeper_calls"]

_FACTOR = 4
"""A module that calls another one takes three or four frames, and up to twelve in a trace."""


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
                self._lent = self._former * _FACTOR
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
    """Let calls lie deeper in one another while the context lasts; in all threads, as Python has it."""
    return _depth

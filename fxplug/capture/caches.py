"""Functions whose results are kept (``functools.lru_cache``): what a trace puts there is not for the program.

A function that is called for the first time while it is traced computes with stand-ins: proxies, tensors without data,
numbers that stand for sizes. Kept for the next call, they would reach the program itself. So whatever was put into a
cache during a trace is forgotten with everything else in it; the next call computes it anew.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

from fxplug.capture.sources import is_standard, passes_calls_on

__all__ = ["CACHED", "Caches", "results_of"]

CACHED: Any = type(functools.lru_cache(maxsize=None)(lambda: None))
"""The class of functions that `functools.lru_cache` and `functools.cache` make."""


class Caches:
    """Remembers how often functions had to compute their results."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}

    def add(self, function: Any) -> Any:
        """Take note of a function whose results are kept, before it is called; return the one that computes them."""
        inner = getattr(function, "__wrapped__", None)
        code = getattr(inner, "__code__", None)
        # Libraries keep nothing but what is the same for everybody.
        if code is not None and not (passes_calls_on(code.co_filename) or is_standard(code.co_filename)):
            self._known.setdefault(id(function), (function, function.cache_info().misses))
        return inner

    def filled(self) -> list[tuple[Any, list[Any]]]:
        """Return the functions into whose caches something was put since, with all that is in these."""
        return [
            (function, results_of(function))
            for function, misses in self._known.values()
            if function.cache_info().misses != misses
        ]

    def restore(self) -> None:
        """Empty the caches into which something was put since."""
        for function, misses in self._known.values():
            if function.cache_info().misses != misses:
                function.cache_clear()
        self._known.clear()


def results_of(function: Any) -> list[Any]:
    """Return what a function has kept, keys included."""
    # Where it keeps them is for Python to know; its collector of garbage can say.
    found: list[Any] = gc.get_referents(function)
    return [*found, *(part for one in found if type(one) is dict for part in one.values())]

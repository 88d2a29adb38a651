"""Functions whose results are kept (``functools.lru_cache``): what a trace puts there is not for the program.

A function that is called for the first time while it is traced computes with stand-ins: proxies, tensors without data,
numbers that stand for sizes. Kept for the next call, they would reach the program itself. So whatever was put into a
cache during a trace is forgotten with everything else in it; the next call computes it anew.

All callers are given the same result. A program that changes it keeps something in it for its next call.
"""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug.capture.containers import Containers
from fxplug.capture.sources import is_standard, passes_calls_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug.capture.sessions import ModuleInterceptor
    from fxplug.ir import Node

__all__ = ["CACHED", "Caches", "Result", "results_of"]

CACHED: Any = type(functools.lru_cache(maxsize=None)(lambda: None))
"""The class of functions that `functools.lru_cache` and `functools.cache` make."""


class Result(NamedTuple):
    """What a function has returned to the first of its callers."""

    function: Any
    """The one that `functools.lru_cache` has made."""
    value: Any
    last: Node | None
    """The last node that was recorded by then."""
    contents: Containers
    """What lists, dicts, objects and the like in it held by then."""
    writes: list[tuple[torch.Tensor, Any]]
    """The tensors in it, and what was written to them by then."""

    def is_changed(self, writes_to: Callable[[torch.Tensor], Any]) -> bool:
        """Put back what it held; return whether it held something else, or more was written to its tensors.

        Args:
            writes_to: Returns something that is another one when a tensor was written to.
        """
        return bool(self.contents.restore()) or any(writes_to(one) != known for one, known in self.writes)


class Caches:
    """Remembers how often functions had to compute their results, and what these were."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._results: list[Result] = []
        self.computing: dict[int, Any] = {}
        """By id of a function that computes results: the one that keeps them."""

    def add(self, function: Any) -> Any:
        """Take note of a function whose results are kept, before it is called; return the one that computes them."""
        inner = getattr(function, "__wrapped__", None)
        code = getattr(inner, "__code__", None)
        # Libraries keep nothing but what is the same for everybody.
        if code is not None and not (passes_calls_on(code.co_filename) or is_standard(code.co_filename)):
            if id(function) not in self._known:
                self._known[id(function)] = (function, function.cache_info().misses)
                # A tensor that is there already is a constant, and constants know who writes to them.
                for value in _lasting_results_of(function):
                    self._results.append(Result(function, value, None, _contents_of(value), []))
            self.computing[id(inner)] = function
        return inner

    def note_result(self, inner: Any, value: Any, interceptor: ModuleInterceptor) -> None:
        """Hear what a function that computes results has returned.

        Args:
            inner: One of those in `computing`.
            value: What it has returned.
            interceptor: Who traces.
        """
        contents, last = _contents_of(value), next(reversed(interceptor.graph.nodes), None)
        tensors = [part for part in (value, *contents.held()) if issubclass(type(part), torch.Tensor)]
        writes = [(one, interceptor.writes_to(one)) for one in tensors]
        self._results.append(Result(self.computing[id(inner)], value, last, contents, writes))

    def returned(self) -> list[Result]:
        """Return what the functions had kept before the trace, and what they have returned since."""
        results, self._results = self._results, []
        return results

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


def _contents_of(value: Any) -> Containers:
    contents = Containers()
    contents.remember("", {"result": value})
    return contents


def _lasting_results_of(function: Any) -> Iterator[Any]:
    """Yield what a function has kept, as far as it can be told from its table and its own attributes."""
    own = (function.__wrapped__, vars(function))
    found = [value for value in gc.get_referents(function) if not any(value is one for one in own)]
    if function.cache_parameters()["maxsize"] is None:
        yield from (value for one in found if type(one) is dict for value in one.values())
    else:
        yield from (value for value in found if type(value) is not dict or _is_result(value))


def _is_result(table: dict[Any, Any]) -> bool:
    return bool(table) and not all(type(value).__name__ == "_lru_list_elem" for value in table.values())

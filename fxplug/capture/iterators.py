"""Where an iterator stands, so that it shows whether a program has taken something from it; so for queues.

Queues are shared with other threads, which may wait for them: nothing is put back there. By events, semaphores and
locks threads wait for one another, and few programs compute anything of them: they are not looked at.
"""

from __future__ import annotations

import gc
import itertools
import queue
import sys
import warnings
from operator import is_
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["goes_on", "is_iterator", "position_of"]

_DEEPEST = 8
"""Iterators are made of iterators; how far down they are looked at."""
# From Python 3.12 on, an iterator over a range tells of what is left of the range.
_PLAIN = (int, float, complex, str, bytes, bool, type(None), range)
_QUEUES = (queue.Queue, queue.SimpleQueue)
_HAS_LIST = sys.version_info < (3, 13)
"""Whether a `queue.SimpleQueue` holds its elements in a list."""
_WARNS = sys.version_info[:2] in {(3, 12), (3, 13)}
"""Whether Python warns that iterators of itertools will not tell any more where they stand."""


def is_iterator(value: Any) -> bool:
    """Return whether a value gives one thing after another."""
    return hasattr(type(value), "__next__")


def goes_on(value: Any) -> bool:
    """Return whether a value stands somewhere and goes on from there, as an iterator or a queue does."""
    return is_iterator(value) or isinstance(value, _QUEUES)


def position_of(iterator: Any) -> Any:
    """Return something that is another one when a value has gone on; None where there is no such thing."""
    if isinstance(iterator, queue.Queue):
        return _Elements(cast("queue.Queue[Any]", iterator).queue)
    if isinstance(iterator, queue.SimpleQueue):
        return _Waiting(cast("queue.SimpleQueue[Any]", iterator))
    if isinstance(iterator, itertools.count):
        return repr(iterator)
    if isinstance(iterator, GeneratorType):
        return _of_generator(iterator)
    return _of_builtin(iterator, 0)


class _Elements:
    """What a queue holds: by identity, values may define any == of their own."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = list(values)

    def __eq__(self, other: object) -> bool:
        """Return whether another one has the same elements in the same order."""
        if not isinstance(other, _Elements) or len(self._values) != len(other._values):
            return False
        return all(map(is_, self._values, other._values))

    __hash__ = None  # pyright: ignore[reportAssignmentType]


class _Waiting(_Elements):
    """What a `queue.SimpleQueue` holds, which gives it to nobody but who takes it; the collector of garbage sees it.

    It is another one when something was taken. What a program only puts there, as a log does it, answers nothing.
    """

    def __init__(self, values: queue.SimpleQueue[Any]) -> None:
        held: list[Any] = [one for one in gc.get_referents(values) if one is not type(values)]
        super().__init__(held[0] if _HAS_LIST and len(held) == 1 else held)

    def __eq__(self, other: object) -> bool:
        """Return whether the elements of one are the first ones of the other."""
        return isinstance(other, _Waiting) and all(map(is_, self._values, other._values))

    __hash__ = None


def _of_generator(iterator: GeneratorType[Any, Any, Any]) -> Any:
    frame = iterator.gi_frame
    if frame is None:  # It has come to its end.
        return None
    # One that goes around in a loop stands at the same instruction each time. What its variables hold is kept: an id
    # may be given again.
    return _Variables(frame.f_lasti, dict(frame.f_locals), position_of(iterator.gi_yieldfrom))


class _Variables:
    """Where a generator stands, and what its variables hold."""

    def __init__(self, offset: int, variables: dict[str, Any], inner: Any) -> None:
        self._offset = offset
        self._variables = {name: (value, _marked(value, 1)) for name, value in variables.items()}
        self._inner = inner

    def __eq__(self, other: object) -> bool:
        """Return whether another one stands at the same place with the same values."""
        if not isinstance(other, _Variables) or self._offset != other._offset:
            return False
        mine, theirs = self._variables, other._variables
        if list(mine) != list(theirs) or self._inner != other._inner:
            return False
        return all(
            value is theirs[name][0] and mark == theirs[name][1] for name, (value, mark) in mine.items()
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def _of_builtin(iterator: Any, depth: int) -> Any:
    """Return where an iterator that is written in C stands, by what a copy of it would be made of."""
    try:
        if _WARNS and type(iterator).__module__ == "itertools":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                reduced = iterator.__reduce__()
        else:
            reduced = iterator.__reduce__()
    except TypeError:  # It cannot be copied.
        return None
    return _marked(reduced, depth) if isinstance(reduced, tuple) else None


def _marked(value: Any, depth: int) -> Any:
    """Return what stands for a part of an iterator: of containers that are made for the answer, their length counts."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple) and depth < _DEEPEST:
        return tuple([_marked(part, depth + 1) for part in value])
    if isinstance(value, (list, dict, set, frozenset)):
        return len(value)
    if is_iterator(value) and depth < _DEEPEST:
        return position_of(value) if isinstance(value, GeneratorType) else _of_builtin(value, depth + 1)
    return None

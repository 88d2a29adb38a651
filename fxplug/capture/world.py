"""What a program asks of the world around it: the time, and random numbers that the system makes.

None of these can be recorded, and no state tells afterwards that they were asked for. So the names by which the
functions of a program find them are lent a stand-in for the time of the trace.
"""

from __future__ import annotations

import os
import time
import uuid
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["asked_of_world", "world_found_by"]

_CLOCKS = (
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "thread_time",
    "thread_time_ns",
    "time",
    "time_ns",
)
_ENTROPY = {os: ("getrandom", "urandom"), uuid: ("uuid1", "uuid4")}

_asked: dict[int, tuple[str, str]] = {
    **{id(getattr(time, name)): ("clock", f"time.{name}") for name in _CLOCKS},
    **{
        id(vars(module)[name]): ("entropy", f"{module.__name__}.{name}")
        for module, names in _ENTROPY.items()
        for name in names
        if name in vars(module)  # Not every system has all.
    },
}
"""Id of a function -> (what it asks for, how messages call it)."""
_MODULES = frozenset(map(id, (time, *_ENTROPY)))


def asked_of_world(function: Any) -> tuple[str, str] | None:
    """Return what a function asks for, ``"clock"`` or ``"entropy"``, and its name; None for any other function."""
    return _asked.get(id(function))


def world_found_by(
    namespace: dict[str, Any], names: frozenset[str]
) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield where the names of a function lead to one of these functions: a namespace, a name in it, the function.

    Args:
        namespace: The globals of the function.
        names: Those of globals and attributes that it uses.
    """
    for name in namespace.keys() & names:
        value = namespace[name]
        if id(value) in _asked:
            yield namespace, name, value
        elif id(value) in _MODULES and isinstance(value, ModuleType):
            held = vars(value)
            yield from (
                (held, other, held[other]) for other in held.keys() & names if id(held[other]) in _asked
            )

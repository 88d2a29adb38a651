"""What a program asks of the world around it: the time, and random numbers that the system makes.

None of these can be recorded, and no state tells afterwards that they were asked for. So the names by which the
functions of a program find them are lent a stand-in for the time of the trace.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING, Any

from fxplug.capture.originals import original_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = ["asked_of_world", "functions_in", "world_found_by"]

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
_NAMES = frozenset({"getattr", *_CLOCKS, *(name for names in _ENTROPY.values() for name in names)})


def asked_of_world(function: Any) -> tuple[str, str] | None:
    """Return what a function asks for, ``"clock"`` or ``"entropy"``, and its name; None for any other function."""
    return _asked.get(id(function))


def world_found_by(namespace: dict[str, Any], names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names by which a function finds one of these functions, or a module that has some, with what is there.

    Args:
        namespace: The globals of the function.
        names: Those of globals and attributes that it uses.
    """
    for name in namespace.keys() & names:
        value = original_of(namespace[name])
        if id(value) in _asked or (id(value) in _MODULES and not _NAMES.isdisjoint(names)):
            yield name, value


def functions_in(module: ModuleType) -> dict[str, Any]:
    """Return these functions among those of a module, by name."""
    return {name: value for name, value in vars(module).items() if id(value) in _asked}

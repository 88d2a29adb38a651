"""What a program asks of the world around it: the time, random numbers that the system makes, and modes of torch.

None of these can be recorded, and no state tells afterwards that they were asked for. So the names by which the
functions of a program find them are lent a stand-in for the time of the trace.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.originals import original_of
from fxplug.semantics.surroundings import MODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

__all__ = ["MODE", "asked_of_world", "functions_in", "modes_named", "world_found_by"]

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

MODE = "mode"
"""The kind of what tells of a mode of torch."""
_MODE_NAMES = frozenset(
    {*MODES, "get_autocast_cpu_dtype", "get_autocast_gpu_dtype", "is_autocast_cpu_enabled"}
)

_asked: dict[int, tuple[str, str]] = {
    **{id(getattr(torch, name)): (MODE, name) for name in _MODE_NAMES},
    **{id(getattr(time, name)): ("clock", f"time.{name}") for name in _CLOCKS},
    **{
        id(vars(module)[name]): ("entropy", f"{module.__name__}.{name}")
        for module, names in _ENTROPY.items()
        for name in names
        if name in vars(module)  # Not every system has all.
    },
}
"""Id of a function -> (what it asks for, how messages call it; of a mode the name that torch has for it)."""
_MODULES = frozenset(map(id, (time, *_ENTROPY)))
_NAMES = frozenset({"getattr", *_CLOCKS, *(name for names in _ENTROPY.values() for name in names)})


def asked_of_world(function: Any) -> tuple[str, str] | None:
    """Return what a function asks for, ``"clock"``, ``"entropy"`` or a `MODE`, and its name; None for any other."""
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


def modes_named(names: frozenset[str]) -> Iterable[tuple[str, Any]]:
    """Return the functions of torch that tell of modes, with their names, that are among those that code uses."""
    if _MODE_NAMES.isdisjoint(names):
        return ()
    return [(name, original_of(vars(torch)[name])) for name in sorted(_MODE_NAMES & names)]


def functions_in(module: ModuleType) -> dict[str, Any]:
    """Return these functions among those of a module, by name."""
    return {name: value for name, value in vars(module).items() if id(value) in _asked}

"""Which values the functions that are running compare by identity: Python tells nobody when it does."""

from __future__ import annotations

import builtins
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.hazards import scan_of
from fxplug.capture.sources import frames_of_program
from fxplug.semantics.internals import buffers_of, modules_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from fxplug.capture.identity import Comparison

__all__ = ["asks_for_ids", "comparisons_under_way"]

_UNKNOWN: Any = object()


def comparisons_under_way(is_value: Callable[[Any], bool]) -> Iterator[tuple[Comparison, list[Any]]]:
    """Yield the comparisons in the functions of the program that are running, if they may be of values of the program.

    Args:
        is_value: Whether something is, or stands for, a value of the program.

    Yields:
        A comparison, and what its operands are now, as far as that is plain to see.
    """
    for frame in frames_of_program():
        for comparison in scan_of(frame.f_code).comparisons:
            found = [_look_up(frame, path) for path in (comparison.one, comparison.other)]
            known = [value for value in found if value is not _UNKNOWN]
            if all(map(is_value, known)):
                yield comparison, known


def asks_for_ids() -> bool:
    """Return whether a function of the program that is running names ``id``."""
    return any("id" in scan_of(frame.f_code).asks for frame in frames_of_program())


def _look_up(frame: FrameType, path: tuple[str, ...]) -> Any:
    """Return what a variable holds, or an attribute of it; what is not there yet, or None so far, is not known."""
    if not path:
        return _UNKNOWN
    if path[0]:
        value, names = frame.f_locals.get(path[0]), path[1:]
    else:
        value, names = frame.f_globals.get(path[1], vars(builtins).get(path[1])), path[2:]
    for name in names:
        if value is None or value is _UNKNOWN:
            break
        value = _held(value, name)
    return _UNKNOWN if value is None else value


def _held(owner: Any, name: str) -> Any:
    """Return what an object holds under a name, without asking it: reads are recorded, and properties run."""
    if isinstance(owner, nn.Module):
        tables: list[Mapping[str, Any]] = [
            vars(owner),
            parameters_of(owner),
            buffers_of(owner),
            modules_of(owner),
        ]
    elif isinstance(owner, (type, ModuleType)):
        tables = [vars(owner)]
    else:
        tables = []
    for table in tables:
        if name in table:
            return table[name]
    if tables and not isinstance(owner, nn.Module):
        return _UNKNOWN
    static = inspect.getattr_static(owner, name, _UNKNOWN)
    return _UNKNOWN if hasattr(type(static), "__get__") else static

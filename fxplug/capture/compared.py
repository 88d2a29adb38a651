"""Which values the functions that are running compare by identity: Python tells nobody when it does."""

from __future__ import annotations

import builtins
import enum
import inspect
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.hazards import scan_of
from fxplug.capture.identity import ELEMENT_OF, assigned_later, names_operators
from fxplug.capture.sources import frames_of_program
from fxplug.errors import TraceError
from fxplug.semantics.internals import buffers_of, modules_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from types import FrameType

    from fxplug.capture.identity import Comparison

__all__ = [
    "MissedComparisonError",
    "are_handed_over",
    "compared_with_found",
    "comparisons_under_way",
    "follow",
    "is_unknown",
    "look_up_global",
    "made_to_compare",
    "may_compare_elsewhere",
]

_UNKNOWN: Any = object()
_STRUCTURAL = (
    *(nn.Module, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType),
    *(enum.Enum, str, torch.dtype, torch.device),
)
"""Classes of what programs are made of: a variable that holds one will hold no value of the program later."""


class MissedComparisonError(TraceError):
    """A function that compares values by identity is called in a trace that takes it for one that is not."""


def comparisons_under_way(is_value: Callable[[Any], bool]) -> Iterator[tuple[Comparison, list[Any]]]:
    """Yield the comparisons in the functions of the program that are running, if they may be of values of the program.

    Args:
        is_value: Whether something is, or stands for, a value of the program.

    Yields:
        A comparison, and those of its operands that are now what they will be when it is made. If there is none of
        these, it may be of any value; otherwise it is of one of these with one that is not known, or with another one.
    """
    for frame in frames_of_program():
        comparisons = scan_of(frame.f_code).comparisons
        later = assigned_later(frame.f_code, frame.f_lasti) if comparisons else frozenset[str]()
        for comparison in comparisons:
            paths = (comparison.one, comparison.other)
            found = [_look_up(frame, path, later) for path in paths]
            known = [value for value in found if value is not _UNKNOWN]
            if all(map(is_value, known)):
                yield comparison, known


def compared_with_found(weight: torch.Tensor, is_weight: Callable[[Any], bool]) -> Iterator[Comparison]:
    """Yield the comparisons in functions that are running of what may be a weight with the weight as it was found.

    What modules have registered is read of them, and something stands for it; what a list, an object or a global holds
    is found as it is.

    Args:
        weight: What is found.
        is_weight: Whether something is the weight, or stands for it.
    """
    for frame in frames_of_program():
        comparisons = scan_of(frame.f_code).comparisons
        later = assigned_later(frame.f_code, frame.f_lasti) if comparisons else frozenset[str]()
        for comparison in comparisons:
            paths = (comparison.one, comparison.other)
            for path, against in (paths, paths[::-1]):
                if comparison.is_by_operator or not _finds(frame, path, weight):
                    continue
                value = _look_up(frame, against, later)
                if value is _UNKNOWN or is_weight(value):
                    yield comparison


def _finds(frame: FrameType, path: tuple[str, ...], weight: torch.Tensor) -> bool:
    """Return whether a path leads to a weight, otherwise than by what a module has registered."""
    if not path:
        return False
    if not path[0]:
        value, names = look_up_global(frame.f_globals, path[1]), path[2:]
    else:
        value, names = frame.f_locals.get(path[0]), path[1:]
    for name in names:
        if name == ELEMENT_OF:
            parts: Any = (
                list(dict.values(cast("dict[Any, Any]", value))) if issubclass(type(value), dict) else value
            )
            return issubclass(type(parts), (list, tuple)) and any(part is weight for part in parts)
        if isinstance(value, nn.Module) and (name in parameters_of(value) or name in buffers_of(value)):
            return False
        value = follow(value, (name,))
    return value is weight


def _look_up(frame: FrameType, path: tuple[str, ...], later: frozenset[str]) -> Any:
    """Return what a variable holds, or an attribute of it, as far as it will hold that when it is compared."""
    if not path:
        return _UNKNOWN
    if not path[0]:
        value, names = look_up_global(frame.f_globals, path[1]), path[2:]
    else:
        value, names = frame.f_locals.get(path[0]), path[1:]
        if path[0] in later and (names or not isinstance(value, _STRUCTURAL)):
            return _UNKNOWN
    return follow(value, names)


def look_up_global(namespace: Mapping[str, Any], name: str) -> Any:
    """Return what a function finds under the name of a global, None where there is nothing."""
    return namespace.get(name, vars(builtins).get(name))


def is_unknown(value: Any) -> bool:
    """Return whether `follow` has found nothing that can be known without asking."""
    return value is _UNKNOWN


def follow(value: Any, names: Iterable[str]) -> Any:
    """Return what stands at the end of a path of attributes, as far as it can be known without asking."""
    for name in names:
        if value is None or value is _UNKNOWN:
            break
        value = _held(value, name)
    return _UNKNOWN if value is None else value


def are_handed_over(function: FunctionType, code: CodeType, owner: Any) -> bool:
    """Return whether a function may compare by identity what it is called with, or parts of it, with one another.

    Args:
        function: The function.
        code: Its own code.
        owner: The object whose method it is; None for a function.
    """
    if names_operators(scan_of(code).names) or made_to_compare(code):
        return True
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    own = parameters[:1] if isinstance(owner, nn.Module) else ()
    # With a class, a function or a member of an enumeration no value of the program is compared.
    lines: dict[int, bool] = {}  # One line may hold several.
    for one in scan_of(code).comparisons:
        is_plain = any(_names_no_value(function, path) for path in (one.one, one.other))
        lines[one.line.line] = is_plain and lines.get(one.line.line, True)
    plain = {line for line, is_plain in lines.items() if is_plain}
    for pair in scan_of(code).pairs:
        sides = {pair.one, pair.other} - {"", *own}
        if pair.one and not sides:
            continue  # What a module holds is no value of the program.
        if pair.line.line not in plain:
            return True
    if parameters and not own:  # What an object holds that is no module may be a value.
        found = [one for one in scan_of(code).comparisons if one.line.line not in plain]
        held = [side for one in found for side in (one.one, one.other) if len(side) > 1]
        if any(side[0] == parameters[0] for side in held):
            return True
    return "id" in scan_of(code).asks and len(parameters) > len(own)


def made_to_compare(code: CodeType) -> list[CodeType]:
    """Return the code of functions that a function makes when it runs, and that compare what they are called with."""
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    found = [part for part in inner if any(pair.one and pair.other for pair in scan_of(part).pairs)]
    return found + [deeper for part in inner for deeper in made_to_compare(part)]


def _names_no_value(function: FunctionType, path: tuple[str, ...]) -> bool:
    """Return whether a path leads through the globals of a function to something that is no tensor."""
    if path[:1] != ("",):
        return False
    value = follow(look_up_global(function.__globals__, path[1]), path[2:])
    return value is not _UNKNOWN and not isinstance(value, torch.Tensor)


def may_compare_elsewhere(codes: Collection[CodeType]) -> bool:
    """Return whether one of some functions that compare may be called with a value that has just been computed.

    Those that are running are looked at themselves.
    """
    if not codes:
        return False
    running = [frame.f_code for frame in frames_of_program()]
    return any("id" in scan_of(code).asks for code in running) or any(
        all(code is not one for one in running) for code in codes
    )


def _held(owner: Any, name: str) -> Any:
    """Return what an object holds under a name, without asking it: reads are recorded, and properties run."""
    if name == ELEMENT_OF:
        is_of_modules = isinstance(owner, (nn.ModuleList, nn.ModuleDict, nn.Sequential))
        return nn.Module if is_of_modules else _UNKNOWN
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

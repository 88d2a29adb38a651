"""What a function of a program finds by itself, other than among what it is called with."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.attributes import attribute_of, can_be_asked
from fxplug.capture.bytecode import globals_read
from fxplug.capture.containers import elements_of, is_foreign
from fxplug.capture.writes import with_inner

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from types import CodeType

__all__ = ["found_by", "holds_one_of", "ids_found_by", "is_found"]

_GLOBAL = "global"
_DEEPEST, _MOST = 3, 100
"""Containers are looked into that have at most so many elements, and so many of them in one another."""


def found_by(function: FunctionType, names: frozenset[str], owner: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield what a function finds: what kind of place it is in, its name there, and the value.

    Args:
        function: The function.
        names: Those of globals and attributes in it.
        owner: The object whose method it is; None for a function.
    """
    namespace = function.__globals__
    for name in namespace.keys() & names:
        value = namespace[name]
        if not issubclass(type(value), ModuleType):
            yield _GLOBAL, name, value
        elif not is_foreign(str(vars(value).get("__name__"))):
            held = vars(value)
            yield from (("attribute", f"{name}.{inner}", held[inner]) for inner in held.keys() & names)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield "variable", name, cell.cell_contents
        except ValueError:  # It has no value yet.
            continue
    own: dict[str, Any] = attribute_of(owner, "__dict__", {})
    yield from (("attribute", name, own[name]) for name in own.keys() & names)


def ids_found_by(function: FunctionType, names: frozenset[str], owner: Any) -> set[int]:
    """Return the ids of the tensors in what a function finds."""
    found: set[int] = set()
    for where, name, value in found_by(function, names, owner):
        ids = {id(part) for part in _parts_of(value) if isinstance(part, torch.Tensor)}
        if ids and is_found(function.__code__, where, name):
            found |= ids
    return found


def holds_one_of(value: Any, ids: Container[int]) -> bool:
    """Return whether a value, or something in it if it is a list, tuple or dict, has one of some ids."""
    return any(id(part) in ids for part in _parts_of(value))


def _parts_of(value: Any, steps: int = _DEEPEST) -> Iterator[Any]:
    if not can_be_asked(value):
        return
    if not isinstance(value, (list, tuple, dict)):
        yield value
        return
    parts = [*elements_of(value)]
    if steps > 0 and len(parts) <= _MOST:
        for part in parts:
            yield from _parts_of(part, steps - 1)


def is_found(code: CodeType, where: str, name: str) -> bool:
    """Return whether a function looks for a name where it was found by `found_by`, and does not only have it.

    Args:
        code: Of the function.
        where: What kind of place it is.
        name: The name: a global may be called as an attribute is that the function names.
    """
    if where != _GLOBAL:
        return True
    return any(name in globals_read(part) for part in with_inner(code))

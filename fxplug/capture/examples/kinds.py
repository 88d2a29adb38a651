"""Whether a program may ask what kind of value an input is."""

from __future__ import annotations

import functools
from types import CodeType, FunctionType
from typing import Any

from torch import nn

__all__ = ["asks_for_kinds"]

_ASKING = frozenset(
    {"isinstance", "issubclass", "type", "is_tensor", "callable", "hasattr", "singledispatch", "__class__"}
)
_FAR = 3
"""How many calls away from the root functions are looked at."""


def asks_for_kinds(root: Any) -> bool:
    """Return whether a module or function, or a function that it calls by a global name, asks for classes of values."""
    function = type(root).forward if isinstance(root, nn.Module) else root
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return isinstance(function, FunctionType) and _asks(function, _FAR, set())


def _asks(function: FunctionType, steps: int, seen: set[int]) -> bool:
    if id(function) in seen:
        return False
    seen.add(id(function))
    names = _names_in(function.__code__)
    if not _ASKING.isdisjoint(names):
        return True
    if steps == 0:
        return False
    called = [function.__globals__.get(name) for name in names]
    return any(
        isinstance(value, FunctionType)
        and not value.__module__.startswith("torch")
        and _asks(value, steps - 1, seen)
        for value in called
    )


@functools.lru_cache(maxsize=1024)
def _names_in(code: CodeType) -> frozenset[str]:
    """Return the global names and attributes that a function uses, those in it included."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return frozenset(names)

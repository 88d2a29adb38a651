"""The free names of generated code: which object each refers to, and under which name it can be reached safely.

Text that users control never becomes source here. A dotted path is printed only when resolving it gives the
very object that is meant; everything else is bound under a fresh name that no parameter and no value of the
function has.
"""

from __future__ import annotations

import builtins
import keyword
import math
import operator
import re
import struct
import types
import typing
from typing import TYPE_CHECKING, Any

from fxplug.ir import qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["GlobalTable", "register_named_type", "register_root", "register_value_type"]

_ROOTS: dict[str, Any] = {"builtins": builtins, "math": math, "operator": operator}
_NAMED_TYPES: dict[type, Callable[[Any], str]] = {}
_VALUE_TYPES: set[type] = set()
_FUNCTION_NAMES = frozenset({"forward"})
"""What generated source defines itself."""
_ALIASES = (types.GenericAlias, types.UnionType, type(typing.List[int]))  # noqa: UP006 - the class of typing's own aliases
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


_NUMBERS = frozenset({int, float, complex})


def _bits(number: complex) -> object:
    """Return what two numbers have in common when they are the same, zeros and payloads of NaN included."""
    if isinstance(number, int):
        return number
    return struct.pack("<dd", number.real, number.imag)


def register_root(name: str, module: object) -> None:
    """Let generated code reach what `module` holds as ``name.attribute``.

    Args:
        name: Top-level name of a well-known library, e.g. ``"torch"``.
        module: The library's module object.
    """
    _ROOTS[name] = module


def register_named_type(kind: type, path_of: Callable[[Any], str]) -> None:
    """Let constants of type `kind` be printed by a dotted path, e.g. ``torch.float32``.

    Args:
        kind: Exact type of the constants.
        path_of: Gives the path. It is printed only if it leads back to the same object.
    """
    _NAMED_TYPES[kind] = path_of


def register_value_type(kind: type) -> None:
    """Let equal constants of type `kind`, which must be hashable, go by one name, as they would in written code.

    Args:
        kind: Exact type of the constants.
    """
    _VALUE_TYPES.add(kind)


class GlobalTable:
    """Collects the globals of one generated function.

    Args:
        taken: Every name that the function binds itself (parameters and values).
        given: Globals that are there in any case.
    """

    def __init__(self, taken: set[str], given: Mapping[str, Any]) -> None:
        self._taken = taken
        self._known: dict[int, tuple[Any, str]] = {}
        self._equal: dict[tuple[object, ...], str] = {}
        self.globals: dict[str, Any] = dict(given)
        """Name -> object."""

    def refer(self, value: Any, hint: str | None = None) -> str:
        """Return source text that evaluates to `value` itself.

        Args:
            value: A function, class or constant.
            hint: Text from which the name of a table entry is made.
        """
        known = self._known.get(id(value))
        if known is None:
            like = self._like(value)
            text = self._equal.get(like) if like is not None else None
            if text is None:
                text = self._dotted(value) or self._bind(value, hint)
                if like is not None:
                    self._equal[like] = text
            # The value is kept, so that no other one gets its id.
            known = self._known[id(value)] = value, text
        return known[1]

    def refer_itself(self, value: Any) -> str:
        """Return a name of `value` itself, never that of an equal one.

        Args:
            value: A constant.
        """
        known = self._known.get(id(value))
        if known is None or self.globals.get(known[1]) is not value:
            known = self._known[id(value)] = value, self._bind(value, None)
        return known[1]

    def _like(self, value: Any) -> tuple[object, ...] | None:
        """Return what equal numbers, ``list[int]`` or devices share, each mention of which is an object of its own."""
        kind = type(value)
        if kind in _NUMBERS:
            return kind, _bits(value)
        if kind not in _VALUE_TYPES and not isinstance(value, _ALIASES):
            return None
        try:
            hash(value)
        except TypeError:  # Such as ``Annotated[int, []]``.
            return None
        return kind, value, repr(value)

    def path_of(self, value: Any) -> str | None:
        """Return the dotted path of a well-known object, None when it has none that is reachable."""
        return self._dotted(value)

    def _dotted(self, value: Any) -> str | None:
        path_of = _NAMED_TYPES.get(type(value))
        if path_of is None and not callable(value):
            return None
        path = path_of(value) if path_of is not None else qualified_name(value)
        if _PATH.fullmatch(path) is None or any(map(keyword.iskeyword, path.split("."))):
            return None
        root, _, rest = path.partition(".")
        holder: Any = _ROOTS.get(root)
        if holder is None:
            return None
        for part in rest.split("."):
            holder = getattr(holder, part, None)
        if holder is not value:
            return None
        visible = rest if root == "builtins" else path
        name = visible.partition(".")[0]
        found = getattr(builtins, name) if root == "builtins" else _ROOTS[root]
        if name in self._taken or self.globals.get(name, found) is not found:
            return None
        self.globals[name] = found
        return visible

    def _bind(self, value: Any, hint: str | None) -> str:
        base = re.sub(r"[^A-Za-z0-9_]", "_", hint or f"_fxp_{type(value).__name__}")
        if base[0].isdigit() or keyword.iskeyword(base) or base.startswith("__") or base in _FUNCTION_NAMES:
            base = f"_fxp_{base}"
        name, number = base, 0
        while name in self._taken or name in self.globals or name in _ROOTS or hasattr(builtins, name):
            number += 1
            name = f"{base}_{number}"
        self.globals[name] = value
        return name

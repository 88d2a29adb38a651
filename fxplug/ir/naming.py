"""Names: unique inside a graph, valid as Python identifiers, stable under unrelated edits.

A name is a base and, when the base is taken, a counter: ``add``, ``add_1``, ``add_2``. A trailing
``_<digits>`` of a candidate counts as such a counter. Names that Python reserves, or that generated code
refers to, are never given bare.
"""

from __future__ import annotations

import builtins
import keyword
import re
from functools import lru_cache
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = [
    "Namespace",
    "are_usable",
    "is_class_method",
    "is_reserved",
    "qualified_name",
    "register_namespace",
    "snake_case",
    "target_name",
    "wish_of_path",
]

_FORM = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*?)(?:_([0-9]+))?")
_FORBIDDEN = re.compile(r"[^a-zA-Z0-9_]+")
_MOST_DIGITS = 18
"""A longer row of digits is no counter but part of the name."""
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")

_RESERVED = frozenset(
    {*keyword.kwlist, *dir(builtins), "inf", "nan", "NoneType", "torch", "device", "fx_pytree", "pytree"}
)


def is_reserved(name: str) -> bool:
    """Return whether generated code could not use `name` for a value without hiding something."""
    return name in _RESERVED


def are_usable(names: Collection[str]) -> bool:
    """Return whether generated code could use all `names` for values; a no may be wrong for letters beyond ASCII."""
    return _RESERVED.isdisjoint(names) and all(map(str.isascii, names)) and all(map(str.isidentifier, names))


def snake_case(name: str) -> str:
    """Return `name` in lower case with underscores where its words met, e.g. ``BatchNorm2d`` -> ``batch_norm2d``."""
    return _CAPITAL.sub("_", name).lower() if not name.islower() else name


@lru_cache(maxsize=1 << 12)
def _is_plain(candidate: str) -> bool:
    """Return whether a name may be given as it is where it is free: it is not reserved, and ends in no counter."""
    return (
        candidate not in _RESERVED
        and candidate.isidentifier()
        and candidate.isascii()
        and (candidate[-1] > "9" or not candidate.rpartition("_")[2].isdigit())
    )


@lru_cache(maxsize=1 << 14)
def wish_of_path(path: str) -> tuple[str, str | None, int]:
    """Return the name that the call of the module at a path wishes for, with its counter.

    Args:
        path: Dotted.

    Returns:
        The name, empty where more has to be done to it than to take the dots away; the base whose counter it moves if
        it is given as it is, empty where it ends in none, and None where it may not be given so; the number at its end.
    """
    if not path.islower() or path[:2] == "__":
        return "", None, 0
    wish = path.replace(".", "_")
    if _is_plain(wish):
        return wish, "", 0
    base, _, tail = wish.rpartition("_")
    is_numbered = bool(base) and tail.isdigit() and len(tail) <= _MOST_DIGITS
    if is_numbered and wish not in _RESERVED and wish.isidentifier() and wish.isascii():
        return wish, base, int(tail)
    return wish, None, 0


class Namespace:
    """Hands out unique names.

    Giving a name costs constant time on average, also for the millionth ``add``.
    """

    __slots__ = ("_counts", "_used")

    def __init__(self, used: Iterable[str] = ()) -> None:
        # A dict and not a set: it takes less than half of the memory, which every node of a graph pays.
        self._used: dict[str, None] = dict.fromkeys(used)
        self._counts: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._used

    def copy(self) -> Namespace:
        """Return an independent namespace that continues from the same state."""
        other = Namespace(self._used)
        other._counts = dict(self._counts)
        return other

    def create_name(self, candidate: str) -> str:
        """Return a fresh name near `candidate` and mark it as used.

        Args:
            candidate: Any text. Characters that no identifier holds become underscores.

        Returns:
            The candidate itself where it is free and not reserved, else its base with the next free number.
        """
        used = self._used
        if candidate not in used:
            if _is_plain(candidate):
                used[candidate] = None  # Its counter begins when it is wished for again: most names are not.
                return candidate
            return self._create_odd(candidate)
        number = self._counts.get(candidate)
        if number is None:
            if not (candidate.isidentifier() and candidate.isascii()):
                return self._create_odd(candidate)
            number = 0
        if candidate[-1].isdigit():
            return self._create_odd(candidate)
        # A base that was given before: the hot path of a trace.
        number += 1
        name = f"{candidate}_{number}"
        while name in used:
            number += 1
            name = f"{candidate}_{number}"
        self._counts[candidate] = number
        used[name] = None
        return name

    def _create_odd(self, candidate: str) -> str:
        """Return a fresh name near a candidate that is taken, reserved, numbered, or no identifier."""
        used = self._used
        if not (candidate.isidentifier() and candidate.isascii()):
            candidate = _FORBIDDEN.sub("_", candidate) or "_unnamed"
            candidate = f"_{candidate}" if candidate[0].isdigit() else candidate
        base, separator, tail = candidate.rpartition("_")
        # A base is not empty and does not end in a digit-free underscore run of its own: "_1" has no counter.
        digits = tail if separator and base and tail.isdigit() and len(tail) <= _MOST_DIGITS else None
        if digits is None:
            base = candidate
            number = self._counts.get(base, 0)
        else:
            number = self._counts.get(base, 0) if candidate in used else int(digits)
        name = candidate
        if name in _RESERVED:
            number += 1
            name = f"{base}_{number}"
        while name in used:
            number += 1
            name = f"{base}_{number}"
        used[name] = None
        self._counts[base] = max(number, self._counts.get(base, 0))
        return name

    def associate(self, name: str) -> None:
        """Mark `name` as used without choosing it."""
        self._used[name] = None

    def release(self, name: str) -> None:
        """Give a name back; its counter does not move, so that later names stay stable."""
        self._used.pop(name, None)


# Callables that builtin extension modules define carry no module of their own; whoever knows such a library
# registers where its names are looked up. Order matters: the first namespace that holds the very object wins.
_NAMESPACES: list[tuple[str, Any]] = [("builtins", builtins)]
_FOUND: dict[int, tuple[Any, str]] = {}


def register_namespace(prefix: str, holder: object) -> None:
    """Let `qualified_name` find callables without a module of their own as attributes of `holder`.

    Args:
        prefix: Text before the attribute name, without the dot, e.g. ``"torch"``.
        holder: A module or class whose attributes are searched.
    """
    if all(known is not holder for _, known in _NAMESPACES):
        _NAMESPACES.append((prefix, holder))


def _search_namespaces(function: object, name: str) -> str | None:
    for prefix, holder in _NAMESPACES:
        # torch.linalg.norm knows itself as linalg_norm.
        for candidate in (name, name.removeprefix(f"{prefix.rpartition('.')[2]}_")):
            if getattr(holder, candidate, None) is function:
                return f"{prefix}.{candidate}"
    return None


def qualified_name(function: object) -> str:
    """Return the dotted name by which a reader knows a callable, e.g. ``torch.relu`` or ``operator.add``.

    Args:
        function: A target of a ``call_function`` node.

    Returns:
        A readable name. It need not resolve back to the same object; code generation checks that for itself.
    """
    cached = _FOUND.get(id(function))
    if cached is not None and cached[0] is function:
        return cached[1]
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        return f"{type(function).__module__}.{type(function).__qualname__}"
    name = str.__str__(name)  # A subclass of str may show another text than it holds.
    if is_class_method(function):
        owner: Any = cast("MethodType", function).__self__
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    found = _search_namespaces(function, name)
    if found is None:
        module = getattr(function, "__module__", None)
        owner = getattr(function, "__objclass__", None)
        if not isinstance(module, str):
            module = (
                f"{owner.__module__}.{owner.__qualname__}"
                if isinstance(owner, type)
                else type(function).__name__
            )
        # The operator module is implemented in C under a private name.
        module = "operator" if module == "_operator" else module
        return f"{module}.{name}"
    # Only what lives in a registered library is remembered: it is not garbage collected anyway.
    _FOUND[id(function)] = (function, found)
    return found


def is_class_method(value: object) -> bool:
    """Return whether a callable is a method bound to a class: a new object each time that it is read off the class."""
    return isinstance(value, MethodType) and isinstance(value.__self__, type)


def target_name(target: object) -> str:
    """Return the text from which the name of a node with this target is made."""
    if target.__class__ is str:
        return _name_of_text(cast("str", target))
    name = target if isinstance(target, str) else getattr(target, "__name__", None)
    # A subclass of str may show another text than it holds.
    return _name_of_text(str.__str__(name) if isinstance(name, str) else type(target).__name__)


@lru_cache(maxsize=1 << 12)
def _name_of_text(text: str) -> str:
    """Return the text from which a name is made, for the name of a function or method, or a path."""
    if text.islower() and text[:2] != "__":
        return text.replace(".", "_")
    if text[:2] == "__" and text.endswith("__") and len(text) > 4:
        text = text[2:-2]
    return snake_case(text.replace(".", "_"))

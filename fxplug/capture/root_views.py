"""What stands for the root in a function that is made again in each call of a graph.

``vmap(lambda row: self.net(row) * self.scale)`` holds the module that is captured. The graph has its submodules and
weights, and not the module itself; but the function wants no more of it than what it names. So it gets another object
of the same class that has just that. Code that does more with the module than to ask for what it names could tell the
difference.
"""

from __future__ import annotations

import builtins
import inspect
from functools import partial
from itertools import pairwise
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from torch import nn

from fxplug.capture.originals import original_of
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    import dis
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["Needed", "attributes_read", "needed_of", "new_view", "only_assigns"]

Names: TypeAlias = frozenset[str]

_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_BASES = frozenset({*_READS, "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_ATTR"})
_SILENT = frozenset({"CACHE", "NOP", "PRECALL", "PUSH_NULL", "EXTENDED_ARG"})
_OF_CELLS = frozenset({"LOAD_CLOSURE", "MAKE_CELL"})
_OWN_ACCESS = ("__getattribute__", "__getattr__")
_TABLES = ("_modules", "_parameters", "_buffers")
_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}
"""What every module has of its own."""
_BASE = "super "
"""Stands before the name of what is asked of the base classes."""
_LISTING = frozenset(
    {
        *("buffers", "children", "modules", "parameters"),
        *("named_buffers", "named_children", "named_modules", "named_parameters"),
    }
)
"""Methods of modules that read nothing but what the module holds."""


def attributes_read(code: CodeType, name: str, namespace: Mapping[str, Any]) -> Names | None:
    """Return the attributes of a variable that code reads; None where it does anything else with it.

    Args:
        code: Of a function that has the variable, from around it or as its own.
        name: Of the variable.
        namespace: Where the function finds globals.
    """
    found: set[str] = set()
    is_shared = name in code.co_cellvars or name in code.co_freevars
    entries = [entry for entry in instructions_of(code) if entry.opname not in _SILENT]
    for number, entry in enumerate(entries):
        if not _names(entry, name) or entry.opname == "MAKE_CELL":
            continue
        if entry.opname == "LOAD_CLOSURE" or (is_shared and entry.opname == "LOAD_FAST"):
            continue  # For a function inside, which is looked at below.
        read = _read_at(entries, number, name, namespace)
        if read is None:
            return None
        found |= read
    found |= {_BASE + read for read in _asked_of_bases(entries, namespace)}
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and name in inner.co_freevars:
            read = attributes_read(inner, name, namespace)
            if read is None:
                return None
            found |= read
    return frozenset(found)


def only_assigns(code: CodeType, name: str) -> bool:
    """Return whether code does nothing with a variable but to assign attributes of it."""
    if name in code.co_cellvars:
        return False
    entries = [*instructions_of(code)]
    return all(
        entry.opname == "LOAD_FAST" and following.opname == "STORE_ATTR"
        for entry, following in pairwise(entries)
        if _names(entry, name)
    )


def _read_at(
    entries: list[dis.Instruction], number: int, name: str, namespace: Mapping[str, Any]
) -> set[str] | None:
    """Return the attributes that are read where an instruction loads a variable, None for anything else."""
    entry, following = entries[number], entries[number + 1]
    last = entry.argval[-1] if isinstance(entry.argval, tuple) else entry.argval
    if not entry.opname.startswith("LOAD_") or last != name:
        return None
    if following.opname in _READS:
        return {following.argval}
    asked = _builtin_at(entries, number - 1, namespace)
    if asked == "isinstance" or (asked == "type" and following.opname.startswith("CALL")):
        return set()
    if asked in {"getattr", "hasattr"}:
        return _named_at(entries, number + 1)
    # super(Class, self)
    return set() if _builtin_at(entries, number - 2, namespace) == "super" else None


def _named_at(entries: list[dis.Instruction], number: int) -> set[str] | None:
    """Return the constant that is the name in a call of ``getattr``, None where that is computed."""
    name, *following = entries[number : number + 3]
    if name.opname != "LOAD_CONST" or not isinstance(name.argval, str):
        return None
    if not following[0].opname.startswith("CALL"):  # Then it has a default.
        following = following[1:] if following[0].opname.startswith("LOAD_") else []
    return {name.argval} if following and following[0].opname.startswith("CALL") else None


def _builtin_at(entries: list[dis.Instruction], number: int, namespace: Mapping[str, Any]) -> str:
    """Return the name of the function of Python that an instruction loads, else nothing."""
    if number < 0 or entries[number].opname != "LOAD_GLOBAL":
        return ""
    name: str = entries[number].argval
    function = getattr(builtins, name, None)
    # While a trace runs, something may stand in for it.
    return name if original_of(namespace.get(name, function)) is function else ""


def _asked_of_bases(entries: list[dis.Instruction], namespace: Mapping[str, Any]) -> Iterable[str]:
    """Yield the attributes that are read of ``super()``."""
    for number in range(len(entries)):
        if _builtin_at(entries, number, namespace) == "super":
            later = (entry.argval for entry in entries[number + 1 :] if entry.opname in _OF_BASES)
            yield str(next(later, ""))


def _names(entry: dis.Instruction, name: str) -> bool:
    if "FAST" not in entry.opname and "DEREF" not in entry.opname and entry.opname not in _OF_CELLS:
        return False
    return name in entry.argval if isinstance(entry.argval, tuple) else entry.argval == name


class Needed:
    """What a function needs of the root.

    Args:
        root: The module.
    """

    def __init__(self, root: nn.Module) -> None:
        self.tables: dict[str, dict[str, Any]] = {table: {} for table in _TABLES}
        """What the root has as submodule, parameter or buffer, by the name of the table."""
        self.own: dict[str, Any] = {}
        """Its other attributes."""
        self.asks_for_mode = False
        """Whether the function asks whether the root is in training."""
        self._root = root
        self._known: set[str] = set()
        self._waiting: list[str] = []

    def add(self, names: Iterable[str]) -> bool:
        """Add attributes, with what is read where they are computed; return whether no more than that is needed."""
        self._waiting += names
        while self._waiting:
            name = self._waiting.pop()
            if name in self._known:
                continue
            self._known.add(name)
            if name.startswith(_BASE):
                if not self._add_of_bases(name.removeprefix(_BASE)):
                    return False
            elif not self._add_held(name) and not self._add_of_class(name):
                return False
        return True

    def _add_held(self, name: str) -> bool:
        root = self._root
        for table, values in self.tables.items():
            held: dict[str, Any] = vars(root)[table]
            if name in held:
                values[name] = held[name]
                return True
        own = vars(root)
        if name == "training":
            self.asks_for_mode = True
            return True
        if name not in own or name in _OF_MODULES:
            return False
        self.own[name] = own[name]
        return True

    def _add_of_class(self, name: str) -> bool:
        if name == "__class__":
            return True
        for base in type(self._root).__mro__:
            if name in vars(base):
                return self._add_defined(base, name)
        # It has none: a question whether it has (`hasattr`) gets the same answer from another object of the class.
        return not hasattr(self._root, name)

    def _add_of_bases(self, name: str) -> bool:
        bases = [base for base in type(self._root).__mro__ if name in vars(base)]
        # What comes first may be what asks.
        return bool(bases) and all(self._add_defined(base, name) for base in bases)

    def _add_defined(self, base: type, name: str) -> bool:
        if base is nn.Module:
            return name in _LISTING and self._add_all()
        value = inspect.getattr_static(base, name)
        if isinstance(value, (staticmethod, classmethod)):
            return _is_plain(cast("staticmethod[..., Any]", value).__func__)
        if type(value) is property:
            value = value.fget
        elif not isinstance(value, FunctionType):
            return not hasattr(type(value), "__get__")
        if not isinstance(value, FunctionType) or not _is_plain(value):
            return False
        code = value.__code__
        read = attributes_read(code, code.co_varnames[0], value.__globals__) if code.co_argcount else None
        self._waiting += read or ()
        return read is not None

    def _add_all(self) -> bool:
        held = vars(self._root)
        self._waiting += [name for table in _TABLES for name in held[table]]
        self._waiting += _LISTING  # They call one another.
        for name in _LISTING:
            if all(name not in vars(base) for base in type(self._root).__mro__ if base is not nn.Module):
                self._known.add(name)
        return True


def _is_plain(value: Any) -> bool:
    """Return whether a function holds nothing but the class that it belongs to."""
    return isinstance(value, FunctionType) and not set(value.__code__.co_freevars) - {"__class__"}


def needed_of(root: nn.Module, names: Iterable[str]) -> Needed | None:
    """Return what a function needs of the root; None where it cannot do without the root.

    Args:
        root: The module.
        names: The attributes that the function reads; those that the methods read come to them.
    """
    if any(getattr(type(root), name, None) is not getattr(nn.Module, name, None) for name in _OWN_ACCESS):
        return None
    needed = Needed(root)
    return needed if needed.add(names) else None


def new_view(root: nn.Module) -> Callable[[], Any]:
    """Return how to make what stands for the root: an object of its class that holds nothing yet."""
    kind = type(root)
    tables = {name: value for name, value in vars(root).items() if name in _OF_MODULES}
    return partial(_new_view, kind, tables, training=root.training)


def _new_view(kind: type, tables: dict[str, Any], *, training: bool) -> Any:
    view: Any = object.__new__(kind)
    vars(view).update(tables, training=training, **{table: {} for table in _TABLES})
    return view

"""What code changes by name, and what it reads by name, as its bytecode says."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import TYPE_CHECKING, Any

from fxplug.capture.bytecode import read_once
from fxplug.ir import SourceLine
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Writes",
    "attributes_set",
    "changes_in",
    "is_read",
    "is_read_of",
    "may_fill",
    "names_by_text",
    "only_adds_to",
    "place_of_write",
    "with_inner",
    "writes_of",
]


@dataclass(frozen=True)
class Writes:
    """The names that a function, or one inside of it, assigns or deletes."""

    variables: frozenset[str] = frozenset()
    """Globals."""
    cells: frozenset[str] = frozenset()
    """Variables of the functions around it."""
    attributes: frozenset[str] = frozenset()
    """Attributes of anything."""
    deletes: bool = False
    """Whether attributes are deleted."""


_NOTHING = Writes()
_OPCODES = {
    "STORE_GLOBAL": "variables",
    "DELETE_GLOBAL": "variables",
    "STORE_DEREF": "cells",
    "DELETE_DEREF": "cells",
    "STORE_ATTR": "attributes",
    "DELETE_ATTR": "attributes",
}
_WRITING = frozenset(dis.opmap[name] for name in _OPCODES)


@read_once
def writes_of(code: CodeType) -> Writes:
    """Return what a function assigns by name."""
    names: dict[str, set[str]] = {"variables": set(), "cells": set(), "attributes": set()}
    deletes = False
    for part in with_inner(code):
        if not _WRITING.isdisjoint(part.co_code[::2]):
            for entry in instructions_of(part):
                if entry.opname in _OPCODES:
                    deletes = deletes or entry.opname == "DELETE_ATTR"
                    names[_OPCODES[entry.opname]].add(entry.argval)
    names["cells"] &= {*code.co_freevars}
    return (
        Writes(**{kind: frozenset(found) for kind, found in names.items()}, deletes=deletes)
        if any(names.values())
        else _NOTHING
    )


def with_inner(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from with_inner(constant)


# -- what is read

_NAMED = frozenset({"LOAD_CLASSDEREF", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"})
_LOCAL = frozenset({"LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_HOLDERS = _NAMED | _ATTRIBUTE
_LOADING = {"attribute": _ATTRIBUTE, "default": _LOCAL, "global": _NAMED, "variable": _NAMED}
"""Kind of a name (see `fxplug.capture.outside.Known`) -> the instructions that read it."""
_ASSIGNED = frozenset({"DELETE_DEREF", "DELETE_GLOBAL", "STORE_DEREF", "STORE_GLOBAL"})
_STORING = {
    "attribute": frozenset({"DELETE_ATTR", "STORE_ATTR"}),
    "default": frozenset[str](),
    "global": _ASSIGNED,
    "variable": _ASSIGNED,
}
"""Kind of a name -> the instructions that assign it."""
_SKIPPED = frozenset(
    {"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "ROT_THREE", "ROT_TWO", "SWAP"}
)
_ADDING = frozenset({"add", "append", "appendleft", "clear", "extend", "insert", "update"})
"""Methods of containers that say nothing of what is in them."""
_CHANGING = frozenset({"DELETE_SUBSCR", "DUP_TOP_TWO", "STORE_SUBSCR"})
_CONTAINER_AND_KEY = 2
_ON_THE_WAY = ("BINARY_SUBSCR", "LOAD_ATTR", "LOAD_CONST", "LOAD_FAST", "LOAD_SMALL_INT")
_ARITHMETIC = ("BINARY_OP", "BINARY_ADD", "BINARY_MOD", "BINARY_MUL", "BINARY_SUBTRACT", "INPLACE_")
_OPERANDS = ("LOAD_CONST", "LOAD_FAST", "LOAD_SMALL_INT")


def is_read(codes: Iterable[CodeType], name: str, kind: str, *, contents: bool) -> bool:
    """Return whether code does something else with a variable or attribute than to change it.

    Args:
        codes: The functions, with those inside of them.
        name: Of the variable or attribute.
        kind: Of the name; an attribute is that of whatever object.
        contents: Whether what it holds has been changed in place, and not the variable itself.
    """
    for code in codes:
        if kind == "attribute" and name in code.co_consts and "getattr" in code.co_names:
            return True
        entries = _entries(code)
        for index, entry in enumerate(entries):
            if entry.opname not in _LOADING[kind] or entry.argval != name:
                continue
            is_change = (
                _only_changes(entries, index + 1)
                if contents
                else _is_stored_again(entries, index + 1, name, kind)
            )
            if not is_change:
                return True
    return False


def is_read_of(codes: Iterable[CodeType], holder: str, name: str) -> bool:
    """Return whether code reads an attribute of what it has just read by a name, as ``self.layer.count``."""
    for code in codes:
        entries = _entries(code)
        for former, entry in pairwise(entries):
            is_attribute = former.opname in _HOLDERS and entry.opname in _ATTRIBUTE
            if is_attribute and former.argval == holder and entry.argval == name:
                return True
    return False


def only_adds_to(code: CodeType, name: str) -> bool:
    """Return whether a function does nothing with a variable but to call methods that add to it."""
    for part in with_inner(code):
        entries = _entries(part)
        for index, entry in enumerate(entries):
            if entry.opname in _NAMED and entry.argval == name:
                following = entries[index + 1] if index + 1 < len(entries) else entry
                if following.opname not in _ATTRIBUTE or following.argval not in _ADDING:
                    return False
    return True


def _entries(code: CodeType) -> list[dis.Instruction]:
    return [entry for entry in instructions_of(code) if entry.opname not in _SKIPPED]


def _is_stored_again(entries: list[dis.Instruction], index: int, name: str, kind: str) -> bool:
    """Return whether what was just read is but counted on and stored under its name, as by ``count += 1``."""
    for entry in entries[index:]:
        if entry.opname in _STORING[kind]:
            return entry.argval == name
        if not entry.opname.startswith((*_OPERANDS, *_ARITHMETIC)):
            return False
    return False


def _only_changes(entries: list[dis.Instruction], index: int) -> bool:
    """Return whether what was just read is changed in place, and not looked into."""
    for entry in entries[index:]:
        # Copied are the container and the key, by ``counts["calls"] += 1``.
        if entry.opname in _CHANGING or (entry.opname == "COPY" and entry.argval == _CONTAINER_AND_KEY):
            return True
        if entry.opname in _ATTRIBUTE and entry.argval in _ADDING:
            return True
        if not entry.opname.startswith(_ON_THE_WAY):
            return False
    return False


# -- what is changed

_KINDS = {
    "LOAD_ATTR": "attribute",
    "LOAD_METHOD": "attribute",
    "STORE_ATTR": "attribute",
    "DELETE_ATTR": "attribute",
    "LOAD_GLOBAL": "global",
    "STORE_GLOBAL": "global",
    "DELETE_GLOBAL": "global",
    "LOAD_DEREF": "variable",
    "STORE_DEREF": "variable",
    "DELETE_DEREF": "variable",
}
_BY_TEXT = frozenset({"__dict__", "__setattr__", "delattr", "setattr", "vars"})
"""Names by which code changes attributes that it does not name."""
_IN_KEYS = ("BINARY_OP", "BUILD_SLICE", "LOAD_DEREF", "LOAD_GLOBAL")
_FILLING = _ADDING | {
    *("__delitem__", "__setitem__", "discard", "pop", "popitem", "popleft", "push", "put", "put_nowait"),
    *("remove", "reverse", "rotate", "setdefault", "sort"),
}
"""Methods of containers that change what is in them."""


def changes_in(code: CodeType) -> Iterator[tuple[str, str, bool]]:
    """Yield name and kind of what a function assigns or changes in place, and whether it is the latter."""
    entries = _entries(code)
    own = {*code.co_varnames, *code.co_cellvars}
    for index, entry in enumerate(entries):
        kind = _KINDS.get(entry.opname)
        if kind is None or (kind == "variable" and entry.argval in own):
            continue
        if not entry.opname.startswith("LOAD"):
            yield entry.argval, kind, False
        elif _is_changed(entries, index + 1) or _is_changed_as_local(entries, index + 1):
            yield entry.argval, kind, True
    if not _BY_TEXT.isdisjoint(code.co_names):
        yield from ((text, "attribute", False) for text in _texts_in(code.co_consts))


def attributes_set(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield the name of a global, or of a variable around it, and that of an attribute of its that a function sets."""
    entries = _entries(code)
    stored = {entry.argval for entry in entries if entry.opname in _STORING["attribute"]}
    own = {*code.co_varnames, *code.co_cellvars}
    for index, entry in enumerate(entries):
        if entry.opname not in _NAMED or entry.argval in own:
            continue
        # `holder.name += 1` reads it first, from a copy of what stands on the stack.
        following = [one for one in entries[index + 1 : index + 3] if one.opname not in {"COPY", "DUP_TOP"}][
            :1
        ]
        for one in following:
            if one.opname in _STORING["attribute"] or (one.opname in _ATTRIBUTE and one.argval in stored):
                yield entry.argval, one.argval


def names_by_text(code: CodeType, values: Iterable[Any]) -> Iterator[str]:
    """Yield the texts among some values, if a function changes attributes that it does not name: they may be those."""
    if not _BY_TEXT.isdisjoint(code.co_names):
        yield from _texts_in(values)


def may_fill(code: CodeType) -> bool:
    """Return whether a function may change what is in a container, whichever that is."""
    if not _FILLING.isdisjoint(code.co_names):
        return True
    return any(entry.opname in _CHANGING or entry.opname == "STORE_SLICE" for entry in _entries(code))


def _texts_in(constants: Iterable[object]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, tuple):  # Such as the names of arguments.
            yield from _texts_in(constant)


def _is_changed_as_local(entries: list[dis.Instruction], index: int) -> bool:
    """Return whether what was just read is kept in a local variable, and changed there."""
    stored = entries[index] if index < len(entries) else None
    if stored is None or not stored.opname.startswith("STORE_FAST"):
        return False
    # Newer Pythons store one variable and load another in one instruction, or load two.
    name = stored.argval[0] if isinstance(stored.argval, tuple) else stored.argval
    return any(
        _loads(entry, name) and _is_changed(entries, at + 1)
        for at, entry in enumerate(entries[index:], start=index)
    )


def _loads(entry: dis.Instruction, name: str) -> bool:
    loaded = entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)
    return "LOAD_FAST" in entry.opname and name in loaded


def _is_changed(entries: list[dis.Instruction], index: int) -> bool:
    """Return whether what was just read is a container that is changed, by a key that may have any name."""
    for entry in entries[index:]:
        if entry.opname in _CHANGING or (entry.opname == "COPY" and entry.argval == _CONTAINER_AND_KEY):
            return True
        if entry.opname in _ATTRIBUTE and entry.argval in _FILLING:
            return True
        if entry.opname == "STORE_SLICE":
            return True
        if not entry.opname.startswith((*_ON_THE_WAY, *_IN_KEYS)):
            return False
    return False


# -- where it is written


def place_of_write(codes: Iterable[CodeType], name: str, kind: str) -> SourceLine | None:
    """Return the line that assigns a variable or attribute, or else the first that names it."""
    named: SourceLine | None = None
    for code in codes:
        line = code.co_firstlineno
        lines = dict(dis.findlinestarts(code))
        for entry in instructions_of(code):
            line = lines.get(entry.offset) or line
            if entry.argval != name:
                continue
            if entry.opname in _STORING[kind]:
                return SourceLine(code.co_filename, line, code.co_name)
            if named is None and entry.opname in _LOADING[kind]:
                named = SourceLine(code.co_filename, line, code.co_name)
    return named

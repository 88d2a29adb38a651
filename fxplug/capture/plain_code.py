"""Code that does nothing but call what its object holds, and functions that it finds by their names.

Each instruction has to be one that is known; any other one, of a newer Python perhaps, makes it code that is looked
through.
"""

from __future__ import annotations

import dis
import inspect
import sys
import weakref
from types import CodeType
from typing import Any, NamedTuple

from fxplug.capture.conversions import CONVERSIONS
from fxplug.capture.hazards import OF_SEQUENCES, scan_of
from fxplug.capture.world import modes_named

__all__ = ["Reads", "reads_of"]


class Reads(NamedTuple):
    """What a plain function reads."""

    called: frozenset[str]
    """Names of its object whose values it calls at once."""
    tested: frozenset[str]
    """Those whose values it only compares with None, or takes for a condition."""
    used: frozenset[str]
    """All others."""
    found: tuple[tuple[str, ...], ...]
    """The names by which it finds something among globals: that of a module, and those of attributes."""


_HARMLESS = frozenset(
    {
        *("CACHE", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME", "TO_BOOL", "EXTENDED_ARG"),
        *("COPY", "DUP_TOP", "DUP_TOP_TWO", "POP_TOP", "ROT_TWO", "ROT_THREE", "ROT_FOUR", "SWAP"),
        *("CALL", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_KW", "CALL_METHOD", "KW_NAMES"),
        *("BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP", "BUILD_TUPLE"),
        *("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST", "RETURN_VALUE", "STORE_FAST"),
        *("BINARY_OP", "COMPARE_OP", "UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_POSITIVE"),
        *(
            f"{prefix}_{name}"
            for prefix in ("BINARY", "INPLACE")
            for name in (
                "ADD",
                "FLOOR_DIVIDE",
                "MATRIX_MULTIPLY",
                "MULTIPLY",
                "POWER",
                "SUBTRACT",
                "TRUE_DIVIDE",
            )
        ),
        *("JUMP_FORWARD", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP"),
        *("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE"),
    }
)
"""Instructions that read no attribute and no variable, of all Pythons: a traced value hears of each."""
_STORE_AND_LOAD = "STORE_FAST_LOAD_FAST"
_LOADING = frozenset(
    {
        *("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"),
        _STORE_AND_LOAD,
    }
)
_WITHOUT_EFFECT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "RESUME"})
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


_reads: dict[int, tuple[weakref.ref[CodeType], Reads | None]] = {}


def reads_of(code: CodeType) -> Reads | None:
    """Return what a plain function reads, by its code; None where it is no plain one. Code is read once."""
    key = id(code)
    known = _reads.get(key)
    if known is None:
        known = _reads[key] = weakref.ref(code, lambda _: _reads.pop(key, None)), _read(code)
    return known[1]


def _read(code: CodeType) -> Reads | None:
    is_closed = code.co_freevars or code.co_cellvars or code.co_flags & _SUSPENDED
    if is_closed or getattr(code, "co_exceptiontable", b"") or any(map(_is_code, code.co_consts)):
        return None
    scan = scan_of(code)
    asks = scan.asks or scan.tests or scan.pairs or scan.comparisons or scan.forwards or scan.is_blind
    if asks or any(modes_named(scan.names)) or not scan.names.isdisjoint({*CONVERSIONS, *OF_SEQUENCES}):
        return None
    reader = _Reader(code.co_varnames[0] if code.co_argcount else None)
    entries = list(dis.get_instructions(code))
    if not all(map(reader.take, entries)):
        return None
    return reader.reads()


def _is_code(value: Any) -> bool:
    return isinstance(value, CodeType)


class _Reader:
    """Follows what is on top of the stack through code that runs from its beginning to its end.

    Args:
        own: The name of the first parameter, the object of a method.
    """

    def __init__(self, own: str | None) -> None:
        self._own = own
        self._top = ""
        """``"self"``, ``"held"`` (an attribute of it), ``"held, None"``, ``"global"`` (or an attribute of one)."""
        self._name = ""
        """Of the attribute."""
        self._called: set[str] = set()
        self._tested: set[str] = set()
        self._used: set[str] = set()
        self._chain: tuple[str, ...] = ()
        """Names of a global, and of attributes of it in one another."""
        self._found: dict[tuple[str, ...], None] = {}

    def reads(self) -> Reads:
        """Return what was read."""
        return Reads(
            frozenset(self._called), frozenset(self._tested), frozenset(self._used), tuple(self._found)
        )

    def take(self, entry: dis.Instruction) -> bool:
        """Follow an instruction; return whether it is one of a plain function."""
        name, top = entry.opname, self._top
        if top == "global" and (
            entry.is_jump_target or name not in {"LOAD_ATTR", "LOAD_METHOD", *_WITHOUT_EFFECT}
        ):
            self._found[self._chain] = None
        if entry.is_jump_target and top:
            # Something else may be there when the code comes from elsewhere.
            self._note_use(is_used=True)
            return top != "self" and self._follow(entry, "")
        if name in _WITHOUT_EFFECT:
            return True
        if top == "self" and name not in {"LOAD_ATTR", "LOAD_METHOD"}:
            return False  # It hands itself on.
        if top == "held":
            self._note_use(
                is_used=not (name == "TO_BOOL" or name.startswith("POP_JUMP") or _loads_none(entry))
            )
        elif top == "held, None":
            self._note_use(is_used=name != "IS_OP")
        return self._follow(entry, top)

    def _note_use(self, *, is_used: bool) -> None:
        """Note what becomes of the attribute that was read last."""
        if self._top.startswith("held"):
            (self._used if is_used else self._tested).add(self._name)

    def _follow(self, entry: dis.Instruction, top: str) -> bool:
        name, self._top = entry.opname, ""
        if name in _WITHOUT_EFFECT:
            return True
        if name in _LOADING:
            return self._load(entry)
        if name == "LOAD_GLOBAL":
            self._top, self._chain = "global", (entry.argval,)
            return True
        if name in {"LOAD_ATTR", "LOAD_METHOD"}:
            return self._read_attribute(entry, top)
        if top == "held" and _loads_none(entry):
            self._top = "held, None"
            return True
        if name == "IS_OP":
            return top == "held, None"
        if name.endswith(("IF_NONE", "IF_NOT_NONE")):
            return top == "held"
        return name in _HARMLESS and not (name == "STORE_FAST" and entry.argval == self._own)

    def _load(self, entry: dis.Instruction) -> bool:
        names = entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)
        if self._own is None or self._own not in names:
            return True
        self._top = "self"
        is_stored = entry.opname == _STORE_AND_LOAD and names[0] == self._own
        return names.count(self._own) == 1 and names[-1] == self._own and not is_stored

    def _read_attribute(self, entry: dis.Instruction, top: str) -> bool:
        name: str = entry.argval
        if name.startswith("__"):
            return False
        if top == "global":
            self._top, self._chain = "global", (*self._chain, name)
            return True
        if top != "self":
            return False
        if entry.opname == "LOAD_METHOD" or _is_method(entry):
            self._called.add(name)
        else:
            self._top, self._name = "held", name
        return True


def _loads_none(entry: dis.Instruction) -> bool:
    return entry.opname == "LOAD_CONST" and entry.argval is None


def _is_method(entry: dis.Instruction) -> bool:
    """Return whether an attribute is read to be called at once; newer Pythons have no instruction of its own for it."""
    return sys.version_info >= (3, 12) and entry.opname == "LOAD_ATTR" and bool((entry.arg or 0) & 1)

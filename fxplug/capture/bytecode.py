"""What Python does with an answer, read off the instructions behind the question.

Nothing here knows torch, so that it is tested on every Python without it.
"""

from __future__ import annotations

import dis
import sys
import weakref
from bisect import bisect_left, bisect_right
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

__all__ = [
    "Assertion",
    "changed_parameters",
    "find_assertion",
    "globals_read",
    "is_read_later",
    "read_once",
    "unpacked_count",
]

_T = TypeVar("_T")


def read_once(read: Callable[[CodeType], _T]) -> Callable[[CodeType], _T]:
    """Return what keeps the answers of a function about code, for as long as there is the code.

    Code compares and hashes by all that it holds; what is kept is found by its address.

    Args:
        read: Returns something that nobody changes.
    """
    kept: dict[int, tuple[weakref.ref[CodeType], _T]] = {}

    @wraps(read)
    def read_or_find(code: CodeType) -> _T:
        key = id(code)
        known = kept.get(key)
        if known is None:
            known = kept[key] = weakref.ref(code, lambda _: kept.pop(key, None)), read(code)
        return known[1]

    return read_or_find


@read_once
def _bytes_of(code: CodeType) -> bytes:
    """Return the bytecode of a function, which Python puts together each time that it is asked for."""
    return code.co_code


def unpacked_count(code: CodeType, offset: int) -> int | None:
    """Return into how many names the instruction at `offset` unpacks, None when it is another instruction."""
    raw = _bytes_of(code)
    offset = _beyond_prefixes(raw, offset)
    if offset < 0 or dis.opname[raw[offset]] != "UNPACK_SEQUENCE":
        return None
    count, shift = raw[offset + 1], 8
    while offset >= 2 and dis.opname[raw[offset - 2]] == "EXTENDED_ARG":  # Numbers above 255 take several.
        offset -= 2
        count |= raw[offset + 1] << shift
        shift += 8
    return count


def _beyond_prefixes(raw: bytes, offset: int) -> int:
    """Return the offset of the instruction itself: Python 3.10 says where the prefixes of a large argument begin."""
    while 0 <= offset < len(raw) and dis.opname[raw[offset]] == "EXTENDED_ARG":
        offset += 2
    return offset


class Assertion:
    """The assertion that a condition belongs to.

    Args:
        passes_if: The truth value with which the program goes on.
        message: The text behind the comma, None where it is computed or missing.
    """

    __slots__ = ("message", "passes_if")

    def __init__(self, passes_if: bool, message: str | None) -> None:  # noqa: FBT001 - a plain value
        self.passes_if = passes_if
        self.message = message


@read_once
def _instructions_of(code: CodeType) -> list[dis.Instruction]:
    """Return the instructions of a function that do something."""
    return [entry for entry in instructions_of(code) if entry.opname not in _TRANSPARENT]


def find_assertion(code: CodeType, offset: int) -> Assertion | None:
    """Return the assertion for which the instruction at `offset` asks whether a value is true, None for others."""
    offset = _beyond_prefixes(_bytes_of(code), offset)
    instructions = _instructions_of(code)
    index = next((number for number, entry in enumerate(instructions) if entry.offset == offset), None)
    if index is None:
        return None
    if instructions[index].opname in _ASKING:
        index += 1
    if index + 1 >= len(instructions):
        return None
    jump = instructions[index]
    if "JUMP" not in jump.opname or not jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    jumps_if = jump.opname.endswith("IF_TRUE")
    if _raises_assertion(instructions, index + 1):
        return Assertion(jumps_if, _message(instructions, index + 1))
    # One part of several: `assert a and b` jumps to the error behind the other part.
    target = next(
        (number for number, entry in enumerate(instructions) if entry.offset >= jump.argval),
        len(instructions),
    )
    if target < len(instructions) and _raises_assertion(instructions, target):
        return Assertion(not jumps_if, _message(instructions, target))
    return None


_TRANSPARENT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL"})
_ASKING = frozenset({"COMPARE_OP", "TO_BOOL"})
"""Instructions that turn a value into a truth value for the jump behind them."""


def _raises_assertion(instructions: list[dis.Instruction], index: int) -> bool:
    instruction = instructions[index]
    if instruction.opname == "LOAD_COMMON_CONSTANT":
        return instruction.argrepr == "AssertionError"
    if (
        instruction.opname not in {"LOAD_GLOBAL", "LOAD_NAME"}
        or "AssertionError" not in instruction.argrepr.split()
    ):
        return instruction.opname == "LOAD_ASSERTION_ERROR"
    # `if not condition: raise AssertionError("text")` means the same, if nothing else is done with the name.
    behind = [entry.opname for entry in instructions[index + 1 : index + 4]]
    while behind and (behind[0] == "LOAD_CONST" or "CALL" in behind[0]):
        del behind[0]
    return bool(behind) and behind[0] == "RAISE_VARARGS"


def _message(instructions: list[dis.Instruction], index: int) -> str | None:
    following = instructions[index + 1 : index + 3]
    if len(following) == 2 and following[0].opname == "LOAD_CONST" and "CALL" in following[1].opname:
        value = following[0].argval
        return value if isinstance(value, str) else None
    return None


# -- variables that are read later


def is_read_later(code: CodeType, offset: int, name: str) -> bool:
    """Return whether a variable may be read again with the value that it has at the instruction at `offset`.

    That is so, too, where its value lies on the stack already, as in ``parts, total(parts)``, and wherever an error
    may take the program.

    Args:
        code: Of the function.
        offset: Of a call that is being made.
        name: Of a variable of the function.
    """
    if name in code.co_cellvars or name in code.co_freevars:
        return True  # Functions inside may read it at any time.
    offset = _beyond_prefixes(_bytes_of(code), offset)
    entries = _instructions_of(code)
    offsets = [entry.offset for entry in entries]
    start = bisect_right(offsets, offset)
    # Python 3.10 has instructions for what later Pythons say in a table.
    may_fail = getattr(code, "co_exceptiontable", b"") or any(entry.opname in _TRYING for entry in entries)
    if may_fail and any(_use(entry, name) == "read" for entry in entries[start:]):
        return True
    return _is_on_stack(entries[:start], name) or _is_read_from(entries, offsets, start, name)


def _is_read_from(entries: list[dis.Instruction], offsets: list[int], start: int, name: str) -> bool:
    waiting, seen = [start], set[int]()
    while waiting:
        index = waiting.pop()
        while index < len(entries) and index not in seen:
            seen.add(index)
            entry = entries[index]
            use = _use(entry, name)
            if use == "read":
                return True
            if use:
                break
            if entry.opcode in dis.hasjrel or entry.opcode in dis.hasjabs:
                waiting.append(bisect_left(offsets, entry.argval))
            if entry.opname.startswith(_LEAVING):
                break
            index += 1
    return False


def _is_on_stack(entries: list[dis.Instruction], name: str) -> bool:
    """Return whether the statement that is being run has read a variable more than once."""
    count = 0
    for entry in reversed(entries):
        if entry.opname.startswith("STORE_FAST_LOAD_FAST"):
            return count + (entry.argval[1] == name) > 1
        if entry.opname.startswith(_ENDING) or entry.opcode in dis.hasjrel or entry.opcode in dis.hasjabs:
            break
        count += _names_in(entry).count(name) if entry.opname.startswith("LOAD_") else 0
    return count > 1


_TRYING = frozenset({"SETUP_FINALLY", "SETUP_WITH"})
_LEAVING = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RAISE_VARARGS", "RERAISE", "RETURN_")
_ENDING = ("POP_TOP", "RETURN_", "STORE_")


def _names_in(entry: dis.Instruction) -> tuple[str, ...]:
    # Newer Pythons use two variables in one instruction.
    return entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)


def _use(entry: dis.Instruction, name: str) -> str:
    """Return whether an instruction has a variable ``"read"`` or ``"written"``; nothing where it leaves it alone."""
    if name not in _names_in(entry):
        return ""
    words = entry.opname
    if words.startswith("STORE_FAST_LOAD_FAST"):
        return "written" if entry.argval[0] == name else "read"
    if words.startswith(("STORE_FAST", "STORE_NAME", "DELETE_FAST", "DELETE_NAME")):
        return "written"
    return "read" if words.startswith(("LOAD_FAST", "LOAD_NAME")) else ""


# -- names that are read


def globals_read(code: CodeType) -> set[str]:
    """Return the names that a function, and no other one in it, looks for among globals, and not as attributes only."""
    found: set[str] = set()
    if _LOADS.isdisjoint(code.co_code[::2]):
        return found
    names, argument = code.co_names, 0
    # `dis` makes an object of each instruction, which takes twenty times as long.
    for opcode, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument |= low
        if opcode == _PREFIX:
            argument <<= 8
            continue
        if opcode in _LOADS:
            found.add(names[argument >> _FLAGS if opcode == _LOAD_GLOBAL else argument])
        argument = 0
    return found


_LOAD_GLOBAL, _PREFIX = dis.opmap["LOAD_GLOBAL"], dis.opmap["EXTENDED_ARG"]
_LOADS = frozenset(
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)
_FLAGS = 1 if sys.version_info >= (3, 11) else 0
"""How many bits of the argument of LOAD_GLOBAL say something else than which name it is."""


# -- parameters that are changed


@read_once
def changed_parameters(code: CodeType) -> frozenset[str]:
    """Return those parameters of a function whose elements it plainly assigns, deletes, adds or takes away.

    That is, where it names the parameter in the same expression, and has given it no other value.
    """
    entries = _instructions_of(code)
    found: set[str] = set()
    for index, entry in enumerate(entries):
        before = [name for one in entries[max(index - 2, 0) : index] for name in _names_loaded(one)]
        if entry.opname in {"LOAD_ATTR", "LOAD_METHOD"} and entry.argval in _ADDING:
            found.update(_names_loaded(entries[index - 1])[-1:])
        elif entry.opname in {"STORE_SUBSCR", "DELETE_SUBSCR"}:
            found.update(before[-2:-1])
    count = code.co_argcount + code.co_kwonlyargcount
    assigned = {
        name for entry in entries if entry.opname.startswith("STORE_FAST") for name in _names_in(entry)
    }
    return frozenset(found & set(code.co_varnames[:count]) - assigned)


_ADDING = frozenset(
    {
        *("append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault", "sort"),
        "update",
    }
)


def _names_loaded(entry: dis.Instruction) -> list[Any]:
    """Return the variables that an instruction puts on the stack, None for each other value."""
    if entry.opname.startswith("LOAD_FAST"):
        return list(_names_in(entry))
    return [None]

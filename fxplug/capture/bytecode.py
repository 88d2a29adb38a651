"""What Python does with an answer, read off the instructions behind the question.

Nothing here knows torch, so that it is tested on every Python without it.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["Assertion", "find_assertion", "unpacked_count"]


def unpacked_count(code: CodeType, offset: int) -> int | None:
    """Return into how many names the instruction at `offset` unpacks, None when it is another instruction."""
    raw = code.co_code
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


def find_assertion(code: CodeType, offset: int) -> Assertion | None:
    """Return the assertion for which the instruction at `offset` asks whether a value is true, None for others."""
    offset = _beyond_prefixes(code.co_code, offset)
    instructions = [entry for entry in dis.get_instructions(code) if entry.opname not in _TRANSPARENT]
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

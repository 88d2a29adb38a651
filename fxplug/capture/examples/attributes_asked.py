"""Which attributes a program may ask its inputs for that most tensors do not have, as its bytecode says.

Python does not tell that a tensor is asked for an attribute which is not there: ``getattr(x, "scale", 1.0)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.ir.instructions import instructions_of
from fxplug.semantics.kinds import TENSOR_NAMES

if TYPE_CHECKING:
    import dis
    from collections.abc import Iterator
    from types import CodeType

__all__ = ["ANY_ATTRIBUTE", "ATTRIBUTE", "attributes_asked"]

ATTRIBUTE = "<attribute>"
"""Stands in front of the name of an attribute for which a program asks."""
ANY_ATTRIBUTE = f"{ATTRIBUTE}*"
"""Stands for attributes whose names are not known."""
_ASKING = frozenset({"getattr", "hasattr"})
_LISTING = frozenset({"dir", "vars"})
_TRYING = frozenset({"AttributeError", "BaseException", "Exception", "suppress"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL"})
_COMPUTING = ("BINARY_ADD", "BINARY_MOD", "BINARY_OP", "BUILD_STRING", "FORMAT_")
"""Instructions that put texts together."""
_FARTHEST = 10
"""So many instructions behind the name of a function its arguments are looked for."""


def attributes_asked(code: CodeType) -> Iterator[str]:
    """Yield marks for the attributes that a function, and no other one in it, may ask something but itself for."""
    is_trying = not _TRYING.isdisjoint(code.co_names)
    names = {*code.co_names}
    if not (is_trying or names & _ASKING or names & _LISTING or "__dict__" in names):
        return
    entries = [entry for entry in instructions_of(code) if entry.opname not in _SKIPPED]
    for index, entry in enumerate(entries):
        if entry.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and entry.argval in _ASKING | _LISTING:
            yield from _named_in_call(entries[index + 1 : index + _FARTHEST], entry.argval in _LISTING)
        elif entry.opname in _ATTRIBUTES and not _is_of_self(entries[:index]):
            if entry.argval == "__dict__":
                yield ANY_ATTRIBUTE
            elif is_trying and _is_unusual(entry.argval):
                yield f"{ATTRIBUTE}{entry.argval}"


def _named_in_call(behind: list[dis.Instruction], lists: bool) -> Iterator[str]:  # noqa: FBT001 - a plain value
    """Yield marks for what a call of `getattr` or the like asks for, whose arguments follow."""
    end = next((at for at, entry in enumerate(behind) if "CALL" in entry.opname), len(behind))
    arguments = behind[:end]
    # Of `self`, and what it holds, the program asks in every call alike.
    path = next((at for at, entry in enumerate(arguments) if entry.opname not in _ATTRIBUTES and at), end)
    if not arguments or _is_of_self(arguments[:path]):
        return
    texts = [entry.argval for entry in arguments if isinstance(entry.argval, str) and "CONST" in entry.opname]
    if lists or not texts or any(entry.opname.startswith(_COMPUTING) for entry in arguments):
        yield ANY_ATTRIBUTE
    yield from (f"{ATTRIBUTE}{text}" for text in texts if _is_unusual(text))


def _is_unusual(name: str) -> bool:
    return name.isidentifier() and name not in TENSOR_NAMES


def _is_of_self(before: list[dis.Instruction]) -> bool:
    """Return whether what stands on the stack was read of `self`, by attributes alone."""
    for entry in reversed(before):
        if entry.opname not in _ATTRIBUTES:
            last = entry.argval[-1] if isinstance(entry.argval, tuple) else entry.argval
            return entry.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and last == "self"
    return False

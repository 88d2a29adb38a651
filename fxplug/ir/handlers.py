"""Whether an ``except`` of a program catches an error, read off its bytecode."""

from __future__ import annotations

import builtins
import dis
from bisect import bisect_left
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from fxplug.ir.origins import Origin

__all__ = ["catching_origin", "is_caught", "with_errors_let_through"]

_TRANSPARENT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL"})
_MATCHING = frozenset({"CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"})
_BEFORE_MATCH = frozenset({"BUILD_TUPLE", "COPY", "DUP_TOP", "PUSH_EXC_INFO"})


_LETS_THROUGH = "<lets errors through that the next constant says how to handle>"


def with_errors_let_through(code: CodeType) -> CodeType:
    """Return code that does the same as long as no error is raised, and handles none; Python 3.10 has no such code.

    What is asked here of it is answered as for the code itself.
    """
    # It does not hold the code, so it can be kept for as long as there is that.
    written: Any = code
    told = (*code.co_consts, _LETS_THROUGH, written.co_exceptiontable)
    return written.replace(co_exceptiontable=b"", co_consts=told)


def _as_written(code: CodeType) -> CodeType:
    """Return code that handles errors as it was written to."""
    *others, told, table = code.co_consts if len(code.co_consts) > 1 else (None, None)
    if type(told) is not str or told != _LETS_THROUGH:
        return code
    letting_through: Any = code
    return letting_through.replace(co_exceptiontable=table, co_consts=tuple(others))


def catching_origin(origin: Origin | None, error: BaseException | None = None) -> Origin | None:
    """Return where a program catches an error of what was recorded at an origin; None where it does not.

    Args:
        origin: The frame in which it was recorded; those that called it are looked at, too.
        error: What is raised; by default anything.
    """
    while origin is not None:
        if isinstance(origin.code, CodeType) and is_caught(origin.code, origin.offset, error):
            return origin
        origin = origin.caller
    return None


def is_caught(code: CodeType, offset: int, error: BaseException | None = None) -> bool:
    """Return whether an ``except`` of the same function may catch what the instruction at `offset` raises.

    In Python 3.10 what follows the statement in its function may count, too.

    Args:
        code: Of the function.
        offset: Of the instruction.
        error: What it raises; by default anything. Only what is certain counts then: a clause for one of Python's own
            classes, or for everything, that raises nothing itself.
    """
    code = _as_written(code)
    # Later Pythons have a table of what Python 3.10 says by instructions.
    if getattr(code, "co_exceptiontable", None) == b"":
        return False
    entries, offsets, ranges = _decoded(code)
    waiting, seen = [offset], set[int]()
    while waiting:
        current = waiting.pop()
        seen.add(current)
        targets = {target: may for start, end, target, may in ranges if start <= current < end}
        for target, may in targets.items():
            handler = entries[bisect_left(offsets, target) :]
            if may and (_goes_on(handler) if error is None else _matches(handler, error)):
                return True
        waiting += [target for target in targets if target not in seen]
    return False


_Decoded: TypeAlias = "tuple[list[dis.Instruction], list[int], list[tuple[int, int, int, bool]]]"
_known: dict[int, tuple[CodeType, _Decoded]] = {}
"""By id, as code compares and hashes by all that it holds; a long function is asked about for each of its lines."""
_KEPT = 64


def _decoded(code: CodeType) -> _Decoded:
    """Return the instructions of a function, their offsets, and which of them a handler is for, and where that is."""
    known = _known.get(id(code))
    if known is not None:
        return known[1]
    entries = [entry for entry in dis.get_instructions(code) if entry.opname not in _TRANSPARENT]
    table = getattr(dis.Bytecode(code), "exception_entries", ())
    # What says where the error was raised is the end of a handler or of a ``with``, which raises it again.
    ranges = [(entry.start, entry.end, entry.target, not entry.lasti) for entry in table]
    ranges += [
        (entry.offset, entry.argval, entry.argval, True)
        for entry in entries
        if entry.opname == "SETUP_FINALLY"
    ]
    decoded = entries, [entry.offset for entry in entries], ranges
    if len(_known) >= _KEPT:
        _known.clear()
    _known[id(code)] = code, decoded
    return decoded


def _goes_on(handler: list[dis.Instruction]) -> bool:
    """Return whether what runs behind an error may go on, and is no ``finally`` and no end of a ``with``."""
    for entry in handler:
        if entry.opname in {"CHECK_EG_MATCH", "POP_EXCEPT", *_MATCHING}:
            return True
        if entry.opname in {"RERAISE", "WITH_EXCEPT_START"}:
            return False
    return False


def _matches(handler: list[dis.Instruction], error: BaseException) -> bool:
    """Return whether the first clause of a handler that is for an error raises none itself; False where none is for it.

    Where a clause names something else than classes of Python's own, or works its class out, it is taken not to be.
    """
    names: list[str] = []
    for number, entry in enumerate(handler):
        if entry.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME")):
            names.append(str(entry.argval))
        elif entry.opname in _MATCHING:
            jump = entry if entry.opname == "JUMP_IF_NOT_EXC_MATCH" else handler[number + 1]
            body = [one for one in handler[number + 1 :] if one.offset < jump.argval]
            if any(_is_for(name, error) for name in names):
                return not any(one.opname == "RAISE_VARARGS" for one in body)
            return _matches([one for one in handler if one.offset >= jump.argval], error)
        elif entry.opname == "POP_TOP" and not names:  # A clause for everything.
            return not any(one.opname == "RAISE_VARARGS" for one in handler)
        elif entry.opname not in _BEFORE_MATCH:
            return False
    return False


def _is_for(name: str, error: BaseException) -> bool:
    kind: Any = getattr(builtins, name, None)
    return isinstance(kind, type) and isinstance(error, kind)

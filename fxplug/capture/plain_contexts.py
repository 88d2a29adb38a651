"""Contexts of torch that plain code enters: it does so by ``with torch.no_grad():`` and the like, in no other way."""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.live_code import handlers_in
from fxplug.capture.regions import CONTEXTS
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "begin_of_values",
    "catches_errors",
    "contexts_entered",
    "inside_of_contexts",
    "is_context_as_written",
    "without_handlers",
]

_WITHOUT_EFFECT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "TO_BOOL"})
_BEHIND_CONTEXT = (
    *("PUSH_EXC_INFO", "WITH_EXCEPT_START", "POP_JUMP_IF_TRUE", "RERAISE"),
    *("COPY", "POP_EXCEPT", "RERAISE"),
    *("POP_TOP", "POP_EXCEPT", "POP_TOP", "POP_TOP"),
)
"""What runs where an error leaves a ``with``: the context is asked, and the error is raised again, or is not."""
_ENTRANCES = (0, 4)
"""At which of these instructions an error arrives: that of the body, and one that the context raises itself."""
_ARGUMENTS = frozenset(
    {
        *(
            "KW_NAMES",
            "LOAD_ATTR",
            "LOAD_CONST",
            "LOAD_FAST",
            "LOAD_FAST_BORROW",
            "LOAD_GLOBAL",
            "LOAD_SMALL_INT",
        )
    }
)
"""What may stand between the name of what is called for a context and the call: its arguments are simple ones."""
_WITHOUT_ARGUMENTS = 2
"""How many places on the stack a call takes besides its arguments."""


def without_handlers(code: CodeType, entries: list[dis.Instruction]) -> list[dis.Instruction] | None:
    """Return the instructions of a function but for those that run where an error leaves a ``with``.

    Args:
        code: Of the function.
        entries: Its instructions.

    Returns:
        None where it does anything else with errors, or handles them in a way that is not known.
    """
    if not (handlers := handlers_in(code)):
        return entries
    effective = [entry for entry in entries if entry.opname not in _WITHOUT_EFFECT]
    at = {entry.offset for entry in effective}
    handling: set[int] = set()
    arriving: set[int] = set()
    for index, entry in enumerate(effective):
        if entry.opname == "PUSH_EXC_INFO":
            window = effective[index : index + len(_BEHIND_CONTEXT)]
            if tuple(one.opname.replace("_FORWARD", "") for one in window) != _BEHIND_CONTEXT:
                return None
            handling.update(one.offset for one in window)
            arriving.update(window[place].offset for place in _ENTRANCES)
    # What was found not to be reached is not there any more.
    targets = {target for _, target in handlers} & at
    return [entry for entry in entries if entry.offset not in handling] if targets <= arriving else None


def catches_errors(code: CodeType) -> bool:
    """Return whether a function handles errors in another way than by leaving a context, and enters none.

    Generators are left out: they get errors where nobody asks them for more.
    """
    if not handlers_in(code) or code.co_flags & inspect.CO_GENERATOR:
        return False
    entries = instructions_of(code)
    is_inside = any(entry.opname in {"BEFORE_WITH", "LOAD_SPECIAL"} for entry in entries)
    return not is_inside and without_handlers(code, list(entries)) is None


def contexts_entered(entries: list[dis.Instruction]) -> frozenset[int] | None:
    """Return the offsets at which names are read of what is called for a context, which is entered at once.

    Args:
        entries: The instructions of a function.

    Returns:
        None where something else is entered, or where it is kept what a context returns.
    """
    entries = [entry for entry in entries if entry.opname not in _WITHOUT_EFFECT]
    found: set[int] = set()
    for index, entry in enumerate(entries):
        if entry.opname != "BEFORE_WITH":
            continue
        begin = _begin_of_call(entries, index - 1)
        if begin is None or entries[index + 1].opname != "POP_TOP":
            return None
        if any(one.is_jump_target for one in entries[begin + 1 : index + 2]):
            return None
        if not _ARGUMENTS.issuperset(one.opname for one in entries[begin + 1 : index - 1]):
            return None  # It may be called what another call gives: ``torch.no_grad().clone()``.
        found.add(entries[begin].offset)
    return frozenset(found)


def _begin_of_call(entries: list[dis.Instruction], at: int) -> int | None:
    """Return where the names of what is called are read; None where it is found in another way."""
    call = entries[at]
    if at < 0 or call.opname != "CALL":
        return None
    begin = begin_of_values(entries, at, (call.arg or 0) + _WITHOUT_ARGUMENTS)
    return begin if begin is not None and entries[begin].opname == "LOAD_GLOBAL" else None


def begin_of_values(entries: list[dis.Instruction], at: int, count: int) -> int | None:
    """Return where the values begin to be made that are on top of the stack at an instruction, if nothing jumps there.

    Args:
        entries: The instructions of a function that do something.
        at: Which of them it is.
        count: How many values.

    Returns:
        None where they are made in another way than one after the other.
    """
    while count > 0 and at:
        at -= 1
        if entries[at].opcode in _JUMPING:
            return None
        count -= _left_by(entries[at])
    return at if not count else None


_JUMPING = frozenset({*dis.hasjabs, *dis.hasjrel})


def _left_by(entry: dis.Instruction) -> int:
    """Return how many values an instruction leaves on the stack, less those that it takes."""
    if entry.opname == "CALL":  # Of one, this Python counts some for an instruction before.
        return 1 - (entry.arg or 0) - _WITHOUT_ARGUMENTS
    return dis.stack_effect(entry.opcode, entry.arg, jump=False)


def _methods_of(kind: type) -> tuple[Any, ...]:
    return tuple([getattr(kind, name, None) for name in ("__init__", "__enter__", "__exit__", "clone")])


_AS_WRITTEN: dict[Any, tuple[Any, ...]] = {
    kind: _methods_of(kind) for kind in CONTEXTS if kind is not torch.autograd.forward_ad.dual_level
}


def is_context_as_written(value: Any) -> bool:
    """Return whether something is one of the contexts of torch that are kept, and nobody has exchanged its methods."""
    known = _AS_WRITTEN.get(value) if isinstance(value, type) else None
    return known is not None and known == _methods_of(value)


def inside_of_contexts(function: Any, code_of: Callable[[FunctionType], CodeType]) -> Any:
    """Return the function that ``@torch.no_grad()`` and the like were put on; any other function as it is.

    Args:
        function: What is called.
        code_of: Returns the own code of a function, whose code may be exchanged.
    """
    while type(function) is FunctionType and (code := code_of(function)) in _ENTERING:
        names, cells = code.co_freevars, function.__closure__ or ()
        held = {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
        is_own = function.__dict__.keys() <= _OF_WRAPPERS
        if not (is_own and is_context_as_written(_kind_of_context(held))):
            break
        function = held["func"]
    return function


def _kind_of_context(held: dict[str, Any]) -> Any:
    """Return the class of the context that is entered around a function; None where it is not known.

    Args:
        held: Name -> value, of what is closed over by what torch puts in the place of the function.
    """
    if "autocast_instance" in held:
        return type(held["autocast_instance"])
    make = held["ctx_factory"]
    kind = type(getattr(make, "__self__", None))
    is_clone = type(make) is MethodType and make.__func__ is getattr(kind, "clone", None)
    return kind if is_clone else None


_ENTERING: frozenset[CodeType] = frozenset(
    cast("FunctionType", context(lambda: None)).__code__
    for context in (torch.no_grad(), torch.autocast("cpu", enabled=False))
)
"""What runs in the place of a function that a context was put on."""
_OF_WRAPPERS = frozenset({"__script_unsupported", "__wrapped__"})

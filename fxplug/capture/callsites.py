"""What a frame is calling, read from its bytecode: for questions that come from C, where no frame says who asks."""

from __future__ import annotations

import dis
import inspect
import logging
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.originals import original_of
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType

__all__ = [
    "UNCLEAR",
    "asked_classes",
    "asks_for_length_of_pattern",
    "called_by",
    "called_name",
    "callee_of",
    "count_of_arguments",
    "entries_of",
    "expects_sizes",
    "fills_told_text",
    "is_compared",
    "is_told_only",
    "last_argument",
    "makes_sizes",
    "reads_class",
    "takes_from_sizes",
]

UNCLEAR: Any = object()
"""What a call is given is not plain to see."""

_FACTORIES = (torch.empty, torch.ones, torch.rand, torch.randn, torch.zeros)
_METHODS = ("expand", "new_empty", "new_ones", "new_zeros")

_ARGUMENTS_BESIDE = {
    "CALL": 0,
    "CALL_FUNCTION": 0,
    "CALL_METHOD": 0,
    # These have the names of the keyword arguments on the stack, in one tuple.
    "CALL_FUNCTION_KW": 1,
    "CALL_KW": 1,
}
_NOTHING = {"CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP"}
_LOCAL = {"LOAD_CLASSDEREF", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_NAME"}


def expects_sizes(frame: FrameType) -> bool:
    """Return whether `frame` is calling a function of torch that takes sizes as so many arguments."""
    callee = called_by(frame)
    return callee in _METHODS if isinstance(callee, str) else any(callee is known for known in _FACTORIES)


def makes_sizes(frame: FrameType) -> bool:
    """Return whether `frame` is making a ``torch.Size`` of numbers: by calling it, or by adding a tuple to one."""
    code, index = _instructions(frame)
    entry = code[index]
    return _symbol_of(entry) == "+" or (
        entry.opname.startswith("CALL") and _called_at(frame, code, index) is torch.Size
    )


def takes_from_sizes(frame: FrameType) -> bool:
    """Return whether `frame` is making a ``torch.Size``, or may be taking a part of one, or repeating it."""
    code, index = _instructions(frame)
    entry = code[index]
    return entry.opname in _TAKING_PARTS or _symbol_of(entry) in {"*", "[]"} or makes_sizes(frame)


def _symbol_of(entry: dis.Instruction) -> str:
    """Return the operator of two operands that an instruction is, in place or not; nothing for any other one."""
    if entry.opname == "BINARY_OP":
        return entry.argrepr.removesuffix("=")
    return _SYMBOLS.get(entry.opname, "")


_SYMBOLS = {"BINARY_ADD": "+", "INPLACE_ADD": "+", "BINARY_MULTIPLY": "*", "INPLACE_MULTIPLY": "*"}
"""Opcodes of Python 3.10."""
_TAKING_PARTS = frozenset({"BINARY_SUBSCR", "BINARY_SLICE"})


def _instructions(frame: FrameType) -> tuple[list[dis.Instruction], int]:
    """Return what a frame runs, and the index of the instruction at which it stands; 0 where that is no such one."""
    code, numbers = _decoded(frame.f_code)
    offset = frame.f_lasti
    # Python 3.10 says where the prefixes of a large argument begin.
    index = next((numbers[place] for place in range(offset, offset + 8, 2) if place in numbers), 0)
    # Python 3.11 makes calls in two instructions, and in the first of them where it has run the call often.
    return code, index + 1 if code[index].opname == "PRECALL" else index


def called_by(frame: FrameType) -> Any:
    """Return what the instruction at which `frame` stands calls.

    Returns:
        The object, if it is read from a variable or from a module; the name, if it is an attribute of anything else;
        None if the instruction is no call, or what it calls is not plain to see.
    """
    code, index = _instructions(frame)
    return _called_at(frame, code, index)


def called_name(frame: FrameType) -> str | None:
    """Return the name of the method, or of the function of torch, that `frame` is calling; None for anything else."""
    code, index = _instructions(frame)
    callee = _called_at(frame, code, index)
    if isinstance(callee, str):
        place = _callee(code, index)
        found = None if place is None else _found_in_modules(frame, code, place)
        return _name_in_torch(found) or callee
    return _name_in_torch(callee)


def _name_in_torch(function: Any) -> str | None:
    """Return the name of a function of torch, which need not be that under which it is found; None for others."""
    if function is None or isinstance(function, type):
        return None
    name = getattr(function, "__name__", "")
    is_torch = str(getattr(function, "__module__", "")).partition(".")[0] == "torch"
    return name if is_torch or getattr(torch, name, None) is function else None


def _called_at(frame: FrameType, code: list[dis.Instruction], call: int) -> Any:
    """Return what the call at an index calls, as `called_by` does."""
    index = _callee(code, call)
    if index is None:
        return None
    callee = code[index]
    is_attribute = callee.opname in {"LOAD_ATTR", "LOAD_METHOD"}
    # Where ways through the code meet, what stands before may not be what was run.
    joined = cast("_Entries", code).joined
    if call not in joined:
        joined[call] = any(entry.is_jump_target for entry in code[index + (not is_attribute) : call + 1])
    if joined[call]:
        return None
    if not is_attribute:
        return _variable(frame, callee)
    holder = _variable(frame, code[index - 1])
    if isinstance(holder, (logging.Logger, logging.LoggerAdapter)):
        return getattr(type(cast("Any", holder)), callee.argval, None)
    return vars(holder).get(callee.argval) if isinstance(holder, ModuleType) else callee.argval


def _found_in_modules(frame: FrameType, code: list[dis.Instruction], index: int) -> Any:
    """Return the attribute that is read at an index, if it is one of a module: ``torch.fft.irfft``; else None."""
    entry = code[index]
    if entry.opname not in {"LOAD_ATTR", "LOAD_METHOD"}:
        return _variable(frame, entry)
    if entry.is_jump_target:  # What stands before may not be what was run.
        return None
    holder = _found_in_modules(frame, code, index - 1)
    return vars(holder).get(entry.argval) if isinstance(holder, ModuleType) else None


class _Entries(list[dis.Instruction]):
    """The instructions of a function that do something."""

    def __init__(self, entries: Iterable[dis.Instruction]) -> None:
        super().__init__(entries)
        self.callees: dict[int, int | None] = {}
        """Index of a call -> that of the instruction that read what is called, None where that is not plain to see."""
        self.joined: dict[int, bool] = {}
        """Index of a call -> whether ways through the code meet between that and the call."""


_read: dict[int, tuple[CodeType, list[dis.Instruction], dict[int, int]]] = {}
"""Id of a code object -> the code object, which is kept for as long, its instructions, and their numbers by offset."""


def _decoded(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    known = _read.get(id(code))
    if known is None:
        if len(_read) > _KEPT:
            _read.clear()
        found = _Entries(entry for entry in instructions_of(code) if entry.opname not in _NOTHING)
        known = _read[id(code)] = code, found, {entry.offset: number for number, entry in enumerate(found)}
    return known[1], known[2]


_KEPT = 256


def entries_of(code: CodeType) -> list[dis.Instruction]:
    """Return the instructions of a function that do something."""
    return _decoded(code)[0]


def callee_of(code: list[dis.Instruction], index: int) -> int | None:
    """Return the index of the instruction that read what is called at an index; None if that is not plain to see."""
    return _callee(code, index)


def _callee(code: list[dis.Instruction], index: int) -> int | None:
    """Return the index of the instruction that read what the call at `index` calls."""
    known = cast("_Entries", code).callees
    if index not in known:
        known[index] = _find_callee(code, index)
    return known[index]


def _find_callee(code: list[dis.Instruction], index: int) -> int | None:
    call = code[index]
    if call.opname == "CALL_FUNCTION_EX":
        missing = 1 + (call.arg or 0) % 2
    elif call.opname in _ARGUMENTS_BESIDE:
        missing = (call.arg or 0) + _ARGUMENTS_BESIDE[call.opname]
    else:
        return None
    if code[index - 1].opname == "PRECALL":  # One call in two instructions.
        index -= 1
    while missing > 0:
        index -= 1
        entry = code[index]
        if index < 0 or entry.opcode in dis.hasjrel or entry.opcode in dis.hasjabs:
            return None
        missing -= dis.stack_effect(entry.opcode, entry.arg, jump=False)
    index -= 1
    if index > 0 and code[index].opname == "PUSH_NULL":
        index -= 1
    return index if missing == 0 and index >= 0 else None


def _variable(frame: FrameType, entry: dis.Instruction) -> Any:
    if entry.opname == "LOAD_GLOBAL":
        return original_of(frame.f_globals.get(entry.argval, frame.f_builtins.get(entry.argval)))
    return frame.f_locals.get(entry.argval) if entry.opname in _LOCAL else None


def count_of_arguments(frame: FrameType) -> int | None:
    """Return how many arguments the call at which `frame` stands passes by position; None if it is no plain call."""
    code, index = _instructions(frame)
    call = code[index]
    return call.arg if call.opname in _ARGUMENTS_BESIDE and not _ARGUMENTS_BESIDE[call.opname] else None


def last_argument(frame: FrameType) -> Any:
    """Return the last value that the call at which `frame` stands passes, `UNCLEAR` where that is not plain to see."""
    code, index = _instructions(frame)
    if not code[index].opname.startswith("CALL") or not code[index].arg:
        return UNCLEAR
    return _evaluated(frame, code, index - 1 if code[index - 1].opname == "PRECALL" else index)


def reads_class(frame: FrameType) -> bool:
    """Return whether `frame` is reading the attribute ``__class__`` of something."""
    code, index = _instructions(frame)
    return code[index].opname == "LOAD_ATTR" and code[index].argval == "__class__"


def asked_classes(frame: FrameType) -> Any:
    """Return for which classes `frame` asks whether something is an instance of one, by a call or by a pattern.

    Returns:
        What ``isinstance`` is given, `UNCLEAR` where that is not plain to see, None where `frame` asks no such thing.
    """
    code, index = _instructions(frame)
    if code[index].opname == "MATCH_CLASS":
        return _evaluated(frame, code, index - 1)
    callee = _called_at(frame, code, index)
    if callee is None and code[index].opname.startswith("CALL") and "isinstance" in frame.f_code.co_names:
        return UNCLEAR
    if callee is not isinstance:
        return None
    return _evaluated(frame, code, index - 1 if code[index - 1].opname == "PRECALL" else index)


def asks_for_length_of_pattern(frame: FrameType) -> bool:
    """Return whether `frame` compares a value with a pattern that has a length."""
    code, index = _instructions(frame)
    return code[index].opname == "GET_LEN"


def _evaluated(frame: FrameType, code: list[dis.Instruction], end: int) -> Any:
    """Return the value that the instructions before `end` have left on the stack, without running anything."""
    start, missing = end, 1
    while missing > 0:
        start -= 1
        entry = code[start]
        if start < 0 or entry.opcode in dis.hasjrel or entry.opcode in dis.hasjabs or entry.is_jump_target:
            return UNCLEAR
        missing -= dis.stack_effect(entry.opcode, entry.arg, jump=False)
    stack: list[Any] = []
    for entry in code[start:end]:
        if entry.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) and stack:
            stack.append(_static_attribute(stack.pop(), entry.argval))
        elif entry.opname == "BUILD_TUPLE" and len(stack) >= (entry.arg or 0) > 0:
            stack[-(entry.arg or 0) :] = [tuple(stack[-(entry.arg or 0) :])]
        elif entry.opname == "LOAD_CONST":
            stack.append(entry.argval)
        elif (entry.opname == "BINARY_OR" or entry.argrepr == "|") and len(stack) > 1:
            stack[-2:] = [tuple(stack[-2:])]  # A union asks for each.
        else:
            # Newer Pythons read two variables in one instruction.
            name = entry.argval[-1] if isinstance(entry.argval, tuple) else None
            value = frame.f_locals.get(name) if name is not None else _variable(frame, entry)
            stack.append(UNCLEAR if value is None else value)
        if stack[-1] is UNCLEAR:
            return UNCLEAR
    return stack[-1] if len(stack) == 1 else UNCLEAR


def _static_attribute(holder: Any, name: str) -> Any:
    found = inspect.getattr_static(holder, name, UNCLEAR)
    return found if isinstance(found, (type, tuple, ModuleType)) else UNCLEAR


_TELLING = (print, warnings.warn)
_TELLING_NAMES = frozenset(
    {
        *(
            "critical",
            "debug",
            "error",
            "exception",
            "info",
            "log",
            "print",
            "warn",
            "warning",
            "warning_once",
        ),
        *("_assert", "_assert_async", "_check", "_check_value", "_check_type", "_check_index"),
    }
)
"""Methods and functions that only tell people: of loggers, and checks with a message."""
_ENDS = ("POP_TOP", "RETURN_", "STORE_", "RAISE_VARARGS", "YIELD_")


def is_told_only(frame: FrameType, *, strictly: bool = False) -> bool:
    """Return whether the text that `frame` is making is for people: printed, logged, or the message of an error.

    Args:
        frame: That makes it.
        strictly: Whether only what nobody can read back counts: no errors, which a program may catch, no methods but
            those of Python's loggers, which may be anybody's.
    """
    if frame.f_code.co_filename == logging.__file__:
        return True  # It puts the text together that a logger was given in parts.
    code, index = _instructions(frame)
    for number in range(index, len(code)):
        entry = code[number]
        if entry.opcode in dis.hasjrel or entry.opcode in dis.hasjabs:
            return False
        if not entry.opname.startswith(_ENDS):
            continue
        if entry.opname == "RAISE_VARARGS":
            return not strictly
        if entry.opname != "POP_TOP":
            return False
        callee = _called_at(frame, code, number - 1)
        name = callee if isinstance(callee, str) else getattr(callee, "__name__", None)
        if strictly:
            has_names = any(
                one.opname in {"CALL_FUNCTION_KW", "CALL_KW", "KW_NAMES"} for one in code[index:number]
            )
            is_check = not isinstance(callee, str) and name in _TELLING_NAMES
            return (callee is print or is_check) and not has_names
        return any(callee is known for known in _TELLING) or name in _TELLING_NAMES
    return False


def fills_told_text(frame: FrameType) -> bool:
    """Return whether `frame` puts a number into a text for people alone (``print("%d rows" % count)``)."""
    code, index = _instructions(frame)
    entry = code[index]
    is_filled = entry.opname == "BINARY_MODULO" or (entry.opname == "BINARY_OP" and entry.argrepr == "%")
    return is_filled and is_told_only(frame, strictly=True)


def is_compared(frame: FrameType, *, or_kept: bool) -> bool:
    """Return whether `frame` compares the attribute that it reads by identity.

    Args:
        frame: That reads it.
        or_kept: Whether it counts, too, that it keeps it, or reads it through a function: it may compare it later.
    """
    code, index = _instructions(frame)
    if not code[index].opname.startswith("LOAD_ATTR"):
        return or_kept
    for entry in code[index + 1 : index + 5]:
        if entry.opname == "IS_OP" or entry.opname.endswith("NONE"):
            return True
        if not entry.opname.startswith("LOAD_"):
            return or_kept and entry.opname.startswith("STORE_")
    return False

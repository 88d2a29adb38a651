"""What a frame is calling, read from its bytecode: for questions that come from C, where no frame says who asks."""

from __future__ import annotations

import dis
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["called_by", "expects_sizes"]

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


def called_by(frame: FrameType) -> Any:
    """Return what the instruction at which `frame` stands calls.

    Returns:
        The object, if it is read from a variable or from a module; the name, if it is an attribute of anything else;
        None if the instruction is no call, or what it calls is not plain to see.
    """
    code = [entry for entry in dis.get_instructions(frame.f_code) if entry.opname not in _NOTHING]
    call = next((number for number, entry in enumerate(code) if entry.offset == frame.f_lasti), 0)
    index = _callee(code, call)
    if index is None:
        return None
    callee = code[index]
    is_attribute = callee.opname in {"LOAD_ATTR", "LOAD_METHOD"}
    # Where ways through the code meet, what stands before may not be what was run.
    if any(entry.is_jump_target for entry in code[index + (not is_attribute) : call + 1]):
        return None
    if not is_attribute:
        return _variable(frame, callee)
    holder = _variable(frame, code[index - 1])
    return vars(holder).get(callee.argval) if isinstance(holder, ModuleType) else callee.argval


def _callee(code: list[dis.Instruction], index: int) -> int | None:
    """Return the index of the instruction that read what the call at `index` calls."""
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
        return frame.f_globals.get(entry.argval, frame.f_builtins.get(entry.argval))
    return frame.f_locals.get(entry.argval) if entry.opname in _LOCAL else None

"""Code without what cannot run, since constants of its object decide otherwise.

Much code of libraries stands behind flags: ``if self.checkpointing and not torch.jit.is_scripting(): ...``. A module
holds such a flag as a constant, and a trace finds what Python finds there. What stands behind it and is not reached is
replaced by instructions that do nothing, so that whoever reads the code finds nothing there.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Any, NamedTuple

from fxplug.capture.bytecode import read_once
from fxplug.capture.identity import parameters_of
from fxplug.ir.handlers import with_errors_let_through
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType

__all__ = [
    "Condition",
    "conditions_in",
    "handlers_in",
    "letting_errors_through",
    "live_code",
    "without_errors",
]


class Condition(NamedTuple):
    """Where code goes one way or another by something that it reads at once."""

    offset: int
    """Of the instruction that decides."""
    names: tuple[str, ...]
    """The attribute of its object; or a global and attributes of it in one another, the last of which is called."""
    is_call: bool
    for_none: bool
    """Whether it is asked for None, and not whether it is true."""
    jumps_if: bool
    """With which answer the instruction jumps."""
    has_default: bool = False
    """Whether the attribute may be missing (``getattr``)."""
    default: Any = None
    """What stands for it then."""


_SKIPPED = frozenset(
    {"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME", "TO_BOOL"}
)
_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_ATTRIBUTE = 2


@read_once
def conditions_in(code: CodeType) -> tuple[Condition, ...]:
    """Return the conditions in a method that hang on one attribute of its object, or on what a global function says.

    The object is the first parameter, as long as nothing else is stored under its name.
    """
    if not code.co_argcount:
        return ()
    own = code.co_varnames[0]
    entries, targets = _entries(code)
    if any(
        entry.opname.startswith(("STORE_FAST", "DELETE_FAST")) and own in _variables(entry)
        for entry in entries
    ):
        return ()
    variables = _variables_in(entries, targets, own)
    for name in parameters_of(code):  # The caller has stored something there.
        variables.pop(name, None)
    return tuple(_conditions(entries, targets, own, variables))


def _entries(code: CodeType) -> tuple[list[dis.Instruction], set[int]]:
    """Return the instructions that do something, and the offsets of those that are reached from elsewhere, too."""
    entries: list[dis.Instruction] = []
    targets: set[int] = set()
    is_target = False
    for entry in instructions_of(code):
        is_target |= entry.is_jump_target
        if entry.opname not in _SKIPPED:
            entries.append(entry)
            if is_target:
                targets.add(entry.offset)
            is_target = False
    return entries, targets


def _variables(entry: dis.Instruction) -> tuple[str, ...]:
    return entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)


def _variables_in(entries: list[dis.Instruction], targets: set[int], own: str) -> dict[str, tuple[str, Any]]:
    """Return the variables in which code stores ``getattr(self, "name", default)`` alone: the name and the default."""
    found: dict[str, tuple[str, Any]] = {}
    stored: list[str] = []
    for index, entry in enumerate(entries):
        if not entry.opname.startswith(("STORE_FAST", "DELETE_FAST")):
            continue
        names = _variables(entry)
        stored += names
        window = entries[max(index - len(_OPTIONAL), 0) : index]
        is_read = [one.opname for one in window] in _OPTIONAL_READS and targets.isdisjoint(
            one.offset for one in (*window[1:], entry)
        )
        if is_read and window[0].argval == "getattr" and window[1].argval == own and window[4].arg == _GIVEN:
            found[names[0]] = str(window[2].argval), window[3].argval
    return {name: held for name, held in found.items() if stored.count(name) == 1}


_OPTIONAL = ["LOAD_GLOBAL", "LOAD_FAST", "LOAD_CONST", "LOAD_CONST", "CALL"]
_OPTIONAL_READS = [[*_OPTIONAL[:-1], call] for call in ("CALL", "CALL_FUNCTION")]
_GIVEN = 3
"""How many arguments ``getattr`` is given."""


def _conditions(
    entries: list[dis.Instruction], targets: set[int], own: str, variables: dict[str, tuple[str, Any]]
) -> Iterator[Condition]:
    for index, entry in enumerate(entries):
        form = _JUMPS.get(entry.opname.replace("_FORWARD", "").replace("_BACKWARD", ""))
        if form is None or entry.offset in targets:
            continue
        names = _read_before(entries, targets, index, own)
        if names is not None:
            yield Condition(entry.offset, names, is_call=False, for_none=form[0], jumps_if=form[1])
        elif not form[0] and (names := _called_before(entries, targets, index)) is not None:
            yield Condition(entry.offset, names, is_call=True, for_none=False, jumps_if=form[1])
        elif index and entries[index - 1].opname == "LOAD_FAST" and entries[index - 1].argval in variables:
            name, default = variables[entries[index - 1].argval]
            yield Condition(entry.offset, (name,), False, *form, has_default=True, default=default)


_JUMPS = {
    "POP_JUMP_IF_FALSE": (False, False),
    "POP_JUMP_IF_TRUE": (False, True),
    "POP_JUMP_IF_NONE": (True, True),
    "POP_JUMP_IF_NOT_NONE": (True, False),
}
"""Instruction -> whether it asks for None, and with which answer it jumps."""


def _read_before(
    entries: list[dis.Instruction], targets: set[int], index: int, own: str
) -> tuple[str, ...] | None:
    """Return the name of the attribute of the object that was read right before an instruction, if nothing else was."""
    if index < _OF_ATTRIBUTE:
        return None
    loaded, read = entries[index - _OF_ATTRIBUTE : index]
    is_read = read.opname == "LOAD_ATTR" and read.offset not in targets
    is_own = loaded.opname in {"LOAD_FAST", "LOAD_FAST_BORROW"} and loaded.argval == own
    return (str(read.argval),) if is_read and is_own else None


def _called_before(entries: list[dis.Instruction], targets: set[int], index: int) -> tuple[str, ...] | None:
    """Return the names of the function that was called without arguments right before an instruction."""
    call = entries[index - 1]
    if index == 0 or call.arg != 0 or call.opname not in {"CALL", "CALL_FUNCTION", "CALL_METHOD"}:
        return None
    names: list[str] = []
    for entry in reversed(entries[: index - 1]):
        if call.offset in targets or entry.opname not in {*_READS, "LOAD_GLOBAL"}:
            return None
        names.append(str(entry.argval))
        if entry.opname == "LOAD_GLOBAL":
            return tuple(reversed(names))
        call = entry
    return None


@read_once
def _lives(code: CodeType) -> dict[tuple[bool | None, ...], CodeType]:
    """Return a table of what becomes of code with answers to its conditions."""
    return {}


def live_code(code: CodeType, answers: Sequence[bool | None]) -> CodeType:
    """Return code in which nothing stands that cannot run; it is to be read, and not to be run.

    Args:
        code: Of a function.
        answers: One for each of its conditions; None where it is not known.
    """
    key = tuple(answers)
    if not any(answer is not None for answer in key):
        return code
    known = _lives(code).get(key)
    if known is None:
        decided = [pair for pair in zip(conditions_in(code), key, strict=True) if pair[1] is not None]
        jumps = {condition.offset: answer is condition.jumps_if for condition, answer in decided}
        of_variables = {condition.offset for condition, _ in decided if condition.has_default}
        known = _lives(code)[key] = _without(code, jumps, of_variables)
    return known


def _without(code: CodeType, jumps: dict[int, bool], of_variables: set[int]) -> CodeType:
    """Return code without what is not reached.

    Args:
        code: Of a function.
        jumps: Offset of an instruction -> whether it jumps, where that is known.
        of_variables: Offsets of those that compare a variable, which then is only left alone.
    """
    entries = list(instructions_of(code))
    reached = _reached(entries, jumps, handlers_in(code))
    raw = bytearray(code.co_code)
    nothing = bytes((dis.opmap["NOP"], 0))
    ends = [entry.offset for entry in entries[1:]] + [len(raw)]
    live: list[dis.Instruction] = []
    for entry, end in zip(entries, ends, strict=True):
        if entry.offset in reached:
            live.append(entry)
        if entry.offset not in reached or entry.offset in of_variables:
            raw[entry.offset : end] = nothing * ((end - entry.offset) // len(nothing))
        if entry.offset in of_variables:
            raw[entry.offset] = dis.opmap["POP_TOP"]
    if len(live) == len(entries) and not of_variables:
        return code
    names = {entry.argval for entry in live if entry.opcode in dis.hasname}
    used = {entry.arg for entry in live if entry.opcode in dis.hasconst}
    constants: list[Any] = [value if at in used else None for at, value in enumerate(code.co_consts)]
    return code.replace(
        co_code=bytes(raw),
        co_names=tuple(name if name in names else "" for name in code.co_names),
        co_consts=tuple(constants),
    )


letting_errors_through = read_once(with_errors_let_through)
"""The same, which is kept for as long as there is the code."""


@read_once
def without_errors(code: CodeType) -> CodeType:
    """Return code in which nothing stands that runs only where an error was raised; it is to be read."""
    return _without(letting_errors_through(code), {}, set())


def handlers_in(code: CodeType) -> list[tuple[range, int]]:
    """Return where errors may be raised that code handles, and where it goes on with these, as offsets."""
    if not getattr(code, "co_exceptiontable", b""):  # Older Pythons have none, and jump.
        return []
    entries: Any = dis.Bytecode(code).exception_entries  # pyright: ignore[reportAttributeAccessIssue]
    return [(range(entry.start, entry.end), int(entry.target)) for entry in entries]


def _reached(
    entries: list[dis.Instruction], jumps: dict[int, bool], handlers: list[tuple[range, int]]
) -> set[int]:
    """Return the offsets of the instructions that may run.

    Args:
        entries: All.
        jumps: Offset of an instruction -> whether it jumps, where that is known.
        handlers: As of `handlers_in`.
    """
    at = {entry.offset: index for index, entry in enumerate(entries)}
    jumping = {*dis.hasjabs, *dis.hasjrel}
    reached: set[int] = set()
    waiting = [0]
    while waiting:
        index = waiting.pop()
        if index >= len(entries) or entries[index].offset in reached:
            continue
        entry = entries[index]
        reached.add(entry.offset)
        decided = jumps.get(entry.offset)
        if entry.opcode in jumping and decided is not False:
            waiting.append(at[entry.argval])
        if decided is not True and not entry.opname.startswith(_ENDING):
            waiting.append(index + 1)
        waiting += [at[target] for raising, target in handlers if entry.offset in raising]
    return reached


_ENDING = (
    "JUMP_ABSOLUTE",
    "JUMP_BACKWARD",
    "JUMP_FORWARD",
    "RAISE_VARARGS",
    "RERAISE",
    "RETURN_CONST",
    "RETURN_VALUE",
)
"""Behind these runs nothing that is not jumped to."""

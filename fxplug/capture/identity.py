"""Which parameters of a function are compared by identity, as in ``mask is None``, read from its bytecode.

Nothing here knows torch, so that it is tested on every Python without it.
"""

from __future__ import annotations

import dis
import inspect
from dataclasses import dataclass
from types import CodeType

from fxplug.ir import SourceLine

__all__ = ["Test", "tests_in"]


@dataclass(frozen=True)
class Test:
    """A comparison of a parameter, or of what was taken out of it, with a constant by identity."""

    line: SourceLine
    """Where it stands."""
    question: str
    """What is asked, with the name of the parameter left open."""
    is_for_none: bool
    """Whether the constant is None, and the parameter itself is compared."""
    is_indirect: bool = False
    """Whether a function inside compares a parameter of its own, for which this one may be handed over."""


_ELEMENT = "<element>"
"""Stands for the parameter of which a variable of a loop may be a part."""
_SINGLETONS = (None, True, False, Ellipsis)
_TESTING = frozenset(
    number
    for name, number in dis.opmap.items()
    if name in {"IS_OP", "MATCH_MAPPING"} or (name.startswith("POP_JUMP") and name.endswith("NONE"))
)
_SKIPPED = frozenset({"CACHE", "COPY", "DUP_TOP", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL"})


def tests_in(code: CodeType) -> dict[str, Test]:
    """Return which parameters are compared by identity, in the function itself or in one inside of it."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    parameters = frozenset(code.co_varnames[:count])
    if not parameters:
        return {}
    found = _tests_of(code, {name: (name, True) for name in parameters})
    in_loop = found.pop(_ELEMENT, None)
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    # What is handed to a function that is made here is not followed.
    tests = [test for part in inner for test in tests_in(part).values()]
    if in_loop is not None:
        tests.append(in_loop)
    if tests:
        question = "{name!r}, or what stands for it in a loop or in a function inside, is None"
        indirect = Test(tests[0].line, question, is_for_none=True, is_indirect=True)
        found = {**dict.fromkeys(parameters, indirect), **found}
    return found


def _tests_of(code: CodeType, known: dict[str, tuple[str, bool]]) -> dict[str, Test]:
    """Return the comparisons in a function.

    Args:
        code: Of the function.
        known: Variable -> the parameter that it holds, and whether it holds it as a whole.
    """
    found: dict[str, Test] = {}
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    if inner or not _TESTING.isdisjoint(code.co_code[::2]):
        entries = _entries(code)
        known = _with_aliases(entries, known)
        for index, (entry, line) in enumerate(entries):
            if entry.opcode in _TESTING:
                name, constant, is_all = _tested(entries, index)
                if name in known:
                    parameter, is_whole = known[name]
                    is_whole = is_whole and is_all
                    question = (
                        f"{{name!r}} is {constant}" if is_whole else f"a part of {{name!r}} is {constant}"
                    )
                    place = SourceLine(code.co_filename, line, code.co_name)
                    test = Test(place, question, constant == "None" and is_whole)
                    if parameter not in found or found[parameter].is_for_none:
                        found[parameter] = test
    for part in inner:
        free = {name: known[name] for name in part.co_freevars if name in known}
        found = {**_tests_of(part, free), **found}
    return found


def _entries(code: CodeType) -> list[tuple[dis.Instruction, int]]:
    """Return the instructions with their lines, without those that move nothing or copy what they find."""
    entries: list[tuple[dis.Instruction, int]] = []
    lines = dict(dis.findlinestarts(code))
    line, is_copied = code.co_firstlineno, False
    for entry in dis.get_instructions(code):
        line = lines.get(entry.offset) or line
        if is_copied and entry.opname.startswith("STORE_FAST") and isinstance(entry.argval, str):
            is_copied = False  # An assignment inside of an expression leaves its value there.
            continue
        if entry.opname in _SKIPPED:
            is_copied = entry.opname in {"COPY", "DUP_TOP"}
            continue
        is_copied = False
        entries.append((entry, line))
    return entries


def _loaded(entries: list[tuple[dis.Instruction, int]], index: int) -> str | None:
    """Return the variable that an instruction reads last."""
    if index < 0:
        return None
    entry = entries[index][0]
    if "LOAD_FAST" not in entry.opname and not entry.opname.startswith(("LOAD_DEREF", "LOAD_CLASSDEREF")):
        return None
    # Newer Pythons read two variables in one instruction.
    return entry.argval[-1] if isinstance(entry.argval, tuple) else entry.argval


def _tested(entries: list[tuple[dis.Instruction, int]], index: int) -> tuple[str | None, str, bool]:
    """Return which variable an instruction compares, with what, as messages call it, and whether all of it."""
    entry = entries[index][0]
    if entry.opname != "IS_OP":
        name, is_whole = _compared(entries, index - 1)
        return name, "a mapping" if entry.opname == "MATCH_MAPPING" else "None", is_whole
    for constant, variable in ((index - 1, index - 2), (index - 2, index - 1)):
        if constant < 0 or not entries[constant][0].opname.startswith("LOAD_CONST"):
            continue
        name, is_whole = _compared(entries, variable)
        value = entries[constant][0].argval
        if name is not None and any(value is known for known in _SINGLETONS):
            return name, repr(value), is_whole
    return None, "", True


def _compared(entries: list[tuple[dis.Instruction, int]], index: int) -> tuple[str | None, bool]:
    """Return the variable that an instruction reads, or looks something up in, and whether it is the former."""
    name = _loaded(entries, index)
    return (name, True) if name is not None or index < 0 else (_looked_up(entries, index), False)


def _with_aliases(
    entries: list[tuple[dis.Instruction, int]], known: dict[str, tuple[str, bool]]
) -> dict[str, tuple[str, bool]]:
    """Add the variables that hold a parameter under another name, or what was looked up in it."""
    found = dict(known)
    for index, (entry, _) in enumerate(entries):
        if not entry.opname.startswith(("STORE_FAST", "STORE_DEREF")) or index == 0:
            continue
        # Newer Pythons write a variable and read one in the same instruction.
        name: str = entry.argval[0] if isinstance(entry.argval, tuple) else entry.argval
        if name in found:
            continue
        if entries[index - 1][0].opname == "FOR_ITER":
            found[name] = (_ELEMENT, True)
            continue
        source, is_whole = _loaded(entries, index - 1), True
        if source is None:
            source, is_whole = _looked_up(entries, index - 1), False
        if source in found:
            parameter, was_whole = found[source]
            found[name] = (parameter, is_whole and was_whole)
    return found


def _looked_up(entries: list[tuple[dis.Instruction, int]], index: int) -> str | None:
    """Return the variable in which the value that an instruction leaves was looked up, by a constant key or a name."""
    entry = entries[index][0]
    if entry.opname.startswith("LOAD_ATTR"):
        name = _loaded(entries, index - 1)
        return None if name == "self" else name  # What a module holds is no value of the program.
    if entry.opname.startswith(("BINARY_SUBSCR", "BINARY_OP")) and entry.argrepr in {"", "[]"}:
        is_constant = index > 0 and entries[index - 1][0].opname.startswith("LOAD_CONST")
        return _loaded(entries, index - 2) if is_constant else None
    if not entry.opname.startswith("CALL"):
        return None
    start = index - 1
    while start > 0 and entries[start][0].opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")):
        start -= 1
    callee = entries[start][0]
    is_lookup = callee.opname.startswith(("LOAD_METHOD", "LOAD_ATTR")) and callee.argval in {"get", "pop"}
    return _loaded(entries, start - 1) if is_lookup else None

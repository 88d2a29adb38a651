"""Which parameters of a function are compared by identity, as in ``mask is None``, read from its bytecode.

Nothing here knows torch, so that it is tested on every Python without it.
"""

from __future__ import annotations

import dis
import inspect
import operator
import weakref
from dataclasses import dataclass, replace
from types import CodeType, NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from fxplug.ir import SourceLine
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ELEMENT_OF",
    "IDENTITY",
    "Comparison",
    "Pair",
    "Test",
    "assigned_later",
    "comparisons_in",
    "is_result_returned",
    "names_operators",
    "pairs_in",
    "parameters_of",
    "test_of_result",
    "tests_in",
    "tests_values",
]


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
    cls: type = NoneType
    """The class of the constant."""


@dataclass(frozen=True)
class Pair:
    """A comparison of a parameter, or of a part of one, by identity with something that is no constant."""

    line: SourceLine
    """Where it stands."""
    one: str
    """The parameter; ``""`` for the parameters of a function inside, for which any of these may be handed over."""
    other: str
    """The parameter that it is compared with; ``""`` where it is anything else."""
    one_is_part: bool = False
    """Whether something is compared that was taken out of the parameter."""
    other_is_part: bool = False
    """The same for the other one."""
    name: str = ""
    """The global that it is compared with."""


@dataclass(frozen=True)
class Comparison:
    """A comparison of two values by identity, neither of which is a constant."""

    line: SourceLine
    """Where it stands."""
    one: tuple[str, ...]
    """A variable, followed by the attributes that are read of it: ``("self", "weight")``, or by `ELEMENT_OF`; the
    variable is ``""`` in front of the name of a global. Empty for any other expression."""
    other: tuple[str, ...]
    """The same for what it is compared with."""
    is_by_operator: bool = False
    """Whether a function of the module `operator` is named, which compares anything."""


_ELEMENT = "<element>"
"""Stands for the parameter of which a variable of a loop may be a part."""
_TESTING = frozenset(
    number
    for name, number in dis.opmap.items()
    if name in {"IS_OP", "MATCH_MAPPING"} or (name.startswith("POP_JUMP") and name.endswith("NONE"))
)
_SKIPPED = frozenset({"CACHE", "COPY", "DUP_TOP", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL"})


def tests_in(code: CodeType) -> dict[str, Test]:
    """Return which parameters are compared by identity, in the function itself or in one inside of it."""
    parameters = parameters_of(code)
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


def parameters_of(code: CodeType) -> frozenset[str]:
    """Return the names of the parameters of a function, those behind stars among them."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    return frozenset(code.co_varnames[:count])


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
                tested = _tested(entries, index)
                if tested is not None and tested.name in known:
                    parameter, is_whole = known[tested.name]
                    test = _test_at(
                        code, line, tested, is_whole=is_whole and tested.is_whole, name="{name!r}"
                    )
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
    for entry in instructions_of(code):
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


class _Tested(NamedTuple):
    """What an instruction compares with a constant."""

    name: str | None
    """The variable; None for any other expression."""
    is_whole: bool
    """Whether all of it is compared."""
    constant: str
    """The constant, as messages call it."""
    cls: type
    """Its class."""


def _tested(entries: list[tuple[dis.Instruction, int]], index: int) -> _Tested | None:
    """Return what an instruction compares with a constant, None where it compares something else."""
    entry = entries[index][0]
    right = _operand(entries, index - 1)
    if entry.opname == "MATCH_MAPPING":
        return _Tested(right.name, right.is_whole, "a mapping", dict)
    if entry.opname != "IS_OP":
        return _Tested(right.name, right.is_whole, "None", NoneType)
    left = _left_of(entries, right)
    for constant, variable in ((right, left), (left, right)):
        if constant.is_constant and not variable.is_constant and _is_plain(constant.value):
            return _Tested(variable.name, variable.is_whole, repr(constant.value), type(constant.value))
    return None


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or value is Ellipsis


_PLAIN = frozenset({NoneType, bool, bytes, complex, float, int, str})
"""Classes of constants that values of a program may be; of numbers and texts Python keeps some once for all."""


def tests_values(code: CodeType) -> bool:
    """Return whether a function, or one in it, compares anything with a constant other than None by identity."""
    if any(tests_values(part) for part in code.co_consts if isinstance(part, CodeType)):
        return True
    if _IS_OP not in code.co_code[::2]:
        return False
    entries = _entries(code)
    found = [_tested(entries, at) for at, (entry, _) in enumerate(entries) if entry.opcode == _IS_OP]
    return any(tested is not None and tested.cls is not NoneType for tested in found)


_IS_OP = dis.opmap["IS_OP"]


@dataclass(frozen=True)
class _Operand:
    """What an instruction has found on the stack."""

    start: int
    """Index of the first instruction of the expression."""
    name: str | None = None
    """The variable that it reads, or in which it looks something up; None for anything else."""
    is_whole: bool = True
    """Whether it is the variable itself."""
    is_constant: bool = False
    value: Any = None
    """The constant."""
    global_name: str = ""
    """The global that it reads."""


def _operand(entries: list[tuple[dis.Instruction, int]], index: int) -> _Operand:
    """Return the expression that ends at an index."""
    name = _loaded(entries, index)
    if name is not None or index < 0:
        return _Operand(index, name)
    entry = entries[index][0]
    if entry.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")):
        return _Operand(index, is_constant=True, value=entry.argval)
    if entry.opname == "LOAD_GLOBAL":
        return _Operand(index, global_name=entry.argval)
    inner = _looked_up(entries, index)
    if inner is None:
        return _Operand(_start_of(entries, index))
    return _Operand(inner.start, inner.name, is_whole=False)


def _start_of(entries: list[tuple[dis.Instruction, int]], index: int) -> int:
    """Return where the expression that ends at an index begins, -1 where that is not plain to see."""
    missing = 1
    for start in range(index, -1, -1):
        entry = entries[start][0]
        if entry.opcode in dis.hasjrel or entry.opcode in dis.hasjabs:
            return -1
        missing -= _pushed(entry)
        if missing <= 0:
            return start if missing == 0 or _reads_two(entry) else -1
    return -1


def _reads_two(entry: dis.Instruction) -> bool:
    """Return whether an instruction reads two variables, as newer Pythons do."""
    return isinstance(entry.argval, tuple) and entry.opname.startswith("LOAD_FAST")


def _pushed(entry: dis.Instruction) -> int:
    """Return by how many values an instruction makes the stack higher, without what goes with a callee."""
    count = entry.arg or 0
    if entry.opname.startswith(("LOAD_GLOBAL", "LOAD_ATTR")):
        return int(entry.opname.startswith("LOAD_GLOBAL"))
    if entry.opname in {"LOAD_METHOD", "KW_NAMES"}:
        return 0
    if entry.opname in {"CALL", "CALL_FUNCTION", "CALL_METHOD"}:
        return -count
    if entry.opname in {"CALL_KW", "CALL_FUNCTION_KW"}:
        return -count - 1
    return dis.stack_effect(entry.opcode, entry.arg, jump=False)


def _left_of(entries: list[tuple[dis.Instruction, int]], right: _Operand) -> _Operand:
    """Return the expression in front of another one."""
    if right.start >= 0 and _reads_two(first := entries[right.start][0]):
        return _Operand(right.start, first.argval[0])
    return _operand(entries, right.start - 1)


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
        before = _behind_unpacking(entries, index - 1)
        if entries[before][0].opname == "FOR_ITER":
            found[name] = (_ELEMENT, True)
            continue
        source = _operand(entries, before)
        if before < index - 1 and source.name is not None:
            source = replace(source, is_whole=False)
        if source.name in found:
            parameter, was_whole = found[source.name]
            found[name] = (parameter, source.is_whole and was_whole)
    return found


def _behind_unpacking(entries: list[tuple[dis.Instruction, int]], index: int) -> int:
    """Return the index of what leaves a value that is taken apart into several variables, or else the index itself."""
    at = index
    while at > 0 and entries[at][0].opname.startswith(("STORE_FAST", "STORE_DEREF")):
        at -= 1
    return at - 1 if at > 0 and entries[at][0].opname in {"UNPACK_SEQUENCE", "UNPACK_EX"} else index


def _looked_up(entries: list[tuple[dis.Instruction, int]], index: int) -> _Operand | None:
    """Return in what the value that an instruction leaves was looked up, by a constant key or a name."""
    entry = entries[index][0]
    if entry.opname.startswith("LOAD_ATTR"):
        holder = _operand(entries, index - 1)
        # What a module holds is no value of the program.
        return None if holder.name == "self" and holder.is_whole else _known(holder)
    if entry.opname.startswith(("BINARY_SUBSCR", "BINARY_OP")) and entry.argrepr in {"", "[]"}:
        key = _operand(entries, index - 1)
        return _known(_left_of(entries, key)) if key.is_constant else None
    if not entry.opname.startswith("CALL"):
        return None
    start = index - 1
    while start > 0 and entries[start][0].opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")):
        start -= 1
    callee = entries[start][0]
    is_lookup = callee.opname.startswith(("LOAD_METHOD", "LOAD_ATTR")) and callee.argval in {"get", "pop"}
    return _known(_operand(entries, start - 1)) if is_lookup else None


def _known(operand: _Operand) -> _Operand | None:
    return None if operand.name is None else operand


# -- what a call has returned


_results: dict[int, tuple[weakref.ref[CodeType], dict[int, Test | None]]] = {}
"""By id, because code compares and hashes by all that it holds."""


def test_of_result(code: CodeType, offset: int) -> Test | None:
    """Return the comparison by identity of what a call returns, or of a part of it, further down in a function.

    Args:
        code: Of the function.
        offset: Of the instruction that makes the call, or of what stands behind it for the interpreter itself.
    """
    key = id(code)
    known = _results.get(key)
    if known is None:
        known = _results[key] = (weakref.ref(code, lambda _, kept=_results: kept.pop(key, None)), {})
    if offset not in known[1]:
        is_any = not _TESTING.isdisjoint(code.co_code[offset::2])
        known[1][offset] = _find_test_of_result(code, offset) if is_any else None
    return known[1][offset]


def _find_test_of_result(code: CodeType, offset: int) -> Test | None:
    entries = _entries(code)
    start = next((at for at, (entry, _) in enumerate(entries) if entry.offset > offset), len(entries))
    index, is_whole = _behind_lookups(entries, start)
    names = _stored_at(entries, index)
    if not names:
        tests = [_test_of_top(code, entries, at, index, is_whole=is_whole) for at in (index, index + 1)]
        return tests[0] or tests[1]
    whole = is_whole and entries[index][0].opname != "UNPACK_SEQUENCE"
    known = _with_aliases(entries[start:], {name: (name, whole) for name in names})
    for at in range(index, len(entries)):
        tested = _tested(entries, at) if entries[at][0].opcode in _TESTING else None
        if tested is not None and tested.name in known:
            is_all = known[tested.name][1] and tested.is_whole
            return _test_at(code, entries[at][1], tested, is_whole=is_all)
    return None


def is_result_returned(code: CodeType, offset: int) -> bool:
    """Return whether a function returns what a call in it returns, as it is."""
    following = (number for number in code.co_code[offset + 2 : offset + 24 : 2] if number != _CACHE)
    return next(following, None) == _RETURN


_CACHE = dis.opmap.get("CACHE", 0)
_RETURN = dis.opmap["RETURN_VALUE"]


def _test_at(code: CodeType, line: int, tested: _Tested, *, is_whole: bool, name: str = "{name}") -> Test:
    question = f"{name} is {tested.constant}" if is_whole else f"a part of {name} is {tested.constant}"
    place = SourceLine(code.co_filename, line, code.co_name)
    return Test(place, question, tested.cls is NoneType and is_whole, cls=tested.cls)


def _behind_lookups(entries: list[tuple[dis.Instruction, int]], index: int) -> tuple[int, bool]:
    """Return where the value on the stack is no longer looked up in by a constant key, and whether it never was."""
    start = index
    while index + 1 < len(entries):
        key, lookup = entries[index][0], entries[index + 1][0]
        is_constant = key.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT"))
        if not (is_constant and lookup.opname.startswith("BINARY_") and lookup.argrepr in {"", "[]"}):
            break
        index += 2
    return index, index == start


def _stored_at(entries: list[tuple[dis.Instruction, int]], index: int) -> list[str]:
    """Return the variables in which the value on the stack is stored, or taken apart."""
    if index >= len(entries):
        return []
    count = 1
    if entries[index][0].opname == "UNPACK_SEQUENCE":
        count, index = entries[index][0].arg or 0, index + 1
    names: list[str] = []
    for entry, _ in entries[index : index + count]:
        if not entry.opname.startswith(("STORE_FAST", "STORE_DEREF")):
            break
        # Newer Pythons write two variables in one instruction, or read one as well.
        written = entry.argval if isinstance(entry.argval, tuple) else (entry.argval,)
        names += written[: 2 if entry.opname == "STORE_FAST_STORE_FAST" else 1]
    return names[:count]


def _test_of_top(
    code: CodeType, entries: list[tuple[dis.Instruction, int]], at: int, index: int, *, is_whole: bool
) -> Test | None:
    """Return the comparison that an instruction makes of what is on the stack at `index` with a constant."""
    if at >= len(entries):
        return None
    entry, line = entries[at]
    if at == index:
        is_test = entry.opcode in _TESTING and entry.opname != "IS_OP"
        tested = _Tested(None, True, "None", NoneType) if is_test else None
    else:
        constant = _operand(entries, index)
        is_test = entry.opname == "IS_OP" and constant.is_constant and _is_plain(constant.value)
        tested = _Tested(None, True, repr(constant.value), type(constant.value)) if is_test else None
    return None if tested is None else _test_at(code, line, tested, is_whole=is_whole)


# -- comparisons of two values


def pairs_in(code: CodeType) -> tuple[Pair, ...]:
    """Return the comparisons of parameters with anything but constants, also those in functions inside."""
    parameters = parameters_of(code)
    if not parameters:
        return ()
    found = _pairs_of(code, {name: (name, True) for name in parameters})
    for part in code.co_consts:
        if isinstance(part, CodeType):
            found += [Pair(pair.line, "", "") for pair in pairs_in(part)]
    return tuple(found)


def _pairs_of(code: CodeType, known: dict[str, tuple[str, bool]]) -> list[Pair]:
    found: list[Pair] = []
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    if inner or _IS in code.co_code[::2]:
        entries = _entries(code)
        known = _with_aliases(entries, known)
        for index, (entry, line) in enumerate(entries):
            if entry.opcode == _IS:
                pair = _pair_at(entries, index, known, SourceLine(code.co_filename, line, code.co_name))
                found += [] if pair is None else [pair]
    for part in inner:
        found += _pairs_of(part, {name: known[name] for name in part.co_freevars if name in known})
    return found


_IS = dis.opmap["IS_OP"]


def _pair_at(
    entries: list[tuple[dis.Instruction, int]],
    index: int,
    known: dict[str, tuple[str, bool]],
    line: SourceLine,
) -> Pair | None:
    right = _operand(entries, index - 1)
    left = _left_of(entries, right)
    if right.is_constant or left.is_constant:
        return None
    if any(_reads_metadata(entries[side][0]) for side in (index - 1, right.start - 1) if side >= 0):
        return None
    sources = [_source(left, known), _source(right, known)]
    for place, operand, end in (
        (0, left, right.start - 1 if right.start >= 0 else -1),
        (1, right, index - 1),
    ):
        # What an object holds may be what another parameter is; an element of something that it holds is, at most, a
        # part of it as well.
        is_held = not sources[place][0] and "self" in known and _path(entries, operand, end)[:1] == ("self",)
        if is_held and sources[1 - place][0] in {_ELEMENT, "", "self"}:
            sources[place] = "self", True
    one, other = sorted(sources, key=lambda source: source[0] == "")
    if one[0] == "":
        return None
    if _ELEMENT in {one[0], other[0]}:  # Of which parameter it is an element is not known.
        named = one if other[0] == _ELEMENT else other
        name, is_part = ("", False) if named[0] == _ELEMENT else named
        return Pair(line, name, "", is_part)
    return Pair(line, one[0], other[0], one[1], other[1], left.global_name or right.global_name)


IDENTITY = (operator.is_, operator.is_not)
"""Functions of Python that compare by identity."""
_OPERATORS = frozenset(function.__name__ for function in IDENTITY)


def names_operators(names: Iterable[str]) -> bool:
    """Return whether one of the functions of `operator` that compare by identity is among some names."""
    return not _OPERATORS.isdisjoint(names)


_stores: dict[int, tuple[weakref.ref[CodeType], list[tuple[int, str]], list[tuple[int, int]]]] = {}
"""Id of code -> its assignments of variables, and its jumps back: from where, and to where."""


def assigned_later(code: CodeType, offset: int) -> frozenset[str]:
    """Return the variables that a function may assign when it goes on.

    Args:
        code: Of the function.
        offset: Of the instruction that it is at.
    """
    key = id(code)
    known = _stores.get(key)
    if known is None:
        stores: list[tuple[int, str]] = []
        jumps: list[tuple[int, int]] = []
        for entry in instructions_of(code):
            if entry.opname.startswith(("STORE_FAST", "STORE_DEREF")):
                held: Any = entry.argval
                names: tuple[str, ...] = held if isinstance(held, tuple) else (held,)
                stores += [(entry.offset, name) for name in names]
            is_jump = entry.opcode in dis.hasjrel or entry.opcode in dis.hasjabs
            if is_jump and entry.argval < entry.offset:
                jumps.append((entry.offset, entry.argval))
        known = _stores[key] = (weakref.ref(code, lambda _, kept=_stores: kept.pop(key, None)), stores, jumps)
    _, stores, jumps = known
    first = min([target for source, target in jumps if target <= offset <= source], default=offset)
    return frozenset(name for place, name in stores if place >= first)


def comparisons_in(code: CodeType) -> tuple[Comparison, ...]:
    """Return the comparisons of two values in a function, also those in functions inside of it."""
    found: list[Comparison] = []
    for part in code.co_consts:
        if isinstance(part, CodeType):
            for inner in comparisons_in(part):
                # What else the function inside is called with, or computes, is not known here.
                one, other = (
                    path if path[:1] == ("",) or (path and path[0] in part.co_freevars) else ()
                    for path in (inner.one, inner.other)
                )
                found.append(Comparison(inner.line, one, other, inner.is_by_operator))
    if names_operators(code.co_names):
        line = SourceLine(code.co_filename, code.co_firstlineno, code.co_name)
        found.append(Comparison(line, (), (), is_by_operator=True))
    entries = _entries(code) if _IS in code.co_code[::2] else []
    for index, (entry, line) in enumerate(entries):
        if entry.opcode != _IS:
            continue
        right = _operand(entries, index - 1)
        left = _left_of(entries, right)
        ends = (right.start - 1 if right.start >= 0 else -1, index - 1)
        reads_metadata = any(_reads_metadata(entries[end][0]) for end in ends if end >= 0)
        if right.is_constant or left.is_constant or reads_metadata:
            continue
        one, other = _path(entries, left, ends[0]), _path(entries, right, ends[1])
        found.append(Comparison(SourceLine(code.co_filename, line, code.co_name), one, other))
    return tuple(found)


ELEMENT_OF = "[]"
"""Stands among the attributes of a path for an element, whichever that is."""


def _path(entries: list[tuple[dis.Instruction, int]], operand: _Operand, end: int) -> tuple[str, ...]:
    """Return the variable that an expression reads, and the attributes of it; empty for any other expression."""
    if operand.name is not None and operand.is_whole:
        return (operand.name,)
    start = entries[operand.start][0] if operand.start >= 0 else None
    if start is not None and start.opname == "LOAD_GLOBAL" and start.argval == "type":
        return ("", "type")  # A class in any case.
    names: list[str] = []
    while end >= 0:
        entry = entries[end][0]
        if entry.opname.startswith("LOAD_ATTR"):
            names.insert(0, entry.argval)
        elif entry.opname.startswith(("BINARY_SUBSCR", "BINARY_OP")) and entry.argrepr in {"", "[]"}:
            key = _operand(entries, end - 1)
            if not key.is_constant:
                break
            names.insert(0, ELEMENT_OF)
            end = key.start
        else:
            break
        end -= 1
    variable = _loaded(entries, end)
    if variable is not None:
        return (variable, *names)
    is_global = end >= 0 and entries[end][0].opname == "LOAD_GLOBAL"
    return ("", entries[end][0].argval, *names) if is_global else ()


def _source(operand: _Operand, known: dict[str, tuple[str, bool]]) -> tuple[str, bool]:
    """Return of which parameter an operand is, and whether it is a part of it."""
    if operand.name is None or operand.name not in known:
        return "", False
    parameter, is_whole = known[operand.name]
    return parameter, not (is_whole and operand.is_whole)


def _reads_metadata(entry: dis.Instruction) -> bool:
    """Return whether an instruction reads what a tensor says of itself: that is heard when it is read."""
    return entry.opname.startswith("LOAD_ATTR") and entry.argval in _METADATA


_METADATA = frozenset({"__class__", "device", "dtype", "grad", "grad_fn", "layout", "shape"})

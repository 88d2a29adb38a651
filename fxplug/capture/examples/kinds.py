"""What a program may ask that nobody hears, read off the names in its code."""

from __future__ import annotations

import functools
import math
import operator
from functools import singledispatchmethod
from types import CodeType, FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.attributes import attribute_of
from fxplug.capture.bytecode import read_once
from fxplug.capture.containers import PLAIN, is_foreign
from fxplug.capture.examples.attributes_asked import ATTRIBUTE, attributes_asked
from fxplug.capture.identity import comparisons_in, tests_in
from fxplug.capture.originals import original_of
from fxplug.codegen import INFIX, PREFIX
from fxplug.ir import Node
from fxplug.ir.instructions import instructions_of
from fxplug.semantics.surroundings import MODES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "ASKS_FOR_NONE",
    "COMPARES",
    "UNHEARD",
    "asks_for_attributes",
    "asks_for_identity",
    "asks_for_kinds",
    "kind_may_differ",
    "may_be_no_tensor",
    "names_reached",
    "questions_of",
]

_ASKING = frozenset(
    {
        "isinstance",
        "issubclass",
        "type",
        "is_tensor",
        "callable",
        "hasattr",
        "singledispatch",
        "__class__",
        "match",
        # Who catches these may have asked by trying.
        *("AttributeError", "BaseException", "Exception", "TypeError"),
    }
)
COMPARES = "<is>"
"""Stands among the names for a comparison of two values by identity."""
_ATTRIBUTES_ASKED = frozenset({"getattr", "vars", "__dict__"})
_TELLING_APART = frozenset({COMPARES, "id", "is_", "is_not"})
ASKS_FOR_NONE = "<is None>"
"""Stands among the names for a comparison of a value with None."""
NO_TENSOR = "<no tensor>"
"""Stands among the names in front of that of a variable that is compared with what is no tensor: with a text, of which
torch does not always tell, or by identity, of which Python does not: ``mask is True``, ``mask is self.off``."""
UNHEARD = "<unheard>"
"""Stands in front of the name of a function that tells of a mode, where a program finds it elsewhere than in torch."""
_WHOLE = frozenset(
    {"shape", "size", "ndim", "dim", "numel", "nelement", "stride", "storage_offset", "element_size"}
)
_KINDS_KEPT = ({*INFIX, *PREFIX} - {operator.pow}) | {
    abs,
    divmod,
    float,
    int,
    len,
    math.ceil,
    math.floor,
    math.trunc,
    round,
}
_NEAR = 4
"""How many instructions after None is read a comparison may be one with it: ``None is batch["mask"]``."""
_FAR = 3
"""How many calls away from the root functions are looked at."""


_QUESTIONS = {
    id(function): function.__name__
    for function in (
        *(callable, hasattr, id, isinstance, issubclass, type),
        *(operator.is_, operator.is_not, torch.is_tensor),
    )
}
"""Id -> name of what a program may have under another name: ``kind_of = type``."""


def asks_for_kinds(names: frozenset[str]) -> bool:
    """Return whether one of the names asks for the class of a value."""
    return not _ASKING.isdisjoint(names)


def asks_for_attributes(names: frozenset[str]) -> bool:
    """Return whether one of the names asks what attributes a value has: ``getattr(x, "scale", 1)``, ``vars(x)``."""
    return any(name in _ATTRIBUTES_ASKED or name.startswith(ATTRIBUTE) for name in names)


def questions_of(function: FunctionType) -> frozenset[str]:
    """Return those names in the code of a function that ask for the class of a value."""
    own = _names_in(function.__code__)
    return _ASKING & {*own, *_under_other_names(function, own)}


def asks_for_identity(names: frozenset[str]) -> bool:
    """Return whether one of the names tells two tensors apart that have the same values."""
    return not names.isdisjoint(_TELLING_APART)


def kind_may_differ(node: Node) -> bool:
    """Return whether a number that a call gives may be whole with some inputs, and a float with others.

    Sizes are whole. Arithmetic gives what the kinds of its operands say, and those are guarded; a power does not.
    """
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return kind_may_differ(node.args[0])
    if node.target is getattr:
        return node.args[1] not in _WHOLE
    if node.op == "call_method":
        return node.target not in _WHOLE
    return node.op != "call_function" or node.target not in _KINDS_KEPT


def names_reached(root: Any, modules: Iterable[nn.Module]) -> frozenset[str]:
    """Return the names of globals, attributes and methods in the code of a program.

    That is the code of a function, or of the methods of all modules that torch does not ship, and of the functions that
    these call by global names or as attributes of what they close over.

    Args:
        root: The program.
        modules: The root and those below it; none where it is a function.
    """
    names: set[str] = set()
    seen: set[int] = set()
    if isinstance(root, nn.Module):
        found = [value for kind in dict.fromkeys(map(type, modules)) for value in _methods_in(kind)]
    else:
        while isinstance(root, functools.partial):
            root = root.func
        found = [getattr(root, "__func__", root)]
    # The nearest first: in what order the others are found does not matter then.
    for steps in range(_FAR, -1, -1):
        functions = [one for value in found if (one := _new_function(value, names, seen)) is not None]
        found = [part for function in functions for part in _led_to(function, names, goes_on=steps > 0)]
    return frozenset(names)


def _methods_in(kind: type) -> Iterator[Any]:
    """Yield what may be a function in a class of a program, and in those that it is derived from."""
    for base in kind.__mro__:
        if base is object or str(base.__module__).partition(".")[0] == "torch":
            continue
        for value in vars(base).values():
            if type(value) is FunctionType:  # As most are that matter, and what is asked below takes long.
                yield value
            elif type(value) not in PLAIN:
                yield attribute_of(value, "__func__", attribute_of(value, "fget", value))


def _new_function(value: Any, names: set[str], seen: set[int]) -> FunctionType | None:
    """Return the function that a value is or stands around, if it was not seen and is none of torch."""
    if issubclass(type(value), singledispatchmethod):
        names.add("singledispatch")
        value = value.func
    elif type(value) is FunctionType and isinstance(vars(value).get("registry"), MappingProxyType):
        names.add("singledispatch")
    value = attribute_of(value, "__wrapped__", value)
    if id(value) in seen or type(value) is not FunctionType:
        return None
    seen.add(id(value))
    return None if str(value.__module__).partition(".")[0] == "torch" else value


def _led_to(function: FunctionType, names: set[str], *, goes_on: bool) -> list[Any]:
    """Add the names in the code of a function, and return what it finds by these, if that is to be looked at."""
    own = _names_in(function.__code__)
    # What NumPy asks of what it is given it does not ask of tensors of the program's own making.
    names |= (
        {name for name in own if not name.startswith(ATTRIBUTE)}
        if is_foreign(function.__module__ or "")
        else own
    )
    names.update(_under_other_names(function, own))
    found = function.__globals__
    for holder, name in _modes_in(function.__code__):
        if found.get(holder, torch if holder == _IMPORTED else None) is not torch:
            names.add(f"{UNHEARD}{name}")
    if not goes_on:
        return []
    held = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    held += [found[name] for name in own if name in found]
    return [
        part
        for value in held
        if type(value) not in PLAIN
        for part in (attribute_of(value, "__func__", value), *_parts_named(value, own))
    ]


def _under_other_names(function: FunctionType, names: frozenset[str]) -> Iterator[str]:
    """Yield the names of what asks, and what a function finds in its globals, its closure or its defaults."""
    found = function.__globals__
    held = [found[name] for name in names if name in found]
    held += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for value in held:
        name = _QUESTIONS.get(id(original_of(value)))
        if name is not None:
            yield name


def _parts_named(value: Any, names: frozenset[str]) -> list[Any]:
    """Return what a value holds under some names, and what its class chooses by the classes of arguments."""
    own: Mapping[str, Any] = attribute_of(value, "__dict__", {})
    shared = vars(type(value))
    found = [own[name] for name in names & own.keys()]
    return found + [
        shared[name] for name in names & shared.keys() if isinstance(shared[name], singledispatchmethod)
    ]


_IMPORTED = "torch"
"""What a variable is called into which a function imports torch."""


@read_once
def _modes_in(code: CodeType) -> frozenset[tuple[str, str]]:
    """Return the functions of torch that tell of modes and that a function names, with the global they are read from.

    The latter is empty where it is none: an attribute of something else, or a name of its own.
    """
    if not MODES.keys() & _names_in(code):
        return frozenset()
    found: set[tuple[str, str]] = set()
    former = ""
    for entry in instructions_of(code):
        if entry.argval in MODES and entry.opname.startswith("LOAD_") and entry.opname != "LOAD_CONST":
            is_of_global = entry.opname.startswith(("LOAD_ATTR", "LOAD_METHOD"))
            found.add((former if is_of_global else "", entry.argval))
        is_name = entry.opname == "LOAD_GLOBAL" or entry.argval == _IMPORTED
        former = str(entry.argval) if is_name and entry.opname.startswith("LOAD_") else ""
    return frozenset(found).union(
        *(_modes_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    )


_COMPARING = frozenset({"COMPARE_OP", "CONTAINS_OP"})
_NO_INPUTS = frozenset({"LOAD_ATTR", "LOAD_CONST", "LOAD_GLOBAL", "PRECALL"})


def may_be_no_tensor(names: Iterable[str], own: str, others: Iterable[str]) -> bool:
    """Return whether a program may compare an input with what is no tensor, by the names in its code.

    Args:
        names: These names.
        own: That of the parameter.
        others: Those of all parameters.
    """
    marks = {name.removeprefix(NO_TENSOR) for name in names if name.startswith(NO_TENSOR)}
    return own in marks or not marks.issubset(others)


def _compared_with_texts(code: CodeType) -> Iterator[str]:
    """Yield a mark for each variable that is compared with a text, and one without a name for what is no variable."""
    if not any(map(_has_text, code.co_consts)):
        return
    entries = [entry for entry in instructions_of(code) if entry.opname != "CACHE"]
    for first, second, third in zip(entries, entries[1:], entries[2:], strict=False):
        sides = [first, second]
        texts = [one for one in sides if one.opname == "LOAD_CONST" and _has_text(one.argval)]
        if third.opname in _COMPARING and texts:
            (other,) = [one for one in sides if one is not texts[-1]]
            if other.opname == "LOAD_FAST":
                yield f"{NO_TENSOR}{other.argval}"
            elif other.opname not in _NO_INPUTS:
                yield NO_TENSOR


def _has_text(constant: Any) -> bool:
    """Return whether a constant is a text, or holds one."""
    if isinstance(constant, (frozenset, tuple)):
        return any(map(_has_text, constant))
    return isinstance(constant, (bytes, str))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


@read_once
def _names_in(code: CodeType) -> frozenset[str]:
    """Return the global names and attributes that a function uses, those in it included, and marks for what it does."""
    names = {*code.co_names, *attributes_asked(code)}
    names.update(_compared_with_texts(code))
    names.update(f"{NO_TENSOR}{name}" for name, test in tests_in(code).items() if "None" not in test.question)
    paths = [path for found in comparisons_in(code) for path in (found.one, found.other)]
    names.update(f"{NO_TENSOR}{path[0]}" for path in paths if len(path) == 1 and path[0])
    former = ""
    until_none = -1
    for number, entry in enumerate(instructions_of(code)):
        if entry.opname.startswith("MATCH_"):
            names.add("match")
        elif entry.opname == "IS_OP" and former != "LOAD_CONST":
            names.add(COMPARES)
        if entry.opname.startswith("LOAD_CONST") and entry.argval is None:
            until_none = number + _NEAR
        elif (entry.opname.startswith("POP_JUMP") and entry.opname.endswith("NONE")) or (
            entry.opname in {"IS_OP", "COMPARE_OP", "CONTAINS_OP"} and number <= until_none
        ):
            names.add(ASKS_FOR_NONE)
        former = entry.opname
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return frozenset(names)

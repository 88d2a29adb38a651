"""Calls of ``int`` and ``float``, from which Python takes nothing but a number of its own.

What stands in for their names while a program runs lets ``int(x.shape[0] / 2)`` be part of the graph. It is not the
class, as far as ``is`` and code in C go: where the code of a module of Python does anything else with one of the names
than call it, or ask by it of what class something is, the name is left alone.
"""

from __future__ import annotations

import dis
import functools
import gc
import inspect
import sys
import weakref
from functools import partial
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from fxplug.capture.attributes import attribute_of
from fxplug.capture.bytecode import read_once
from fxplug.capture.callsites import callee_of, entries_of
from fxplug.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "CONVERSIONS",
    "MissedConversionError",
    "called_conversions",
    "conversions_heard_in",
    "is_used_otherwise",
    "missed_conversion",
]

CONVERSIONS: Mapping[str, type] = {"int": int, "float": float}
_CLASSES = frozenset({"isinstance", "issubclass"})
_LOADS = frozenset({"LOAD_ATTR", "LOAD_DEREF", "LOAD_GLOBAL"})
"""What reads a class."""
_HAS_FLAG = sys.version_info >= (3, 11)
"""Whether the instruction that reads a global says whether it is called."""


class MissedConversionError(TraceError):
    """A function was reached late that needs the class itself under a name for which something else stands."""


def missed_conversion(code: CodeType) -> MissedConversionError:
    """Return the error for a function that needs the classes themselves, and is reached when others stand for them."""
    return MissedConversionError(
        f"Cannot trace: {code.co_name} ({code.co_filename}:{code.co_firstlineno}) uses int or float otherwise than by "
        "calling it, and was not found before the program ran. Keep it among the names of its module, or keep the "
        "function as a call (fxplug.wrap).",
        code="FXP-T068",
    )


def called_conversions(code: CodeType) -> frozenset[str]:
    """Return which of the names a function, or one in it, calls."""
    return _uses(code)[0]


def is_used_otherwise(code: CodeType, name: str) -> bool:
    """Return whether a function, or one in it, needs the class itself that has a name."""
    return name in _uses(code)[1]


def conversions_heard_in(namespace: dict[str, Any], names: Iterable[str]) -> list[str]:
    """Return those of the names for which something else may stand among the globals of a module of Python."""
    used = _used_in_file_of(namespace).union(*(_uses(each.__code__)[1] for each in _functions_of(namespace)))
    return [name for name in names if name not in used]


_NOTHING: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


@read_once
def _uses(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return which of the names a function calls, and which it uses otherwise, with the functions in it."""
    own = _own_uses(code) if not CONVERSIONS.keys().isdisjoint(code.co_names) else _NOTHING
    parts = [own, *(_uses(part) for part in code.co_consts if isinstance(part, CodeType))]
    return frozenset().union(*(part[0] for part in parts)), frozenset().union(*(part[1] for part in parts))


def _own_uses(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    entries = entries_of(code)
    calls = {callee_of(entries, index): index for index in range(len(entries))}
    called: set[str] = set()
    others: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.argval not in CONVERSIONS or entry.opcode not in dis.hasname:
            continue
        if entry.opname in {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"}:
            continue  # An attribute of something else.
        if entry.opname == "LOAD_GLOBAL" and (_is_called(entry) if _HAS_FLAG else index in calls):
            called.add(entry.argval)
        elif not (_is_asked_for(entries, index, calls) or _is_annotation(entries, index)):
            others.add(entry.argval)
    return frozenset(called), frozenset(others)


def _is_called(entry: dis.Instruction) -> bool:
    return bool((entry.arg or 0) & 1)


def _is_asked_for(entries: list[dis.Instruction], index: int, calls: dict[int | None, int]) -> bool:
    """Return whether the class that is read at an index is one of those that ``isinstance`` is given."""
    for place, call in calls.items():
        if place is not None and place < index < call and entries[place].argval in _CLASSES:
            return _is_in_last(entries, index, call)
    return False


def _is_in_last(entries: list[dis.Instruction], index: int, call: int) -> bool:
    """Return whether what is read at an index is the last argument of a call, or in the tuple that is."""
    last = call - 1 if entries[call - 1].opname != "PRECALL" else call - 2
    if last == index:
        return True
    if entries[last].opname != "BUILD_TUPLE":
        return False
    inside = entries[index:last]
    # Each of the classes is read from a variable, some from a module: ``torch.Tensor``.
    count = sum(entry.opname != "LOAD_ATTR" for entry in inside)
    return all(entry.opname in _LOADS for entry in inside) and count <= (entries[last].arg or 0)


def _is_annotation(entries: list[dis.Instruction], index: int) -> bool:
    """Return whether the class that is read at an index annotates a parameter of a function that is made there."""
    while entries[index].opname in _IN_ANNOTATIONS and not isinstance(entries[index].argval, CodeType):
        index += 1
    return isinstance(entries[index].argval, CodeType) and entries[index + 1].opname == "MAKE_FUNCTION"


_IN_ANNOTATIONS = frozenset(
    {"BUILD_TUPLE", "LOAD_CONST", "LOAD_FAST", "LOAD_CLOSURE", "LOAD_GLOBAL", "LOAD_NAME"}
)


def _functions_of(namespace: dict[str, Any]) -> Iterator[FunctionType]:
    """Yield the functions that have a module's names as their globals, if the module or its classes hold them."""
    pending: list[Any] = list(namespace.values())
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, ModuleType):
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            if value.__globals__ is namespace:
                yield value
            pending += filter(_leads_on, _held_by(value))
        elif isinstance(value, type):
            if value.__module__ == namespace.get("__name__"):
                pending += vars(value).values()
        else:
            pending += filter(_leads_on, _behind(value))


_used_in_files: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()
"""Loader of a module of Python -> which of the names its file uses otherwise than by calling them."""


def _used_in_file_of(namespace: dict[str, Any]) -> frozenset[str]:
    loader = namespace.get("__loader__")
    if not isinstance(loader, _LOADERS):
        return frozenset()
    known = _used_in_files.get(loader)
    if known is None:
        used = [_uses(code)[1] for code in _codes_written_in(namespace)]
        known = _used_in_files[loader] = frozenset().union(*used)
    return known


def _codes_written_in(namespace: dict[str, Any]) -> Iterator[CodeType]:
    """Yield the code of the functions in the file of a module of Python.

    What holds some of them does not tell: objects with slots or written in C, lists of other modules.
    """
    loader, name = namespace.get("__loader__"), str(namespace.get("__name__"))
    if not isinstance(loader, _LOADERS) or loader.name != name:
        return
    try:
        code = loader.get_code(name)
    except (ImportError, OSError, SyntaxError):  # It is not there any more, or is being written.
        return
    pending = [] if code is None else [code]
    while pending:
        code = pending.pop()
        if code.co_flags & inspect.CO_OPTIMIZED:
            yield code  # With the functions in it.
        else:  # The module itself, or a class in it: that has run.
            pending += [part for part in code.co_consts if isinstance(part, CodeType)]


_LOADERS = (SourceFileLoader, SourcelessFileLoader)


def _held_by(function: FunctionType) -> Iterator[Any]:
    yield from vars(function).values()
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # It has no value yet.
            continue
        yield held
        yield from _elements(held)


def _behind(value: Any) -> list[Any]:
    """Return what an object holds that a module or a class has in the place of a function."""
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return [value.__func__]
    if isinstance(value, partial):
        return [value.func]
    if type(value) in _CONTAINERS:
        return list(_elements(value))
    # Slots, and what is written in C, have no names.
    return [*attribute_of(value, "__dict__", {}).values(), *gc.get_referents(value)]


def _elements(value: Any) -> Iterable[Any]:
    if type(value) not in _CONTAINERS or len(value) > _MOST:
        return ()
    return list(value.values() if type(value) is dict else value)


_CONTAINERS = frozenset({dict, list, tuple})
_MOST = 1000
_LEADING = (FunctionType, MethodType, property, staticmethod, classmethod, partial, functools.cached_property)


def _leads_on(value: Any) -> bool:
    return isinstance(value, _LEADING)

"""Modules that plain code handles as other values: it goes through several at once, or keeps them in lists.

Nobody hears of what is done with a module that is no attribute, but that it is called. So nothing else may be found in
it by a name that the program uses for what it handles.
"""

from __future__ import annotations

import dis
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.bytecode import read_once
from fxplug.capture.plain_holdings import is_harmless, is_library_class

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from fxplug.capture.plain_functions import PlainPart

__all__ = ["may_be_values", "tables_of_containers"]

_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)
_OF_LISTS = frozenset({"append", "clear", "extend", "insert", "items", "keys", "pop", "update", "values"})
"""Methods that lists and dicts have, too. They change nothing but the table of a container, which is looked at."""
_NAMING = frozenset({"__repr__", "_get_name", "extra_repr"})
"""What runs where a text is made of a module."""


def may_be_values(modules: Collection[nn.Module], parts: Collection[PlainPart]) -> bool:
    """Return whether the functions of a program, if they handle its modules, run and read nothing that nobody hears of.

    Args:
        modules: Those of the program.
        parts: Its functions.
    """
    if not any(part.handles_modules for part in parts):
        return True
    names = frozenset[str]().union(*(part.of_values for part in parts))
    takes_slices = any(_takes_slices(part.code) for part in parts)
    known: dict[type, list[Any]] = {}
    for module in modules:
        if not names.isdisjoint(module.__dict__) or not _NAMING.isdisjoint(module.__dict__):
            return False
        kind = type(module)
        if kind not in known:
            if not all(_has_none(base, names) for base in kind.__mro__):
                return False
            if takes_slices and _is_made_otherwise(kind):
                return False
            known[kind] = _naming_methods(kind)
        if not all(_makes_text(method, module) for method in known[kind]):
            return False
    return True


def _has_none(kind: type, names: frozenset[str]) -> bool:
    """Return whether a class has nothing of its own under any name; what containers share with lists is left out."""
    if kind is object:
        return True
    return (names - _OF_LISTS if kind in _CONTAINERS else names).isdisjoint(kind.__dict__)


# -- slices of containers, which are new containers


@read_once
def _takes_slices(code: CodeType) -> bool:
    """Return whether a function, or one in it, may take slices."""
    if any(entry.opname in {"BINARY_SLICE", "BUILD_SLICE"} for entry in dis.get_instructions(code)):
        return True
    constants = code.co_consts
    return any(type(one) is slice or (isinstance(one, CodeType) and _takes_slices(one)) for one in constants)


def _is_made_otherwise(kind: type) -> bool:
    """Return whether code of a program runs where a container of a class is made, and where it goes."""
    own = [base.__dict__ for base in kind.__mro__ if not (base is object or is_library_class(base))]
    is_container = issubclass(kind, _CONTAINERS)
    return is_container and any(not {"__init__", "__new__", "__del__"}.isdisjoint(held) for held in own)


# -- texts of modules


def _naming_methods(kind: type) -> list[Any]:
    """Return what classes of a program have for making texts of their modules."""
    own = [base.__dict__ for base in kind.__mro__ if not (base is object or is_library_class(base))]
    return [held[name] for held in own for name in _NAMING if name in held]


def _makes_text(method: Any, module: nn.Module) -> bool:
    """Return whether a method puts together a text of constants that a module holds, and does nothing else."""
    if type(method) is not FunctionType or method.__code__.co_freevars or not method.__code__.co_argcount:
        return False
    entries = [entry for entry in dis.get_instructions(method) if entry.opname not in _WITHOUT_EFFECT]
    pairs = zip([None, *entries], entries, strict=False)
    return all(_is_of_text(entry, before, module, method) for before, entry in pairs)


def _is_of_text(
    entry: dis.Instruction, before: dis.Instruction | None, module: nn.Module, method: FunctionType
) -> bool:
    name, said = entry.opname, entry.argval
    if name == "LOAD_GLOBAL":
        return said in _TEXTS and said not in method.__globals__
    if name == "LOAD_FAST":
        return said == method.__code__.co_varnames[0]
    if name != "LOAD_ATTR" or before is None:
        return name in _OF_TEXTS
    if before.opname == "LOAD_FAST":
        is_known = said != "training" and is_harmless(module, said, may_be_module=False)
        return said == "__class__" or is_known
    return said == "__name__" and before.argval == "__class__"


_TEXTS = frozenset({"repr", "round", "str"})
_WITHOUT_EFFECT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})
_ENDING = ("RETURN_CONST", "RETURN_VALUE")
_OF_TEXTS = frozenset(
    {
        *("BINARY_ADD", "BINARY_OP", "BUILD_STRING", "CALL", "CALL_FUNCTION", "CONVERT_VALUE"),
        *("FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC", "LOAD_CONST", *_ENDING),
    }
)


def tables_of_containers(modules: Iterable[nn.Module]) -> Iterator[dict[str, Any]]:
    """Yield the tables of the modules in containers of torch."""
    return (module.__dict__["_modules"] for module in modules if isinstance(module, _CONTAINERS))

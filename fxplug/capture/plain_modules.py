"""Modules that plain code handles as other values: it goes through several at once, or keeps them in lists.

Nobody hears of what is done with a module that is no attribute, but that it is called. So nothing else may be found in
it by a name that the program uses for what it handles.
"""

from __future__ import annotations

import dis
from types import FunctionType
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.plain_holdings import is_harmless, is_library_class

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from fxplug.capture.plain_functions import PlainPart

__all__ = ["may_be_values", "tables_of_containers"]

_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)
_OF_LISTS = frozenset({"append", "clear", "extend", "insert", "items", "keys", "pop", "update", "values"})
"""Methods that lists and dicts have, too. They change nothing but the table of a container, which is looked at."""
_NAMING = ("__repr__", "_get_name", "extra_repr")
"""What runs where a text is made of a module."""


def may_be_values(
    modules: Collection[nn.Module],
    parts: Collection[PlainPart],
    find: Callable[[Any, nn.Module], list[PlainPart] | None],
) -> bool:
    """Return whether the functions of a program, if they handle its modules, run and read nothing that nobody hears of.

    Args:
        modules: Those of the program.
        parts: Its functions.
        find: Returns the plain functions that run where a method of a module is called, None for others.
    """
    if not any(part.handles_modules for part in parts):
        return True
    names = frozenset[str]().union(*(part.of_values for part in parts))
    known: dict[type, list[tuple[str, Any]]] = {}
    for module in modules:
        if not names.isdisjoint(module.__dict__):
            return False
        kind = type(module)
        if kind not in known:
            if not all(_has_none(base, names) for base in kind.__mro__):
                return False
            known[kind] = _naming_methods(kind)
        if known[kind] and not _is_named_plainly(module, known[kind], find):
            return False
    return True


def _has_none(kind: type, names: frozenset[str]) -> bool:
    """Return whether a class has nothing of its own under any name; what containers share with lists is left out."""
    if kind is object:
        return True
    return (names - _OF_LISTS if kind in _CONTAINERS else names).isdisjoint(kind.__dict__)


def _naming_methods(kind: type) -> list[tuple[str, Any]]:
    """Return name and value of what classes of a program have for making texts of their modules."""
    own = [base.__dict__ for base in kind.__mro__ if not (base is object or is_library_class(base))]
    return [(name, held[name]) for held in own for name in _NAMING if name in held]


def _is_named_plainly(
    module: nn.Module,
    methods: Iterable[tuple[str, Any]],
    find: Callable[[Any, nn.Module], list[PlainPart] | None],
) -> bool:
    """Return whether methods make the text of a module by plain code."""
    return all(
        _makes_text(method, module) if name == "__repr__" else _is_plain(find(method, module))
        for name, method in methods
    )


def _is_plain(parts: list[PlainPart] | None) -> bool:
    """Return whether functions are plain, and do not say whether a module is trained."""
    return parts is not None and all("training" not in part.code.co_names for part in parts)


def _makes_text(method: Any, module: nn.Module) -> bool:
    """Return whether a method puts together a text of what a module holds, and does nothing else."""
    if type(method) is not FunctionType or method.__code__.co_freevars:
        return False
    entries = [entry for entry in dis.get_instructions(method) if entry.opname not in _WITHOUT_EFFECT]
    return all(
        _is_of_text(entry, before, module, method)
        for before, entry in zip([None, *entries], entries, strict=False)
    )


def _is_of_text(
    entry: dis.Instruction, before: dis.Instruction | None, module: nn.Module, method: FunctionType
) -> bool:
    name, said = entry.opname, entry.argval
    if name == "LOAD_GLOBAL":
        return said in _TEXTS and said not in method.__globals__
    if name != "LOAD_ATTR":
        return name in _OF_TEXTS and (name != "LOAD_FAST" or said == method.__code__.co_varnames[0])
    if before is not None and before.opname == "LOAD_FAST" and said != "training":
        return said == "__class__" or is_harmless(module, said, may_be_module=True)
    return said == "__name__" and before is not None and before.argval == "__class__"


_TEXTS = frozenset({"repr", "round", "str"})
_WITHOUT_EFFECT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})
_OF_TEXTS = frozenset(
    {
        *(
            "BINARY_ADD",
            "BINARY_OP",
            "BUILD_STRING",
            "CALL",
            "CALL_FUNCTION",
            "CONVERT_VALUE",
            "FORMAT_SIMPLE",
        ),
        *("FORMAT_VALUE", "FORMAT_WITH_SPEC", "LOAD_CONST", "LOAD_FAST", "RETURN_VALUE"),
    }
)


def tables_of_containers(modules: Iterable[nn.Module]) -> Iterator[dict[str, Any]]:
    """Yield the tables of the modules in containers of torch."""
    return (module.__dict__["_modules"] for module in modules if isinstance(module, _CONTAINERS))

"""Modules that plain code handles as other values: it goes through several at once, or keeps them in lists.

Nobody hears of what is done with a module that is no attribute, but that it is called. So nothing else may be found in
it by a name that the program uses for what it handles.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.bytecode import read_once
from fxplug.capture.hazards import scan_of
from fxplug.capture.plain_code import reads_method
from fxplug.capture.plain_holdings import CONSTANTS, is_constant, is_harmless, is_library_class
from fxplug.ir.instructions import instructions_of

if TYPE_CHECKING:
    import dis
    from collections.abc import Collection, Iterable, Iterator

    from fxplug.capture.plain_functions import PlainPart

__all__ = ["may_be_converted", "may_be_values", "tables_of_containers"]

_CONTAINERS = (nn.ModuleDict, nn.ModuleList, nn.Sequential)
_OF_LISTS = frozenset({"append", "clear", "extend", "insert", "items", "keys", "pop", "update", "values"})
"""Methods that lists and dicts have, too. They change nothing but the table of a container, which is looked at."""
_CONVERTING = frozenset({"bfloat16", "cpu", "cuda", "double", "float", "half", "to", "type"})
"""Methods that tensors have, too. Of a module they convert its weights, of which torch tells, and exchange its buffers,
which are looked at."""
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
    kinds = set(map(type, modules))
    if not all(names.isdisjoint(module.__dict__) for module in modules):
        return False
    if not all(_has_none(base, names) for kind in kinds for base in kind.__mro__):
        return False
    takes_slices = any(_takes_slices(part.code) for part in parts)
    if any(_is_run_otherwise(kind, is_made=takes_slices) for kind in kinds if issubclass(kind, _CONTAINERS)):
        return False
    return not any(_makes_texts(part.code) for part in parts) or all(map(_is_named_plainly, modules))


def may_be_converted(parts: Collection[PlainPart]) -> bool:
    """Return whether functions that handle modules call methods by which modules convert their weights."""
    return any(part.handles_modules for part in parts) and not all(
        _CONVERTING.isdisjoint(part.of_values) for part in parts
    )


def _has_none(kind: type, names: frozenset[str]) -> bool:
    """Return whether a class has nothing of its own under any name.

    What containers share with lists is left out, and what modules share with tensors.
    """
    if kind is object:
        return True
    if kind is nn.Module:
        names = names - _CONVERTING
    return (names - _OF_LISTS if kind in _CONTAINERS else names).isdisjoint(kind.__dict__)


@read_once
def _instructions(code: CodeType) -> frozenset[tuple[str, str]]:
    """Return the instructions in a function, and in those in it, with what they are said to do."""
    own = {(entry.opname, entry.argrepr) for entry in instructions_of(code)}
    inner = [_instructions(one) for one in code.co_consts if isinstance(one, CodeType)]
    return frozenset(own).union(*inner)


# -- what containers do by themselves


def _takes_slices(code: CodeType) -> bool:
    """Return whether a function may take slices: one of a container is a new container."""
    names = {name for name, _ in _instructions(code)}
    return not names.isdisjoint({"BINARY_SLICE", "BUILD_SLICE"}) or any(
        type(one) is slice for one in code.co_consts
    )


def _is_run_otherwise(kind: type, *, is_made: bool) -> bool:
    """Return whether containers of a class run code of a program where they are asked for modules.

    Args:
        kind: The class.
        is_made: Whether new ones are made.
    """
    own = frozenset[str]().union(*(base.__dict__ for base in kind.__mro__ if not is_library_class(base)))
    theirs = frozenset[str]().union(*(base.__dict__ for base in kind.__mro__ if is_library_class(base)))
    allowed = _HARMLESS if is_made else _HARMLESS | _MAKING
    return not (own & theirs <= allowed) or (is_made and not own.isdisjoint(_MAKING))


_MAKING = frozenset({"__del__", "__init__", "__new__"})
_HARMLESS = frozenset(
    {"__dict__", "__doc__", "__module__", "__weakref__", "__annotations__", "forward", *_NAMING}
)


# -- texts of modules


def _makes_texts(code: CodeType) -> bool:
    """Return whether a function may make texts of what it handles."""
    if not {"format", "join", "str"}.isdisjoint(scan_of(code).names):
        return True
    found = _instructions(code)
    return any(name in _FORMATTING or (name.startswith("BINARY") and "%" in said) for name, said in found)


_FORMATTING = frozenset(
    {
        *("BINARY_MODULO", "BUILD_STRING", "CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_VALUE"),
        *("FORMAT_WITH_SPEC", "INPLACE_MODULO"),
    }
)


def _is_named_plainly(module: nn.Module) -> bool:
    """Return whether the text of a module is made by torch of constants, and by methods that put texts together."""
    held = module.__dict__
    if not _NAMING.isdisjoint(held):
        return False
    if is_library_class(type(module)):
        # Most are of a few classes, and a model has hundreds of layers with dozens of attributes.
        others = set(map(type, held.values())) - _OF_PYTHON
        return not others or all(
            _has_text_of_python(value) for value in held.values() if type(value) in others
        )
    own = [base.__dict__ for base in type(module).__mro__ if not is_library_class(base)]
    return all(_makes_text(held[name], module) for held in own for name in _NAMING if name in held)


def _has_text_of_python(value: Any) -> bool:
    """Return whether no code of a program runs where a text is made of an attribute of a layer."""
    kind = type(value)
    if kind in {list, tuple}:
        return _OF_PYTHON.issuperset(map(type, value)) or all(map(_has_text_of_python, value))
    return is_constant(value) or kind in _OF_LAYERS


_OF_LAYERS = frozenset({dict, OrderedDict, set, torch.Tensor, nn.Parameter, weakref.ref, type(None)})
_OF_PYTHON = CONSTANTS | _OF_LAYERS
"""Classes of attributes of layers whose texts Python and torch make."""


def _makes_text(method: Any, module: nn.Module) -> bool:
    """Return whether a method puts together a text of what a module holds, and does nothing else."""
    if type(method) is not FunctionType or method.__code__.co_freevars or not method.__code__.co_argcount:
        return False
    entries = [entry for entry in instructions_of(method.__code__) if entry.opname not in _WITHOUT_EFFECT]
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
    if reads_method(entry):
        return False
    if before.opname == "LOAD_FAST":
        is_known = said != "training" and is_harmless(module, said, may_be_module=True)
        return said == "__class__" or is_known
    return said == "__name__" and before.argval == "__class__"


_TEXTS = frozenset({"repr", "round", "str"})
_WITHOUT_EFFECT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "RESUME"})
"""Without ``PUSH_NULL`` and methods, nothing is called but what was found among globals."""
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

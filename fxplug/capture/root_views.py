"""What stands for the root in a function that is made again in each call of a graph.

``vmap(lambda row: self.net(row) * self.scale)`` holds the module that is captured. The graph has its submodules and
weights, and not the module itself; but the function wants no more of it than what it names. So it gets an object that
has just that. Code that does anything else with the module than to read attributes could tell the difference.
"""

from __future__ import annotations

import dis
import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.semantics.internals import buffers_of, modules_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["attributes_read", "methods_and_values"]

_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CONSTANTS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)
"""Classes of attributes that are constants of a captured program."""
_OWN_ACCESS = ("__getattribute__", "__getattr__")


def attributes_read(code: CodeType, name: str) -> frozenset[str] | None:
    """Return the attributes of a variable that code reads; None where it does anything else with it.

    Args:
        code: Of a function that has the variable, from around it or as its own.
        name: Of the variable.
    """
    found: set[str] = set()
    is_shared = name in code.co_cellvars or name in code.co_freevars
    entries = [entry for entry in dis.get_instructions(code) if entry.opname != "NOP"]
    for number, entry in enumerate(entries):
        if not _names(entry, name) or entry.opname == "MAKE_CELL":
            continue
        if entry.opname == "LOAD_CLOSURE" or (is_shared and entry.opname == "LOAD_FAST"):
            continue  # For a function inside, which is looked at below.
        following = entries[number + 1]
        last = entry.argval[-1] if isinstance(entry.argval, tuple) else entry.argval
        if not entry.opname.startswith("LOAD_") or last != name or following.opname not in _READS:
            return None
        found.add(following.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and name in inner.co_freevars:
            read = attributes_read(inner, name)
            if read is None:
                return None
            found |= read
    return frozenset(found)


def _names(entry: dis.Instruction, name: str) -> bool:
    if "FAST" not in entry.opname and "DEREF" not in entry.opname and entry.opname not in _OF_CELLS:
        return False
    return name in entry.argval if isinstance(entry.argval, tuple) else entry.argval == name


_OF_CELLS = frozenset({"LOAD_CLOSURE", "MAKE_CELL"})


def methods_and_values(
    root: nn.Module, names: Iterable[str]
) -> tuple[dict[str, FunctionType], dict[str, Any]] | None:
    """Return what a function needs of the root: the methods, and all else; None where it cannot do without the root.

    Args:
        root: The module.
        names: The attributes that the function reads; those that the methods read come to them.
    """
    if any(getattr(type(root), name, None) is not getattr(nn.Module, name, None) for name in _OWN_ACCESS):
        return None
    methods: dict[str, FunctionType] = {}
    values: dict[str, Any] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in methods or name in values:
            continue
        found = _found(root, name)
        if found is None:
            return None
        kind, value = found
        if kind != "method":
            values[name] = value
            continue
        code = value.__code__
        read = (
            attributes_read(code, code.co_varnames[0]) if code.co_argcount and not code.co_freevars else None
        )
        if read is None:
            return None
        methods[name] = value
        waiting += read
    return methods, values


def _found(root: nn.Module, name: str) -> tuple[str, Any] | None:
    """Return what a module has under a name; None for what a graph does not have."""
    for table in (modules_of(root), parameters_of(root), buffers_of(root)):
        if name in table:
            return "value", table[name]
    own = vars(root)
    if name in own:
        # What is switched is asked for in each call.
        return None if name == "training" or name in _TABLES else ("value", own[name])
    for base in type(root).__mro__:
        if base is nn.Module:
            return None
        if name not in vars(base):
            continue
        value = inspect.getattr_static(base, name)
        if isinstance(value, FunctionType):
            return "method", value
        return ("value", value) if isinstance(value, _CONSTANTS) else None
    return None


_TABLES = frozenset(vars(nn.Module())) - {"training"}

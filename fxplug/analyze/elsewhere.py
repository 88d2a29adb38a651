"""The tensors that a program keeps elsewhere than in its modules: in objects, closures, defaults, globals, classes."""

from __future__ import annotations

import sys
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fxplug.capture.attributes import can_be_asked
from fxplug.capture.containers import KINDS, OWN_TABLES, PLAIN, copy_of, is_foreign, is_object, parts_of
from fxplug.capture.hazards import scan_of
from fxplug.capture.sources import is_installed
from fxplug.semantics.internals import every_module, is_real_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["tensors_elsewhere"]

_MOST = 1000
"""Containers are looked into if they hold at most so many elements."""
_LIMIT = 20_000
"""So many objects are looked at."""
_LARGEST = 1 << 30
"""So many bytes are returned at most; what is larger is most likely data, and no state."""
_CONTAINERS = (*KINDS, tuple, frozenset)


def tensors_elsewhere(root: Any) -> list[torch.Tensor]:
    """Return the tensors that a program can find beside the parameters, buffers and attributes of its modules.

    Looked into are containers, objects of the program's own classes, and what its functions find by their names.
    Installed libraries are left out: what they keep is their own affair. So are tensors that are too large to be state.

    Args:
        root: A module, a function, or another object that is called.
    """
    modules = every_module(root) if isinstance(root, nn.Module) else []
    known = {id(part) for part in modules}
    waiting = _held_by(modules) if modules else [root]
    found: list[torch.Tensor] = []
    room = _LARGEST
    seen: set[int] = set()
    while waiting and len(seen) < _LIMIT:
        value = waiting.pop()
        kind = type(value)
        if id(value) in seen or id(value) in known or kind in _PLAIN or not can_be_asked(value):
            continue
        seen.add(id(value))
        if is_lazy(cast("Any", value)):
            continue  # It has no memory yet.
        if is_real_tensor(value):
            size = value.numel() * value.element_size()
            if size <= room:
                found.append(value)
                room -= size
        else:
            waiting.extend(_parts(value))
    return found


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, _CONTAINERS):
        held = copy_of(value)
        return parts_of(value, held) if len(held) <= _MOST else ()
    if isinstance(value, FunctionType):
        return _parts_of_function(value)
    if isinstance(value, MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, nn.Module):
        return _parts_of_module(value)
    if isinstance(value, (staticmethod, classmethod)):
        return (cast("Any", value).__func__,)
    if isinstance(value, property):
        return (value.fget,)
    if isinstance(value, type):
        return _parts_of_class(value)
    return [type(value), *(part for _, part in copy_of(value))] if is_object(value) else ()


def _held_by(modules: Iterable[nn.Module]) -> list[Any]:
    """Return what modules hold beside parameters, buffers and submodules, and their classes."""
    parts: list[Any] = [
        value
        for module in modules
        for name, value in vars(module).items()
        if type(value) not in _PLAIN
        and name not in OWN_TABLES
        and not (type(value) is tuple and _PLAIN.issuperset(map(type, value)))
    ]
    kinds = {type(module) for module in modules}
    return [*parts, *(kind for kind in kinds if not is_foreign(kind.__module__))]


_PLAIN = PLAIN - {torch.Tensor, nn.Parameter}


def _parts_of_module(module: nn.Module) -> list[Any]:
    """Return what a module holds that the root does not have."""
    return [*module.parameters(), *module.buffers(), *_held_by(every_module(module))]


def _parts_of_class(kind: type) -> Iterable[Any]:
    module = sys.modules.get(kind.__module__)
    if is_foreign(kind.__module__) or is_installed(str(getattr(module, "__file__", ""))):
        return ()
    return [part for base in kind.__mro__ if not is_foreign(base.__module__) for part in vars(base).values()]


def _parts_of_function(function: FunctionType) -> list[Any]:
    code = function.__code__
    if is_installed(code.co_filename):
        return []
    parts: list[Any] = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *vars(function).values(),
    ]
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:  # It has no value yet.
            continue
    names = scan_of(code).names
    parts += _named_in(function.__globals__, names)
    return parts


def _named_in(namespace: dict[str, Any], names: frozenset[str]) -> list[Any]:
    found: list[Any] = []
    for name in namespace.keys() & names:
        value = namespace[name]
        if type(value) in _PLAIN or not can_be_asked(value):
            continue
        if not isinstance(value, ModuleType):
            found.append(value)
        elif not is_foreign(value.__name__) and not is_installed(str(getattr(value, "__file__", ""))):
            # In a module of the program, what stands behind its name.
            held = vars(value)
            found += [held[other] for other in held.keys() & names if not isinstance(held[other], ModuleType)]
    return found

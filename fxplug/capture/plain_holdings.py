"""What modules hold: layers of torch, constants, and what Python finds as an attribute without running anything."""

from __future__ import annotations

import enum
import weakref
from enum import EnumMeta
from operator import attrgetter, is_, itemgetter
from types import CodeType, DynamicClassAttribute, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_base
from torch.nn.modules.lazy import LazyModuleMixin

from fxplug.capture.containers import PLAIN, is_of_library
from fxplug.semantics.internals import is_called_as_modules_are

__all__ = [
    "ABSENT",
    "CONSTANTS",
    "CONTAINERS",
    "OF_LIBRARY",
    "containers_among",
    "found_in",
    "gives_modules",
    "holds_constants",
    "holds_module",
    "holds_value",
    "in_class",
    "is_absent",
    "is_base_as_written",
    "is_constant",
    "is_function_of_layers",
    "is_harmless",
    "is_layer_as_written",
    "is_layer_of_torch",
    "is_library_class",
    "is_member",
    "is_of_torch",
    "is_quiet",
    "is_written_in",
    "iterates_as_torch",
    "method_of_layer",
]

_ScriptModule: type = torch.jit.ScriptModule
CONSTANTS = PLAIN - {torch.Tensor, nn.Parameter}
"""Classes of values that are what they are. Nobody hears of reads of tensors that are no parameters and no buffers."""


def is_base_as_written() -> bool:
    """Return whether modules are called and switched as torch has it: nobody has put anything else into their class."""
    global _base  # noqa: PLW0603 - what was found last
    try:
        values = _running_in(vars(nn.Module))
        found = (*values, *map(_code_of, values))
    except (AttributeError, KeyError):  # Something is missing, or is no function.
        return False
    if all(map(is_, found, _base)):
        return True
    is_one = all(is_written_in(value, _BASE_FILE) for value in values)
    if is_one:
        _base = found
    return is_one


_code_of = attrgetter("__code__")


def is_written_in(function: Any, *files: str) -> bool:
    """Return whether a function runs code of some files, or of a directory, and is nothing around another one."""
    return (
        type(function) is FunctionType
        and function.__code__.co_filename.startswith(files)
        and function.__globals__.get("__file__", "").startswith(files)
        and "__wrapped__" not in function.__dict__
    )


def is_function_of_layers(function: FunctionType, code: CodeType) -> bool:
    """Return whether a function is of torch's layers, and is nothing around another one.

    Args:
        function: The function.
        code: Its own.
    """
    file = function.__globals__.get("__file__", "")
    is_alone = not code.co_freevars and "__wrapped__" not in function.__dict__
    return (
        is_alone and code.co_filename.startswith(_LAYERS_OF_TORCH) and str(file).startswith(_LAYERS_OF_TORCH)
    )


def is_of_torch(function: Any) -> bool:
    """Return whether a function written in Python is one of torch, and is nothing around another one."""
    return is_written_in(function, _TORCH)


_TORCH = str(torch.__file__).removesuffix("__init__.py")
_BASE_FILE = module_base.__file__
_LAYERS_OF_TORCH = module_base.__file__.removesuffix("module.py")
_RUNNING = (
    *("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__setattr__", "train", "eval"),
    *("children", "named_children"),
)
_running_in = itemgetter(*_RUNNING)
_base: tuple[Any, ...] = (None,)
"""The methods of modules, and their code, that were found to be those of torch."""


def is_layer_of_torch(kind: type) -> bool:
    """Return whether a class is one that `plain_program` takes for a layer: its forward is not looked at."""
    home = str(kind.__module__)
    return home.startswith(_HOMES) and home != _CONTAINERS


_HOMES = "torch.nn.modules."
_CONTAINERS = nn.Sequential.__module__


def is_layer_as_written(kind: Any) -> bool:
    """Return whether a class is one of those that torch has for layers and containers, as torch has it."""
    if not str(kind.__module__).startswith(_HOMES) or issubclass(kind, LazyModuleMixin):
        return False
    is_switched = kind.train is nn.Module.train and kind.eval is nn.Module.eval
    return (
        is_called_as_modules_are(kind)
        and is_switched
        and is_written_in(kind.forward, _LAYERS_OF_TORCH)
        and iterates_as_torch(kind)
    )


def iterates_as_torch(kind: Any) -> bool:
    """Return whether what a container of torch calls is what it holds."""
    own = getattr(kind, "__iter__", None)
    return own is None or is_written_in(own, _LAYERS_OF_TORCH)


_libraries: dict[int, tuple[weakref.ref[type], bool]] = {}
"""Id of a class -> whether it is one of a library."""
_layers: dict[int, weakref.ref[type]] = {}
"""Ids of classes of modules that are of libraries, with all that they are derived from."""
_classes: dict[int, tuple[weakref.ref[type], tuple[str, ...], bool]] = {}
"""Id of a class of a program -> the names in it, and whether none of them is one of what runs without being named."""


def is_library_class(kind: type) -> bool:
    """Return whether a class is one of a library whose code is not looked at."""
    key = id(kind)
    known = _libraries.get(key)
    if known is None:
        is_one = is_of_library(kind.__module__)
        known = _libraries[key] = weakref.ref(kind, lambda _, kept=_libraries: kept.pop(key, None)), is_one
    return known[1]


def is_quiet(module: Any) -> bool:
    """Return whether nothing of a module runs but what is heard of, where it is called or compared with None."""
    kind = type(module)
    if id(kind) in _layers:
        return True
    if not issubclass(kind, nn.Module) or issubclass(kind, _ScriptModule) or type(kind) is not type:
        return False
    if all(map(is_library_class, kind.__mro__)):
        key = id(kind)
        _layers[key] = weakref.ref(kind, lambda _, kept=_layers: kept.pop(key, None))
        return True
    return all(is_library_class(base) or _has_quiet_names(base) for base in kind.__mro__)


def _has_quiet_names(kind: type) -> bool:
    key, names = id(kind), tuple(kind.__dict__)
    known = _classes.get(key)
    if known is None or known[1] != names:
        is_quiet = not any(map(_runs_unnamed, names))
        known = _classes[key] = (
            weakref.ref(kind, lambda _, kept=_classes: kept.pop(key, None)),
            names,
            is_quiet,
        )
    return known[2]


def _runs_unnamed(name: str) -> bool:
    """Return whether a name in a class is one of what Python or torch calls by itself."""
    is_special = name[:2] == "__" == name[-2:]
    return (is_special or name in _OF_MODULES) and name not in _HARMLESS_NAMES


def gives_modules(receiver: nn.Module, name: str) -> bool:
    """Return whether an attribute of a module is a list of modules of torch, which yields what it holds.

    Without a name it is the module itself; with parentheses a method of torch that gives the modules in it. Behind a
    dot it is an attribute of a module in it.
    """
    if not name:
        return isinstance(receiver, (nn.ModuleList, nn.Sequential)) and iterates_as_torch(type(receiver))
    if name.endswith("()"):
        method = getattr(type(receiver), name.removesuffix("()"), None)
        return name.removesuffix("()") not in receiver.__dict__ and is_written_in(method, _LAYERS_OF_TORCH)
    held = receiver.__dict__
    if "." in name:
        name, _, inner = name.partition(".")
        return holds_module(receiver, name) and gives_modules(held["_modules"][name], inner)
    if name in held or in_class(type(receiver), name) is not ABSENT:
        return False
    kind = type(held["_modules"].get(name))
    return (
        kind in {nn.ModuleList, nn.Sequential}
        and is_quiet(held["_modules"][name])
        and iterates_as_torch(kind)
        and is_written_in(kind.__getitem__, _LAYERS_OF_TORCH)
    )


def holds_module(receiver: nn.Module, name: str) -> bool:
    """Return whether Python finds a module as an attribute of another one, and nothing else may run for it."""
    held = receiver.__dict__
    found = held["_modules"].get(name)
    is_hidden = name in held or in_class(type(receiver), name) is not ABSENT
    return found is not None and not is_hidden and is_quiet(found)


ABSENT, OF_LIBRARY = object(), object()


def in_class(kind: type, name: str) -> Any:
    """Return what a class has under a name: `ABSENT` for nothing, `OF_LIBRARY` for what a library has there."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return OF_LIBRARY if is_library_class(base) else base.__dict__[name]
    return ABSENT


def method_of_layer(kind: type, name: str) -> Any:
    """Return the method that a class has from a layer of torch, as torch has written it; None for anything else."""
    home = next((base for base in kind.__mro__ if name in base.__dict__), None)
    is_layer = home is not None and home is not nn.Module and is_layer_of_torch(home)
    method = home.__dict__[name] if home is not None and is_layer else None
    return method if is_written_in(method, _LAYERS_OF_TORCH) else None


def is_constant(value: Any) -> bool:
    """Return whether a value is what it is, or a tuple of such."""
    kind = type(value)
    return (
        kind in CONSTANTS
        or (kind in {tuple, torch.Size} and all(map(is_constant, value)))
        or is_member(value)
    )


def is_member(value: Any) -> bool:
    """Return whether a value is a member of an enumeration that has no code, and is a text, an integer or neither."""
    kind: Any = type(value)
    if not isinstance(kind, EnumMeta) or vars(kind)["_member_type_"] not in {object, str, int}:
        return False
    own = [base for base in kind.__mro__ if base.__module__ not in {"builtins", "enum"}]
    return all(_is_of_enumeration(name, entry) for base in own for name, entry in vars(base).items())


def _is_of_enumeration(name: str, entry: Any) -> bool:
    """Return whether what is in the class of an enumeration is a member, or was put there by Python."""
    if name in _OF_ENUMERATIONS or (
        isinstance(entry, str) and name in {"__doc__", "__module__", "__qualname__"}
    ):
        return True
    code = getattr(getattr(entry, "__func__", entry), "__code__", None)
    is_of_python = code is not None and code.co_filename == enum.__file__
    is_property = isinstance(entry, DynamicClassAttribute) and entry.fget is None
    return is_of_python or is_property or isinstance(type(entry), EnumMeta)


_OF_ENUMERATIONS = frozenset(
    {
        *("_member_names_", "_member_map_", "_value2member_map_", "_unhashable_values_", "_member_type_"),
        *(
            "_value_repr_",
            "_new_member_",
            "_use_args_",
            "_unhashable_values_map_",
            "_hashable_values_",
            "_missing_",
        ),
        *(
            "__dict__",
            "__weakref__",
            "__doc__",
            "__annotations__",
            "__static_attributes__",
            "__firstlineno__",
        ),
    }
)


CONTAINERS = frozenset({dict, list})


def holds_constants(value: Any) -> bool:
    """Return whether a value is a list or dict of constants, or of others of these.

    The program may change them, so they are looked at behind.
    """
    return type(value) in CONTAINERS and _is_made_of_constants(value, _DEEPEST)


_DEEPEST = 8


def _is_made_of_constants(value: Any, depth: int) -> bool:
    if is_constant(value):
        return True
    kind = type(value)
    if kind not in {*CONTAINERS, tuple} or not depth:
        return False
    parts = [*value, *value.values()] if kind is dict else value
    return all(_is_made_of_constants(part, depth - 1) for part in parts)


def containers_among(value: Any) -> list[Any]:
    """Return a list or dict, and the lists and dicts in it, each once."""
    found: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if kind in CONTAINERS and id(part) not in found:
            found[id(part)] = part
            waiting += part.values() if kind is dict else part
        elif kind is tuple:
            waiting += part
    return list(found.values())


def found_in(module: nn.Module, name: str) -> Any:
    """Return what Python finds as an attribute of a module, where that runs nothing; else something that is neither.

    Returns:
        The value, `ABSENT` where there is none, and `OF_LIBRARY` where it is not known.
    """
    held = module.__dict__
    value = in_class(type(module), name)
    if value is not ABSENT:
        return held.get(name, value) if type(value) in CONSTANTS else OF_LIBRARY
    if name in held:
        return held[name]
    for table in ("_parameters", "_buffers", "_modules"):
        if name in held[table]:
            return held[table][name]
    return ABSENT


def is_absent(module: nn.Module, name: str) -> bool:
    """Return whether a module has no attribute of a name."""
    return found_in(module, name) is ABSENT


def holds_value(module: nn.Module, name: str) -> bool:
    """Return whether a module has a constant, a registered tensor or None under a name."""
    return is_harmless(module, name, may_be_module=False) or found_in(module, name) is None


def is_harmless(module: nn.Module, name: str, *, may_be_module: bool) -> bool:
    """Return whether what Python finds as an attribute of a module is a constant, or is heard of; nothing is run."""
    held = module.__dict__
    name, _, inner = name.partition(".")
    value = in_class(type(module), name)
    if inner == "training":  # Whose flag it reads is not told.
        return False
    if inner and name in held:
        return value is ABSENT and _is_constant_of(held[name], inner)
    if inner:
        owner = None if value is not ABSENT else held["_modules"].get(name)
        if owner is None:
            return False
        is_container = type(owner.__dict__.get(inner)) in CONTAINERS
        return not is_container and is_quiet(owner) and is_harmless(owner, inner, may_be_module=may_be_module)
    if value is not ABSENT:
        return is_constant(value) and is_constant(held.get(name))
    if name in held:
        return is_constant(held[name]) or holds_constants(held[name])
    for table in ("_parameters", "_buffers"):
        if name in held[table]:
            return type(held[table][name]) in PLAIN
    if name not in held["_modules"]:
        return False
    found = held["_modules"][name]
    return found is None or (may_be_module and is_quiet(found))


def _is_constant_of(owner: Any, name: str) -> bool:
    """Return whether what Python finds as an attribute of an object, such as a configuration, is a constant."""
    kinds = type(owner).__mro__
    is_asked = type(owner).__getattribute__ is not object.__getattribute__ or any(
        "__getattr__" in kind.__dict__ for kind in kinds
    )
    held = None if is_asked else getattr(owner, "__dict__", None)
    of_class = next((kind.__dict__[name] for kind in kinds if name in kind.__dict__), None)
    return (
        type(held) is dict
        and is_constant(of_class)
        and is_constant(held.get(name, of_class))
        and (name in held or of_class is not None)
    )


_OF_MODULES = frozenset(vars(nn.Module))
_HARMLESS_NAMES = frozenset(
    {
        *("__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__constants__"),
        *("__del__", "__dict__", "__doc__", "__firstlineno__", "__init__", "__init_subclass__", "__module__"),
        *("__new__", "__orig_bases__", "__parameters__", "__repr__", "__static_attributes__", "__weakref__"),
        *("_get_name", "_load_from_state_dict", "_save_to_state_dict", "_version", "dump_patches", "eval"),
        *("extra_repr", "forward", "get_extra_state", "load_state_dict", "set_extra_state", "state_dict"),
        "train",
    }
)
"""What a class may define of its own, and nobody calls where a module of it is called."""

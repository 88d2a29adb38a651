"""Functions in which there is nothing to look for: all that they do is call modules of their object, methods and torch.

Most forwards of networks are like that. What is looked for elsewhere (see `fxplug.capture.hazards`) is then known not
to be there: they ask nothing that no traced value hears, they find no other code than that of modules, whose calls are
heard of, and they hand on nothing but numbers, tensors and what they were given themselves.
"""

from __future__ import annotations

import builtins
import math
import weakref
from collections import OrderedDict
from enum import EnumMeta
from functools import partial
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional
from torch import nn
from torch.nn.modules import module as module_base
from torch.nn.modules.lazy import LazyModuleMixin

from fxplug.capture.containers import PLAIN, is_of_library
from fxplug.capture.hazards import FILE_OF_CONTAINERS, scan_of
from fxplug.capture.live_code import Condition, conditions_in, live_code
from fxplug.capture.plain_code import (
    ATTRIBUTES_OF_TENSORS,
    OF_CONTAINERS,
    Reads,
    reads_of,
    reads_of_function,
)
from fxplug.capture.world import world_found_by, world_kept_by
from fxplug.semantics.effects import method_computes
from fxplug.semantics.internals import (
    MODULES_OF_OPERATORS,
    assert_function,
    global_hook_tables,
    is_called_as_modules_are,
    is_run_as_written,
)
from fxplug.semantics.kinds import TENSOR_METHODS
from fxplug.semantics.libraries import what_does

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

__all__ = [
    "MissedProgramError",
    "PlainPart",
    "PlainProgram",
    "function_may_stay",
    "holds_the_same",
    "is_function_of_layers",
    "is_layer_of_torch",
    "is_of_torch",
    "layout_of",
    "method_may_stay",
    "plain_parts",
    "plain_program",
    "put_back",
]

_ScriptModule: type = torch.jit.ScriptModule
_CONSTANTS = PLAIN - {torch.Tensor, nn.Parameter}
"""Classes of values that are what they are. Nobody hears of reads of tensors that are no parameters and no buffers."""


# -- whole programs


class MissedProgramError(Exception):
    """A program that was taken for a plain one has layers entered, or modules that it does not hold."""


class PlainProgram(NamedTuple):
    """A program that only has layers of torch and modules with plain forwards."""

    codes: set[int]
    """The ids of the code of the forwards and of what they call."""
    parts: list[PlainPart]
    """These functions."""
    asks_for_training: frozenset[type]
    """Those classes of modules of which these read ``training``, of their own module: they can read no other's."""
    needs_examples: bool
    """Whether they compare values with None, which a run has to tell to be none."""
    asks_for_classes: bool
    """Whether they ask of which class values are."""
    containers: list[tuple[Any, Any]]
    """The lists and dicts of constants that they read off modules, each with a copy."""

    @property
    def asking(self) -> list[dict[str, Any]]:
        """The globals of those that call ``len``."""
        return [function.__globals__ for function, code, *_ in self.parts if "len" in code.co_names]


def plain_program(
    modules: Collection[nn.Module],
    code_of: Callable[[FunctionType], CodeType],
    is_remarkable: Callable[[CodeType], bool],
    *,
    with_methods: bool = False,
    on_examples: bool = False,
) -> PlainProgram | None:
    """Return what runs of a program that only has layers of torch and modules with plain forwards, and nothing around.

    Args:
        modules: The root and all modules below it.
        code_of: Returns the own code of a function, whose code may be exchanged.
        is_remarkable: Returns whether there is more to know of a function, by its code.
        with_methods: As in `plain_parts`: all inputs of the program are traced.
        on_examples: As there: it is run on examples, too.

    Returns:
        What its forwards are, and what they call; None for other programs.
    """
    if any(global_hook_tables()) or not _is_base_as_written():
        return None
    find = partial(plain_parts, code_of=code_of, with_methods=with_methods, on_examples=on_examples)
    found: list[PlainPart] = []
    known: dict[tuple[Any, ...], list[PlainPart]] = {}
    layers: set[type] = set()
    asking: set[type] = set()
    try:
        for module in modules:
            kind = type(module)
            if not is_run_as_written(module.__dict__):
                return None
            # A model has hundreds of layers.
            if kind in layers:
                continue
            if _is_layer_as_written(kind):
                layers.add(kind)
                continue
            layout = layout_of(module)
            parts = known.get(layout)
            if parts is not None and holds_the_same(module, parts):
                continue
            is_switched = kind.train is not nn.Module.train or kind.eval is not nn.Module.eval
            parts = None if is_switched else find(kind.forward, module)
            if parts is None or any(is_remarkable(part.live) for part in parts):
                return None
            known[layout] = parts
            found += parts
            if any("training" in part.values or "training" in part.code.co_names for part in parts):
                asking.add(kind)
    except KeyError:  # A module lacks a table that every module has.
        return None
    needs_examples = any(part.needs_examples for part in found)
    asks_for_classes = any("isinstance" in part.live.co_names for part in found)
    containers = [(value, value.copy()) for value in _containers_in(modules, found)]
    codes = set[int]().union(*(scan_of(part.code).codes for part in found))
    return PlainProgram(codes, found, frozenset(asking), needs_examples, asks_for_classes, containers)


def _containers_in(modules: Iterable[nn.Module], parts: Iterable[PlainPart]) -> Iterator[Any]:
    """Yield the lists and dicts that functions read off modules."""
    names = frozenset[str]().union(*(part.containers for part in parts))
    for module in modules if names else ():
        held = module.__dict__
        yield from (held[name] for name in names if type(held.get(name)) in _CONTAINERS_OF_CONSTANTS)


def put_back(containers: Iterable[tuple[Any, Any]]) -> None:
    """Put back into lists and dicts what was in them.

    Args:
        containers: Each with a copy of what it was.

    Raises:
        MissedProgramError: A program has changed one, which was taken for a constant.
    """
    changed = [(value, before) for value, before in containers if not _is_like(value, before)]
    for value, before in changed:
        value.clear()
        (value.update if type(value) is dict else value.extend)(before)
    if changed:
        raise MissedProgramError


def _is_like(value: Any, other: Any) -> bool:
    """Return whether two lists or dicts hold the same objects in the same order."""
    pairs = zip(value, other, strict=False)
    is_same = len(value) == len(other) and all(one is another for one, another in pairs)
    return is_same and (type(value) is list or all(map(is_, value.values(), other.values())))


def _is_base_as_written() -> bool:
    """Return whether modules are called and switched as torch has it: nobody has put anything else into their class."""
    values: list[Any] = [vars(nn.Module).get(name) for name in _RUNNING]
    return all(is_written_in(value, _BASE_FILE) for value in values)


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


def is_layer_of_torch(kind: type) -> bool:
    """Return whether a class is one that `plain_program` takes for a layer: its forward is not looked at."""
    home = str(kind.__module__)
    return home.startswith(_HOMES) and home != _CONTAINERS


_HOMES = "torch.nn.modules."
_CONTAINERS = nn.Sequential.__module__


def _is_layer_as_written(kind: Any) -> bool:
    """Return whether a class is one of those that torch has for layers and containers, as torch has it."""
    if not str(kind.__module__).startswith(_HOMES) or issubclass(kind, LazyModuleMixin):
        return False
    is_switched = kind.train is nn.Module.train and kind.eval is nn.Module.eval
    return (
        is_called_as_modules_are(kind)
        and is_switched
        and is_written_in(kind.forward, _LAYERS_OF_TORCH)
        and _iterates_as_torch(kind)
    )


def _iterates_as_torch(kind: Any) -> bool:
    """Return whether what a container of torch calls is what it holds."""
    own = getattr(kind, "__iter__", None)
    return own is None or is_written_in(own, _LAYERS_OF_TORCH)


# -- functions


class PlainPart(NamedTuple):
    """A plain function."""

    function: FunctionType
    code: CodeType
    """Its own."""
    called: frozenset[str]
    """Names of its object whose values, or what is in these, it calls."""
    values: frozenset[str]
    """Those of other values."""
    live: CodeType
    """Its code without what cannot run."""
    answers: tuple[bool | None, ...]
    """What its conditions were found to be (see `fxplug.capture.live_code`)."""
    is_method: bool
    """Whether its first parameter is the module."""
    containers: frozenset[str]
    """Those of the names that lead to lists and dicts."""
    needs_examples: bool
    """Whether it is plain in a program that is run on examples, and only there."""


def plain_parts(
    function: Any,
    receiver: Any,
    code_of: Callable[[FunctionType], CodeType],
    *,
    with_methods: bool = False,
    on_examples: bool = False,
) -> list[PlainPart] | None:
    """Return a plain function and the methods that it calls, which are plain too; None for others.

    Args:
        function: A function or method.
        receiver: The object whose method it is; None for a function.
        code_of: Returns the own code of a function, whose code may be exchanged.
        with_methods: Whether those are plain too that call methods of other values, read attributes of these, take them
            apart, go through lists of modules and compute with numbers (``math``). All values have to be traced ones,
            tensors, numbers and the like then, and what holds these: no code of theirs is looked at.
        on_examples: Whether those are plain too that call functions of the program, go through containers that they
            have made and fill these, and compare values with None. What was recorded of traced values has to be looked
            at in the end, and no value may be None that is computed from the examples.
    """
    if receiver is not None and not _is_quiet(receiver):
        return None
    found: list[PlainPart] = []
    waiting: list[tuple[Any, bool]] = [(getattr(function, "__func__", function), receiver is not None)]
    seen: set[tuple[int, bool]] = set()
    while waiting:
        current, is_method = waiting.pop()
        if type(current) is not FunctionType:
            return None
        key = id(current), is_method  # Not its code: another function may have that, and other defaults.
        if key in seen:
            continue
        seen.add(key)
        owner = receiver if is_method else None
        code = code_of(current)
        if code.co_filename == FILE_OF_CONTAINERS and _iterates_as_torch(type(owner)):
            continue  # It calls modules, and nothing else.
        plain = _plain_part(current, code, owner, with_methods=with_methods, on_examples=on_examples)
        if plain is None:
            return None
        part, more = plain
        waiting += more
        found.append(part)
    return found


def _plain_part(
    function: FunctionType, code: CodeType, owner: Any, *, with_methods: bool, on_examples: bool
) -> tuple[PlainPart, list[tuple[Any, bool]]] | None:
    """Return a plain function or method, and what it calls: functions, and whether they are methods of its object."""
    # Where other code runs, too, that may change what the answers hang on.
    answers = _answers(code, function.__globals__, owner) if with_methods else ()
    live = live_code(code, answers)
    is_method = owner is not None
    reads = _reads(live, owner, is_function=on_examples and not is_method)
    if reads is None or (reads.needs_examples and not on_examples):
        return None
    helpers = _found_by(function, live, reads, with_math=with_methods)
    if helpers is None or (helpers and not on_examples):
        return None
    if reads.goes_into_values and not (with_methods and _computes_with_values(reads, any_method=on_examples)):
        return None
    more = [(helper, False) for helper in helpers]
    if any((reads.called, reads.tested, reads.used, reads.looped, reads.inherited, reads.optional)):
        methods = None if owner is None else _methods_called(owner, reads)
        if methods is None:
            return None
        methods += [_inherited(function, type(owner), name) for name in reads.inherited]
        more += [(method, True) for method in methods]
    called = reads.called | reads.looped
    values = reads.tested | reads.used | reads.optional
    held = {} if owner is None else owner.__dict__
    containers = frozenset(name for name in values if type(held.get(name)) in _CONTAINERS_OF_CONSTANTS)
    if containers and not on_examples:
        return None
    rest = is_method, containers, reads.needs_examples
    return PlainPart(function, code, called, values, live, answers, *rest), more


def _reads(code: CodeType, owner: Any, *, is_function: bool) -> Reads | None:
    """Return what a function or method reads; None where it is no plain one."""
    if is_function:
        return reads_of_function(code)
    # What libraries do in their modules, such as captured ones, is known in other ways.
    return None if owner is not None and _is_library_class(type(owner)) else reads_of(code)


def _computes_with_values(reads: Reads, *, any_method: bool) -> bool:
    """Return whether a function does nothing with values but compute others, and read what a traced one records.

    Args:
        reads: What the function reads.
        any_method: Whether it may call any method: those of traced values are looked at when they were recorded.
    """
    attributes = reads.attributes - ATTRIBUTES_OF_TENSORS
    if any_method:
        return attributes <= TENSOR_METHODS
    return not attributes and all(map(method_may_stay, reads.methods))


def method_may_stay(name: str) -> bool:
    """Return whether a method of tensors computes, or does what an operator such as ``+=`` does."""
    return method_computes(name) or name in _WRITING


_WRITING = frozenset({"add_", "clamp_", "div_", "mul_", "relu_", "sigmoid_", "sub_", "tanh_"})
"""Methods that do what ``+=`` does."""


def layout_of(module: nn.Module) -> tuple[Any, ...]:
    """Return what is the same for modules that differ in nothing but in their values, and in what hides modules."""
    modules = module.__dict__["_modules"]
    return (type(module), *modules, *map(type, modules.values()))


def holds_the_same(module: nn.Module, parts: Iterable[PlainPart]) -> bool:
    """Return whether functions that are plain for a module of the same layout are so for another one.

    Nothing of its own hides what they call, and the other values that they read are constants.
    """
    held = module.__dict__
    own, modules = held.get, held["_modules"]
    for function, code, called, values, _, answers, is_method, *_ in parts:
        if answers and _answers(code, function.__globals__, module if is_method else None) != answers:
            return False
        for name in called:
            if own(name) is not None:
                return False
        for name in values:
            is_known = name in modules or _holds_constant(held, name) or _is_absent(module, name)
            if not (_is_harmless(module, name, may_be_module=False) if "." in name else is_known):
                return False
    return True


def _holds_constant(held: dict[str, Any], name: str) -> bool:
    """Return whether a module with these attributes has a constant or a registered tensor under a name.

    One that has nothing there has what its class has, which is a constant if it is one for another module of the class.
    """
    if name in held:
        return _is_constant(held[name]) or _holds_constants(held[name])
    return type(held["_buffers"].get(name, held["_parameters"].get(name))) in PLAIN


# -- what a function finds

_quiet: dict[tuple[int, bool], tuple[weakref.ref[CodeType], tuple[Any, ...], list[Any]]] = {}
"""Id of code, and whether ``math`` is as torch -> what of these it finds, and what of that is of the program."""


def _found_by(function: FunctionType, code: CodeType, reads: Reads, *, with_math: bool) -> list[Any] | None:
    """Return the functions of the program that a function finds among globals.

    Args:
        function: The function, whose defaults have to be constants.
        code: Its own.
        reads: What it reads.
        with_math: Whether functions of ``math`` are as those of torch, where they are read off the module.

    Returns:
        These; None where it finds something else than functions, and those of torch that compute.
    """
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if any(type(value) not in _CONSTANTS for value in defaults):
        return None
    namespace = function.__globals__
    if reads.optional and "getattr" in namespace:
        return None
    if not all(_is_settled_class(namespace, chain) for chain in reads.classes):
        return None
    values = tuple([_resolved(namespace, chain, with_math=with_math) for chain in reads.found])
    key = id(code), with_math
    known = _quiet.get(key)
    if known is not None and len(known[1]) == len(values) and all(map(is_, known[1], values)):
        return known[2]
    others = [value for value in values if not (function_may_stay(value) or what_does(value) in _COMPUTING)]
    if not all(map(_is_of_program, others)):
        return None
    names = scan_of(code).names
    if any(True for _ in world_found_by(namespace, names)) or any(
        True for _ in world_kept_by(function, None, names)
    ):
        return None
    _quiet[key] = weakref.ref(code, lambda _: _quiet.pop(key, None)), values, others
    return others


_COMPUTING = frozenset({"computes", "draws in training", "drops in training"})


def _is_settled_class(namespace: dict[str, Any], chain: tuple[str, ...]) -> bool:
    """Return whether names lead to a class, and to ask whether something is of it runs nothing of a program."""
    single = namespace.get(chain[0], vars(builtins).get(chain[0])) if len(chain) == 1 else None
    value = _resolved(namespace, chain, with_math=False) if len(chain) > 1 else single
    return any(value is one for one in _CLASSES)


_CLASSES = (list, tuple, dict, int, float, bool, str, torch.Tensor)


def _is_of_program(value: Any) -> bool:
    """Return whether something is a function whose code may be looked at, and nothing around another one."""
    return (
        type(value) is FunctionType
        and not is_of_library(value.__module__)
        and "__wrapped__" not in value.__dict__
    )


def _resolved(namespace: dict[str, Any], chain: tuple[str, ...], *, with_math: bool) -> Any:
    """Return what names lead to: that of a module of torch, and others behind it; None where they lead elsewhere."""
    first, *others = chain
    value = namespace.get(first)
    if with_math and value is math and len(others) == 1:
        return vars(math).get(others[0])
    if not others and first in _BUILTINS:
        return None if first in namespace else _BUILTINS[first]
    is_single = type(value) in _FUNCTIONS and getattr(value, "__self__", None) is not math
    if not others and not (is_single or value is OrderedDict):
        return None
    if isinstance(value, EnumMeta) and len(others) == 1:
        return value.__members__.get(others[0])
    for name in others:
        if type(value) is not ModuleType or not f"{value.__name__}.".startswith("torch."):
            return None
        value = vars(value).get(name)
    return value


_FUNCTIONS = frozenset({BuiltinFunctionType, FunctionType})
_ERRORS = {
    name: value
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, Exception)
}
_BUILTINS: dict[str, Any] = {
    **_ERRORS,
    **{name: getattr(builtins, name) for name in ("abs", "len", "max", "min", *OF_CONTAINERS)},
}
"""What of Python's own a plain program may call by its name."""


def function_may_stay(value: Any) -> bool:
    """Return whether something is a function of torch or ``math`` that computes, or a plain value."""
    kind = type(value)
    if kind is FunctionType:
        is_one = value in _FURTHER or vars(torch.nn.functional).get(value.__name__) is value
        return is_written_in(value, *_FILES_OF_FUNCTIONS) or (is_one and is_of_torch(value))
    if kind is BuiltinFunctionType:
        if value.__self__ is None:
            return value.__module__ == "torch"
        if value.__self__ is builtins:
            return value in _BUILTINS.values()
        # Only what was read off the module is a function of ``math`` here, where the tracer hears of its calls.
        return value.__self__ is math or value.__module__ in MODULES_OF_OPERATORS
    if kind is type:
        return value in _BUILTINS.values() or value is OrderedDict
    return kind in {int, float, bool, torch.dtype} or _is_member(value)


_FILES_OF_FUNCTIONS = (str(torch.nn.functional.__file__), str(torch.functional.__file__))


# -- what an object holds

_libraries: dict[int, tuple[weakref.ref[type], bool]] = {}
"""Id of a class -> whether it is one of a library."""
_layers: dict[int, weakref.ref[type]] = {}
"""Ids of classes of modules that are of libraries, with all that they are derived from."""
_classes: dict[int, tuple[weakref.ref[type], tuple[str, ...], bool]] = {}
"""Id of a class of a program -> the names in it, and whether none of them is one of what runs without being named."""


def _is_library_class(kind: type) -> bool:
    key = id(kind)
    known = _libraries.get(key)
    if known is None:
        is_one = is_of_library(kind.__module__)
        known = _libraries[key] = weakref.ref(kind, lambda _: _libraries.pop(key, None)), is_one
    return known[1]


def _is_quiet(module: Any) -> bool:
    """Return whether nothing of a module runs but what is heard of, where it is called or compared with None."""
    kind = type(module)
    if id(kind) in _layers:
        return True
    if not issubclass(kind, nn.Module) or issubclass(kind, _ScriptModule) or type(kind) is not type:
        return False
    if all(map(_is_library_class, kind.__mro__)):
        key = id(kind)
        _layers[key] = weakref.ref(kind, lambda _: _layers.pop(key, None))
        return True
    return all(_is_library_class(base) or _has_quiet_names(base) for base in kind.__mro__)


def _has_quiet_names(kind: type) -> bool:
    key, names = id(kind), tuple(kind.__dict__)
    known = _classes.get(key)
    if known is None or known[1] != names:
        is_quiet = not any(map(_runs_unnamed, names))
        known = _classes[key] = weakref.ref(kind, lambda _: _classes.pop(key, None)), names, is_quiet
    return known[2]


def _runs_unnamed(name: str) -> bool:
    """Return whether a name in a class is one of what Python or torch calls by itself."""
    is_special = name[:2] == "__" == name[-2:]
    return (is_special or name in _OF_MODULES) and name not in _HARMLESS_NAMES


def _methods_called(receiver: nn.Module, reads: Reads) -> list[Any] | None:
    """Return the methods that a function calls of its object; None where it finds something that leads to others."""
    held = receiver.__dict__
    modules = held["_modules"]
    methods: list[Any] = []
    for name in reads.called:
        if held.get(name) is not None:
            return None
        value = _of_class(type(receiver), name)
        if value is not _ABSENT:
            methods.append(value)
        elif (module := modules.get(name)) is not None and not _is_quiet(module):
            return None
    if not all(_gives_modules(receiver, name) for name in reads.looped):
        return None
    if not all(_is_absent(receiver, name) or _holds_value(receiver, name) for name in reads.optional):
        return None
    for name in (*reads.tested, *reads.used):
        if not _is_harmless(receiver, name, may_be_module=name not in reads.used):
            return None
    return methods


def _inherited(function: FunctionType, owner: type, name: str) -> Any:
    """Return the method that ``super()`` finds in a function; None where that is none of a class of a program."""
    try:
        own = next((cell.cell_contents for cell in function.__closure__ or ()), None)
    except ValueError:  # It has no value yet.
        return None
    kinds = owner.__mro__
    if function.__globals__.get("super", super) is not super or own not in kinds:
        return None
    behind = kinds[kinds.index(own) + 1 :]
    kind = next((kind for kind in behind if name in kind.__dict__), None)
    return None if kind is None or _is_library_class(kind) else kind.__dict__[name]


def _gives_modules(receiver: nn.Module, name: str) -> bool:
    """Return whether an attribute of a module is a list of modules of torch, which yields what it holds.

    Without a name it is the module itself; with parentheses a method of torch that gives the modules in it.
    """
    if not name:
        return isinstance(receiver, (nn.ModuleList, nn.Sequential)) and _iterates_as_torch(type(receiver))
    if name.endswith("()"):
        method = getattr(type(receiver), name.removesuffix("()"), None)
        return name.removesuffix("()") not in receiver.__dict__ and is_written_in(method, _LAYERS_OF_TORCH)
    held = receiver.__dict__
    if name in held or _of_class(type(receiver), name) is not _ABSENT:
        return False
    kind = type(held["_modules"].get(name))
    return (
        kind in {nn.ModuleList, nn.Sequential}
        and _is_quiet(held["_modules"][name])
        and _iterates_as_torch(kind)
        and is_written_in(kind.__getitem__, _LAYERS_OF_TORCH)
    )


_ABSENT, _OF_LIBRARY = object(), object()


def _of_class(kind: type, name: str) -> Any:
    """Return what a class has under a name: `_ABSENT` for nothing, `_OF_LIBRARY` for what a library has there."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return _OF_LIBRARY if _is_library_class(base) else base.__dict__[name]
    return _ABSENT


def _is_constant(value: Any) -> bool:
    """Return whether a value is what it is, or a tuple of such."""
    kind = type(value)
    return (
        kind in _CONSTANTS
        or (kind in {tuple, torch.Size} and all(map(_is_constant, value)))
        or _is_member(value)
    )


def _is_member(value: Any) -> bool:
    """Return whether a value is a member of an enumeration, which compares and hashes as Python has it."""
    kind = type(value)
    if not isinstance(kind, EnumMeta):
        return False
    own = [base for base in kind.__mro__ if base.__module__ not in {"builtins", "enum"}]
    return not any(name in base.__dict__ for base in own for name in _OF_COMPARISONS)


_OF_COMPARISONS = (
    "__eq__",
    "__ne__",
    "__hash__",
    "__bool__",
    "__getattribute__",
    "__getattr__",
    "__len__",
    "__contains__",
)


_CONTAINERS_OF_CONSTANTS = frozenset({dict, list})


def _holds_constants(value: Any) -> bool:
    """Return whether a value is a list or dict of constants. The program may change it, so it is looked at behind."""
    if type(value) is dict:
        value = [*value, *value.values()]
    return type(value) is list and all(map(_is_constant, cast("list[Any]", value)))


def _answers(code: CodeType, namespace: dict[str, Any], receiver: Any) -> tuple[bool | None, ...]:
    """Return what the conditions in a method are found to be; None for those that are not known."""
    return tuple([_answer(one, namespace, receiver) for one in conditions_in(code)])


def _answer(condition: Condition, namespace: dict[str, Any], receiver: Any) -> bool | None:
    if condition.is_call:
        function = _resolved(namespace, condition.names, with_math=False)
        return function() if function in _OF_COMPILERS else None
    if receiver is None:
        return None
    value = _found_in(receiver, condition.names[0])
    if value is _ABSENT and condition.has_default:
        value = condition.default
    if type(value) in _CONSTANTS:
        return value is None if condition.for_none else bool(value)
    return False if condition.for_none and isinstance(value, (torch.Tensor, nn.Module)) else None


_OF_COMPILERS: tuple[Any, ...] = (vars(torch.jit)["is_scripting"], vars(torch.jit)["is_tracing"])
"""Functions that tell who else runs code, and are asked in each trace."""
_FURTHER = (*_OF_COMPILERS, assert_function)
"""Functions of torch that may be called, besides those that compute."""


def _found_in(module: nn.Module, name: str) -> Any:
    """Return what Python finds as an attribute of a module, where that runs nothing; else something that is neither.

    Returns:
        The value, `_ABSENT` where there is none, and `_OF_LIBRARY` where it is not known.
    """
    held = module.__dict__
    value = _of_class(type(module), name)
    if value is not _ABSENT:
        return held.get(name, value) if type(value) in _CONSTANTS else _OF_LIBRARY
    if name in held:
        return held[name]
    for table in ("_parameters", "_buffers", "_modules"):
        if name in held[table]:
            return held[table][name]
    return _ABSENT


def _is_absent(module: nn.Module, name: str) -> bool:
    """Return whether a module has no attribute of a name."""
    return _found_in(module, name) is _ABSENT


def _holds_value(module: nn.Module, name: str) -> bool:
    return _is_harmless(module, name, may_be_module=False) or _found_in(module, name) is None


def _is_harmless(module: nn.Module, name: str, *, may_be_module: bool) -> bool:
    """Return whether what Python finds as an attribute of a module is a constant, or is heard of; nothing is run."""
    held = module.__dict__
    name, _, inner = name.partition(".")
    value = _of_class(type(module), name)
    if inner:
        owner = None if value is not _ABSENT or name in held else held["_modules"].get(name)
        if owner is None or inner == "training":  # Whose flag it reads is not told.
            return False
        return _is_quiet(owner) and _is_harmless(owner, inner, may_be_module=may_be_module)
    if value is not _ABSENT:
        return _is_constant(value) and _is_constant(held.get(name))
    if name in held:
        return _is_constant(held[name]) or _holds_constants(held[name])
    for table in ("_parameters", "_buffers"):
        if name in held[table]:
            return type(held[table][name]) in PLAIN
    if name not in held["_modules"]:
        return False
    found = held["_modules"][name]
    return found is None or (may_be_module and _is_quiet(found))


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

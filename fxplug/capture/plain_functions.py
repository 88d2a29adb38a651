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
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional
from torch import nn

from fxplug.capture.containers import PLAIN, is_of_library
from fxplug.capture.hazards import FILE_OF_CONTAINERS, scan_of
from fxplug.capture.live_code import Condition, conditions_in, live_code, without_errors
from fxplug.capture.plain_code import (
    ATTRIBUTES_OF_TENSORS,
    OF_CONTAINERS,
    Reads,
    reads_of,
    reads_of_function,
    reads_of_plain_method,
)
from fxplug.capture.plain_contexts import catches_errors, inside_of_contexts, is_context_as_written
from fxplug.capture.plain_holdings import (
    ABSENT,
    CONSTANTS,
    CONTAINERS,
    OF_LIBRARY,
    found_in,
    gives_modules,
    holds_constants,
    holds_module,
    holds_value,
    in_class,
    is_absent,
    is_constant,
    is_harmless,
    is_layer_of_torch,
    is_library_class,
    is_member,
    is_of_torch,
    is_quiet,
    is_written_in,
    iterates_as_torch,
    method_of_layer,
)
from fxplug.capture.plain_objects import functions_of_plain_class, is_plain_class
from fxplug.capture.world import world_found_by, world_kept_by
from fxplug.semantics.effects import method_computes
from fxplug.semantics.internals import MODULES_OF_OPERATORS, assert_function
from fxplug.semantics.kinds import TENSOR_METHODS, TENSOR_NAMES
from fxplug.semantics.libraries import what_does

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = ["PlainPart", "function_may_stay", "holds_the_same", "layout_of", "method_may_stay", "plain_parts"]


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
    of_values: frozenset[str]
    """Names of methods and attributes of values that it calls and reads."""
    handles_modules: bool
    """Whether modules may be among these values."""
    hangs_on_inner: bool
    """Whether it hangs on what a module inside of the one that is called holds, or is one of its methods."""
    compares: bool
    """Whether it asks of two values whether they are one object."""
    enters: bool
    """Whether it enters contexts of torch."""
    catches: bool
    """Whether it handles errors: it is plain as long as none is raised."""
    fields: frozenset[str]
    """Names of attributes of values that it reads and tensors do not have: objects of the program have to."""
    made: frozenset[type]
    """Plain classes of which it makes objects."""


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
    if receiver is not None and not is_quiet(receiver):
        return None
    found: list[PlainPart] = []
    waiting: list[tuple[Any, Any]] = [(getattr(function, "__func__", function), receiver)]
    seen: set[tuple[int, int]] = set()
    while waiting:
        decorated, owner = waiting.pop()
        current = inside_of_contexts(decorated, code_of)
        enters = current is not decorated
        if type(current) is not FunctionType or (enters and not with_methods):
            return None
        # Not its code: another function may have that, and other defaults, or a context around it.
        key = id(decorated), id(owner)
        if key in seen:
            continue
        seen.add(key)
        code = code_of(current)
        if code.co_filename == FILE_OF_CONTAINERS and iterates_as_torch(type(owner)) and not enters:
            continue  # It calls modules, and nothing else.
        options = {"with_methods": with_methods, "on_examples": on_examples}
        plain = _plain_part(current, code, owner, code_of, **options)
        if plain is None:
            return None
        part, more = plain
        waiting += more
        is_inner = owner is not None and owner is not receiver and owner is not _OBJECT
        if is_inner and "training" in {*part.values, *code.co_names}:
            return None  # Of which module it reads it is not told.
        if enters:
            part = part._replace(enters=True)
        found.append(part._replace(hangs_on_inner=True) if is_inner else part)
    return found


def _plain_part(
    function: FunctionType,
    code: CodeType,
    owner: Any,
    code_of: Callable[[FunctionType], CodeType],
    *,
    with_methods: bool,
    on_examples: bool,
) -> tuple[PlainPart, list[tuple[Any, Any]]] | None:
    """Return a plain function or method, and what it calls: functions, and of which objects these are methods."""
    of_object = owner is _OBJECT
    owner = None if of_object else owner
    # Where other code runs, too, that may change what the answers hang on.
    answers = _answers(code, function.__globals__, owner) if with_methods else ()
    live = live_code(code, answers)
    catches = on_examples and catches_errors(live)
    if catches:
        live = without_errors(live)
    is_method = owner is not None
    reads = (
        _reads_of_object(function, live) if of_object else _reads(live, owner, on_examples and not is_method)
    )
    if reads is None or not _may_read(function, owner, reads, with_methods, on_examples):
        return None
    inner: list[tuple[tuple[str, str], FunctionType, nn.Module]] = []
    called_inside: set[tuple[str, str]] = set()
    if reads.delegated:
        if owner is not None and on_examples:
            inner = _methods_of_inner(owner, reads.delegated)
            called_inside = {names for names in reads.delegated if _is_module_of_inner(owner, *names)}
        reads = reads.with_values(reads.delegated - {names for names, _, _ in inner} - called_inside)
    helpers = _found_by(function, live, reads, code_of, with_math=with_methods)
    if helpers is None or (helpers and not on_examples):
        return None
    made = frozenset([one for one in helpers if type(one) is type]) if helpers else frozenset[type]()
    if reads.goes_into_values and not (with_methods and _computes_with_values(reads, any_method=on_examples)):
        return None
    more = _called_by_name(helpers) + [(method, module) for _, method, module in inner]
    if any((reads.called, reads.tested, reads.used, reads.looped, reads.inherited, reads.optional)):
        methods = None if owner is None else _methods_called(owner, reads, on_examples=on_examples)
        if methods is None:
            return None
        methods += [_inherited(function, type(owner), name) for name in reads.inherited]
        more += [(method, owner) for method in methods]
    called = reads.called | reads.looped
    values = _without_properties(owner, reads.tested | reads.used) | reads.optional
    held = {} if owner is None else owner.__dict__
    containers = frozenset(name for name in values if type(held.get(name)) in CONTAINERS)
    if containers and not on_examples:
        return None
    handles_modules = on_examples and (reads.hands_on or (is_method and _handles_modules(owner, reads)))
    is_asked_inside = any(held for held, _ in reads.asked_for)
    hangs_on_inner = bool(called_inside) or is_asked_inside or any("." in name for name in reads.looped)
    of_values = reads.methods | reads.attributes, handles_modules, hangs_on_inner
    rest = is_method, containers, reads.needs_examples or bool(inner), *of_values
    asks = reads.compares, bool(reads.contexts), catches
    fields = _fields_read(function, reads)
    return PlainPart(function, code, called, values, live, answers, *rest, *asks, fields, made), more


def _fields_read(function: FunctionType, reads: Reads) -> frozenset[str]:
    """Return the names of attributes of values that a function reads, and neither tensors have nor what it finds."""
    if not reads.attributes:
        return reads.attributes
    fields = reads.attributes - ATTRIBUTES_OF_TENSORS - _ASKED_FOR - TENSOR_METHODS
    found = [chain[1:] for chain in reads.found if function.__globals__.get(chain[0]) is torch]
    return fields if _NAMES_OF_DTYPES.isdisjoint(found) else fields - _SAID_OF_DTYPES


def _called_by_name(found: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return functions, and those of plain classes, with the objects whose methods they are."""
    called: list[tuple[Any, Any]] = [(one, None) for one in found if type(one) is not type]
    for kind in found:
        if type(kind) is type:
            called += [(method, _OBJECT) for method in functions_of_plain_class(kind)]
    return called


_OBJECT: Any = object()
"""Stands for the object whose method a function of a plain class is."""


def _may_read(
    function: FunctionType,
    owner: Any,
    reads: Reads,
    with_methods: bool,  # noqa: FBT001 - as in `plain_parts`
    on_examples: bool,  # noqa: FBT001
) -> bool:
    """Return whether a function may do in its program what needs examples or other methods."""
    if not on_examples and (reads.needs_examples or reads.asked_for):
        return False
    if reads.contexts and not with_methods:
        return False
    return not reads.asked_for or _may_ask_for(function, owner, reads.asked_for)


def _methods_of_inner(
    owner: nn.Module, names: Iterable[tuple[str, str]]
) -> list[tuple[tuple[str, str], FunctionType, nn.Module]]:
    """Return the methods of modules inside of another one that are of classes of a program, as Python finds them.

    Args:
        owner: The other one.
        names: Of the modules in it, and of the methods.

    Returns:
        Those of the names that lead to such methods, with the method and its module.
    """
    found: list[tuple[tuple[str, str], FunctionType, nn.Module]] = []
    for held, name in names:
        module = owner.__dict__["_modules"].get(held) if holds_module(owner, held) else None
        method = None if module is None or name in module.__dict__ else in_class(type(module), name)
        if module is not None and type(method) is FunctionType:
            found.append(((held, name), method, module))
    return found


def _is_module_of_inner(owner: nn.Module, held: str, name: str) -> bool:
    """Return whether what a method of a module inside of another one looks like is a module, whose calls are heard."""
    return holds_module(owner, held) and holds_module(owner.__dict__["_modules"][held], name)


def _reads(code: CodeType, owner: Any, is_function: bool) -> Reads | None:  # noqa: FBT001 - as in `plain_parts`
    """Return what a function or method reads; None where it is no plain one."""
    if is_function:
        return reads_of_function(code)
    # What libraries do in their modules, such as captured ones, is known in other ways.
    kind = type(owner)
    is_known = owner is not None and is_library_class(kind) and not is_layer_of_torch(kind)
    return None if is_known else reads_of(code)


def _reads_of_object(function: FunctionType, code: CodeType) -> Reads | None:
    """Return what a method of a plain class reads; None where it is no plain one."""
    reads = reads_of_plain_method(code)
    if reads is None or not reads.inherited:
        return reads
    # What ``super()`` finds is a method of a plain class, too, or what all objects have.
    is_known = all(name == "__init__" or not name.startswith("__") for name in reads.inherited)
    is_found = is_known and function.__globals__.get("super", super) is super
    return reads._replace(inherited=frozenset()) if is_found else None


def _computes_with_values(reads: Reads, *, any_method: bool) -> bool:
    """Return whether a function does nothing with values but compute others, and read what a traced one records.

    Args:
        reads: What the function reads.
        any_method: Whether it may call any method: those of traced values are looked at when they were recorded.
    """
    attributes = reads.attributes - ATTRIBUTES_OF_TENSORS
    if any_method:  # Other attributes have to be those of objects that the program makes.
        return (attributes - _ASKED_FOR - TENSOR_METHODS).isdisjoint(TENSOR_NAMES)
    return not attributes and all(map(method_may_stay, reads.methods))


_ASKED_FOR = frozenset(
    {
        *("is_cpu", "is_cuda", "is_meta", "is_mps", "is_nested", "is_quantized", "is_sparse", "is_xpu"),
        *("itemsize", "nbytes", "requires_grad"),
    }
)
"""Attributes of tensors that are numbers or answers. What is recorded of them is looked at, as calls of methods are."""


def method_may_stay(name: str) -> bool:
    """Return whether a method of tensors computes, or does what an operator such as ``+=`` does."""
    return method_computes(name) or name in _WRITING


_WRITING = frozenset({"add_", "clamp_", "div_", "mul_", "relu_", "sigmoid_", "sub_", "tanh_"})
"""Methods that do what ``+=`` does."""


def layout_of(module: nn.Module) -> tuple[Any, ...]:
    """Return what is the same for modules that differ in nothing but in their values, and in what hides modules."""
    modules = module.__dict__["_modules"]
    return (type(module), *modules, *map(type, modules.values()))


def holds_the_same(module: nn.Module, parts: Collection[PlainPart]) -> bool:
    """Return whether functions that are plain for a module of the same layout are so for another one.

    Nothing of its own hides what they call, and the other values that they read are constants.
    """
    held = module.__dict__
    own, modules = held.get, held["_modules"]
    if any(part.hangs_on_inner for part in parts):
        return False  # They are looked at for each.
    for function, code, called, values, _, answers, is_method, containers, *_ in parts:
        if answers and _answers(code, function.__globals__, module if is_method else None) != answers:
            return False
        for name in called:
            if own(name.removesuffix("()")) is not None:
                return False
        for name in values:
            is_list = name in containers and holds_constants(held.get(name))
            is_known = is_list or name in modules or _holds_constant(held, name) or is_absent(module, name)
            if not (is_harmless(module, name, may_be_module=False) if "." in name else is_known):
                return False
    return True


def _holds_constant(held: dict[str, Any], name: str) -> bool:
    """Return whether a module with these attributes has a constant or a registered tensor under a name.

    One that has nothing there has what its class has, which is a constant if it is one for another module of the class.
    """
    if name in held:
        return is_constant(held[name])
    return type(held["_buffers"].get(name, held["_parameters"].get(name))) in PLAIN


# -- what a function finds

_quiet: dict[tuple[int, bool], tuple[weakref.ref[CodeType], tuple[Any, ...]]] = {}
"""Id of code, and whether ``math`` is as torch -> what of these it finds, if nothing of that is of a program."""


def _found_by(
    function: FunctionType,
    code: CodeType,
    reads: Reads,
    code_of: Callable[[FunctionType], CodeType],
    *,
    with_math: bool,
) -> list[Any] | None:
    """Return the functions and classes of the program that a function finds among globals.

    Args:
        function: The function, whose defaults have to be constants.
        code: Its own.
        reads: What it reads.
        code_of: As in `plain_parts`.
        with_math: Whether functions of ``math`` are as those of torch, where they are read off the module.

    Returns:
        These, and the plain classes of which it makes objects; None where it finds something else than functions, and
        those of torch that compute.
    """
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if any(type(value) not in CONSTANTS and type(value) is not torch.dtype for value in defaults):
        return None
    namespace = function.__globals__
    if reads.optional and "getattr" in namespace:
        return None
    if not all(_is_settled_class(namespace, chain) for chain in reads.classes):
        return None
    if not all(is_context_as_written(_value_at(namespace, chain)) for chain in reads.contexts):
        return None
    values = tuple([_resolved(namespace, chain, with_math=with_math) for chain in reads.found])
    key = id(code), with_math
    known = _quiet.get(key)
    if known is not None and len(known[1]) == len(values) and all(map(is_, known[1], values)):
        return []
    found = [
        (chain, value)
        for chain, value in zip(reads.found, values, strict=True)
        if not (function_may_stay(value) or what_does(value) in _COMPUTING)
    ]
    others = [value for _, value in found]
    for chain, value in found:
        # A class may only be called where it is found: its functions are methods of its objects then, and of no others.
        is_made = len(chain) == 1 and chain[0] not in reads.uncalled and is_plain_class(value)
        if not (is_made or _is_of_program(inside_of_contexts(value, code_of))):
            return None
    names = scan_of(code).names
    if any(True for _ in world_found_by(namespace, names)) or any(
        True for _ in world_kept_by(function, None, names)
    ):
        return None
    if not others:  # Those of a program would keep it, and its code.
        _quiet[key] = weakref.ref(code, lambda _, kept=_quiet: kept.pop(key, None)), values
    return others


_COMPUTING = frozenset({"computes", "draws in training", "drops in training"})


def _is_settled_class(namespace: dict[str, Any], chain: tuple[str, ...]) -> bool:
    """Return whether names lead to a class, and to ask whether something is of it runs nothing of a program."""
    value = _value_at(namespace, chain)
    is_layer = type(value) is type and is_layer_of_torch(value)
    return is_layer or any(value is one for one in _CLASSES) or is_plain_class(value)


def _value_at(namespace: dict[str, Any], chain: tuple[str, ...]) -> Any:
    """Return what names lead to, or what stands under a single one, whatever it is; None if that is nothing."""
    first, *others = chain
    if others:
        return _resolved(namespace, chain, with_math=False)
    return namespace.get(first, vars(builtins).get(first))


_CLASSES = (list, tuple, dict, int, float, bool, str, torch.Tensor)


def _is_of_program(value: Any) -> bool:
    """Return whether something is a function whose code may be looked at, and has no attributes to be called."""
    return type(value) is FunctionType and not is_of_library(value.__module__) and not value.__dict__


def _resolved(namespace: dict[str, Any], chain: tuple[str, ...], *, with_math: bool) -> Any:
    """Return what names lead to: that of a module of torch, and others behind it; None where they lead elsewhere."""
    first, *others = chain
    value = namespace.get(first)
    if with_math and value is math and len(others) == 1:
        return vars(math).get(others[0])
    if not others and first in _BUILTINS:
        return None if first in namespace else _BUILTINS[first]
    if not others and is_plain_class(value):
        return value
    is_single = type(value) in _FUNCTIONS and getattr(value, "__self__", None) is not math
    if not others and not (is_single or value is OrderedDict or type(value) in _NUMBERS):
        return None
    if isinstance(value, EnumMeta) and len(others) == 1:
        return value.__members__.get(others[0])
    for name in others:
        if type(value) is not ModuleType or not f"{value.__name__}.".startswith("torch."):
            return None
        value = vars(value).get(name)
    return value


_FUNCTIONS = frozenset({BuiltinFunctionType, FunctionType})
_NUMBERS = frozenset({bool, float, int})
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
        return value in _BUILTINS.values() or value is OrderedDict or value in _OF_DTYPES
    return kind in {int, float, bool, torch.dtype} or is_member(value)


def _computes_as_held(value: Any) -> bool:
    """Return whether something that a module holds is a function of torch that computes: torch hears of its calls."""
    is_function = type(value) is FunctionType or (
        type(value) is BuiltinFunctionType and value.__self__ is not builtins and value.__self__ is not math
    )
    return is_function and function_may_stay(value)


_FILES_OF_FUNCTIONS = (str(torch.nn.functional.__file__), str(torch.functional.__file__))


def _handles_modules(receiver: nn.Module, reads: Reads) -> bool:
    """Return whether a method does more with modules that its object holds than to call them one after the other."""
    modules = receiver.__dict__["_modules"]
    return any(modules.get(name) is not None for name in reads.used) or not all(
        gives_modules(receiver, name) for name in reads.looped
    )


def _methods_called(receiver: nn.Module, reads: Reads, *, on_examples: bool) -> list[Any] | None:
    """Return the methods that a function calls of its object; None where it finds something that leads to others."""
    methods = _found_methods(receiver, reads.called)
    if methods is None:
        return None
    for name in reads.looped:
        if not (gives_modules(receiver, name) or (on_examples and holds_module(receiver, name))):
            return None
    if not all(is_absent(receiver, name) or holds_value(receiver, name) for name in reads.optional):
        return None
    for name in (*reads.tested, *reads.used):
        may_be_module = name not in reads.used or (on_examples and "." not in name)
        if on_examples and (getter := _getter_of(receiver, name)) is not None:
            methods.append(getter)
        elif not is_harmless(receiver, name, may_be_module=may_be_module):
            return None
    return methods


def _getter_of(receiver: Any, name: str) -> FunctionType | None:
    """Return the function that runs where an attribute of an object is read, if it is a property of a program."""
    value = in_class(type(receiver), name)
    return value.fget if type(value) is property and type(value.fget) is FunctionType else None


def _without_properties(receiver: Any, names: frozenset[str]) -> frozenset[str]:
    """Return those of the names of an object under which its class has no property: whose getters are looked at."""
    return frozenset(name for name in names if _getter_of(receiver, name) is None)


def _may_ask_for(function: FunctionType, owner: Any, asked_for: Iterable[tuple[str, str]]) -> bool:
    """Return whether nothing of a program runs where a function asks with ``hasattr``.

    Args:
        function: The function.
        owner: The object whose method it is.
        asked_for: As in `Reads`.
    """
    if owner is None or function.__globals__.get("hasattr", hasattr) is not hasattr:
        return False
    for held, name in asked_for:
        if held and not holds_module(owner, held):
            return False
        module = owner.__dict__["_modules"][held] if held else owner
        value = in_class(type(module), name)
        if value is not ABSENT and not (type(value) is FunctionType or is_constant(value)):
            return False
    return True


def _found_methods(receiver: nn.Module, names: Iterable[str]) -> list[Any] | None:
    """Return the methods of an object among what is called of it: modules are heard of, and functions of torch.

    Returns:
        None where it is anything else.
    """
    held = receiver.__dict__
    modules = held["_modules"]
    methods: list[Any] = []
    for name in names:
        own, value = held.get(name), in_class(type(receiver), name)
        if own is not None:
            if value is not ABSENT or not _computes_as_held(own):
                return None
        elif value is not ABSENT:
            methods.append(method_of_layer(type(receiver), name) if value is OF_LIBRARY else value)
        elif (module := modules.get(name)) is not None and not is_quiet(module):
            return None
    return methods


def _inherited(function: FunctionType, owner: type, name: str) -> Any:
    """Return the method that ``super()`` finds in a function; None where it is none of a program, or of a layer."""
    try:
        own = next((cell.cell_contents for cell in function.__closure__ or ()), None)
    except ValueError:  # It has no value yet.
        return None
    kinds = owner.__mro__
    if function.__globals__.get("super", super) is not super or own not in kinds:
        return None
    behind = kinds[kinds.index(own) + 1 :]
    kind = next((kind for kind in behind if name in kind.__dict__), None)
    if kind is None:
        return None
    return method_of_layer(kind, name) if is_library_class(kind) else kind.__dict__[name]


def _answers(code: CodeType, namespace: dict[str, Any], receiver: Any) -> tuple[bool | None, ...]:
    """Return what the conditions in a method are found to be; None for those that are not known."""
    return tuple([_answer(one, namespace, receiver) for one in conditions_in(code)])


def _answer(condition: Condition, namespace: dict[str, Any], receiver: Any) -> bool | None:
    if condition.is_call:
        function = _resolved(namespace, condition.names, with_math=False)
        return function() if function in _OF_COMPILERS else None
    if receiver is None:
        return None
    value = found_in(receiver, condition.names[0])
    if value is ABSENT and condition.has_default:
        value = condition.default
    if type(value) in CONSTANTS:
        return value is None if condition.for_none else bool(value)
    return False if condition.for_none and isinstance(value, (torch.Tensor, nn.Module)) else None


_OF_COMPILERS: tuple[Any, ...] = (vars(torch.jit)["is_scripting"], vars(torch.jit)["is_tracing"])
"""Functions that tell who else runs code, and are asked in each trace."""
_OF_DTYPES = (torch.finfo, torch.iinfo)
"""What says of a dtype which numbers it has. It takes no traced value for one."""
_NAMES_OF_DTYPES = frozenset((kind.__name__,) for kind in _OF_DTYPES)
_SAID_OF_DTYPES = frozenset(name for kind in _OF_DTYPES for name in vars(kind) if not name.startswith("_"))
_FURTHER = (*_OF_COMPILERS, assert_function)
"""Functions of torch that may be called, besides those that compute."""

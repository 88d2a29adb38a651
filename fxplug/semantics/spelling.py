"""One way to write each call of an operator, among the functions, methods and operators that call it."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from fxplug.ir import Node
from fxplug.semantics.canonical import (
    COMMUTATIVE,
    CanonicalCall,
    canonical_form,
    canonical_name,
    has_old_order,
    takes_sizes,
)
from fxplug.semantics.internals import BOOLEAN_DISPATCHED, OpOverloadPacket, schema_of
from fxplug.semantics.normalization import ADDING_PRODUCTS, in_new_order, without_aliases

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Spelling", "bound_spelling", "is_python_operator", "mirrored", "usual_spelling"]

_MIRRORED: dict[Any, Any] = {
    operator.lt: operator.gt,
    operator.gt: operator.lt,
    operator.le: operator.ge,
    operator.ge: operator.le,
}
"""Comparisons -> what Python asks the second operand when the first one is a number."""


class Spelling(NamedTuple):
    """A call as a node has it."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def is_python_operator(op: str, target: Any) -> bool:
    """Return whether a call is that of an operator of Python, which asks its operands what to do."""
    if op != "call_function" or not isinstance(target, types.BuiltinFunctionType):
        return False
    return target is abs or getattr(operator, target.__name__, None) is target


def mirrored(target: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """Return what Python calls for ``2 + x`` with a tensor ``x``: the same on the tensor; None where it is another.

    Args:
        target: An operator of Python.
        args: A number and a tensor.
    """
    name = canonical_name("call_function", target)
    if name not in COMMUTATIVE and target not in _MIRRORED:
        return None
    return _MIRRORED.get(target, target), args[::-1]


def usual_spelling(op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Spelling | None:
    """Return a call of an operator on tensors as it is usually written; None where it is no such call.

    That is the function of torch, or of ``torch.nn.functional``, else the method; arguments that every form of the
    operator needs by position, the others by keyword, and defaults left out.

    Args:
        op: Opcode of the call, no module.
        target: Its target.
        args: Positional arguments; nodes stand for values that are not known. For methods and operators of Python, the
            first one is a tensor.
        kwargs: Keyword arguments.
    """
    if op == "call_method" and type(getattr(torch.Tensor, target, None)) is not types.MethodDescriptorType:
        return None
    name = canonical_name(op, target)
    if name is None or (op == "call_method" and takes_sizes(name) and _is_one_value(args[1:])):
        return None
    is_product = name.rstrip("_") in ADDING_PRODUCTS
    moved = in_new_order(name, args, kwargs) if op == "call_function" or not is_product else None
    if moved is not None:
        args, kwargs = moved
    if has_old_order(op, target, args):
        return None
    if isinstance(target, (str, types.BuiltinFunctionType)):
        kwargs = without_aliases(name, kwargs)
    call = canonical_form(op, target, args, kwargs)
    if call is None:
        return None
    holder = _holder_of(call.name)
    if holder is None:
        return None
    found = _spelt(call, *holder)
    # Whatever the rules above missed is another call.
    again = canonical_form(*found)
    return found if again is not None and again[:2] == call[:2] else None


def _is_one_value(sizes: tuple[Any, ...]) -> bool:
    """Return whether a method is given one value, which may be a size or all of them."""
    return len(sizes) == 1 and isinstance(sizes[0], Node)


@functools.lru_cache(maxsize=1024)
def _holder_of(name: str) -> tuple[str, Any] | None:
    """Return how the operator of a name is called: the opcode and the target."""
    for library in (torch, functional):
        function = getattr(library, name, None)
        if function is not None and canonical_name("call_function", function) == name:
            return "call_function", function
    is_method = type(getattr(torch.Tensor, name, None)) is types.MethodDescriptorType
    return ("call_method", name) if is_method else None


def _spelt(call: CanonicalCall, op: str, target: Any) -> Spelling:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for position, (name, value) in enumerate(call.arguments.items()):
        parameter = _parameter(call.name, name)
        if position == len(args) and (position == 0 or parameter.is_needed) and name in call.given:
            args.append(value)
        elif name in call.given and not _is_default(parameter, value):
            kwargs["input" if name == "self" else name] = value
    return Spelling(op, target, tuple(args), kwargs)


class _Parameter(NamedTuple):
    """What the forms of an operator say of one parameter."""

    is_needed: bool
    """Whether it has no default in any of them, and may be given by position in all."""
    has_default: bool
    """Whether it has the same default in all of them."""
    default: Any


@functools.lru_cache(maxsize=4096)
def _parameter(operator_name: str, name: str) -> _Parameter:
    packet = getattr(torch.ops.aten, operator_name)
    found: list[Any] = []
    if isinstance(packet, OpOverloadPacket):
        for overload in packet.overloads():
            found += [part for part in schema_of(getattr(packet, overload)).arguments if part.name == name]
    defaults = [part.default_value for part in found if part.has_default_value()]
    is_needed = not defaults and not any(part.kwarg_only for part in found)
    same = bool(defaults) and len(defaults) == len(found) and all(_same(defaults[0], one) for one in defaults)
    return _Parameter(is_needed, same, defaults[0] if same else None)


def _is_default(parameter: _Parameter, value: Any) -> bool:
    return parameter.has_default and _same(parameter.default, value)


def _same(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and type(first) in _PLAIN and first == second)


_PLAIN = frozenset({bool, int, float, str})


def bound_spelling(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, keep_defaults: bool
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of a function written in Python: needed ones by position, the others by keyword.

    Args:
        function: What is called, without a receiver.
        args: Positional arguments.
        kwargs: Keyword arguments.
        keep_defaults: Whether arguments stay that are what the function takes anyway.

    Returns:
        None when they do not fit, or some parameter takes any number of them.
    """
    dispatched = BOOLEAN_DISPATCHED.get(function) if getattr(type(function), "__hash__", None) else None
    try:
        signature = inspect.signature(function if dispatched is None else dispatched["if_true"])
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # No signature, or arguments that do not fit it.
        return None
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            return None
        if parameter.name not in bound:
            continue
        value = bound[parameter.name]
        is_needed = parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY
        if is_needed:
            positional.append(value)
        elif keep_defaults or not _same(parameter.default, value):
            named[parameter.name] = value
    return tuple(positional), named

"""Canonical forms of calls: `x + y`, `torch.add(x, y)` and `x.add(y)` call one operator with the same arguments.

The operators are those of ATen (https://docs.pytorch.org/docs/stable/torch.compiler_ir.html), whose schemas say what
their parameters are called and which defaults they have.
"""

from __future__ import annotations

import functools
import inspect
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from fxplug.ir import Node
from fxplug.semantics.effects import operator_name
from fxplug.semantics.internals import OpOverloadPacket, has_hooks, schema_of
from fxplug.semantics.normalization import ADDING, ADDING_PRODUCTS, normalize_operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "ACTIVATIONS",
    "COMMUTATIVE",
    "CanonicalCall",
    "canonical_call",
    "canonical_form",
    "canonical_name",
    "has_old_order",
    "repeats_defaults",
    "takes_sizes",
]

COMMUTATIVE = frozenset(
    [
        "add",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "eq",
        "logical_and",
        "logical_or",
        "logical_xor",
        "maximum",
        "minimum",
        "mul",
        "ne",
    ]
)
"""Names of operators whose first two arguments may change places."""

_PYTHON: dict[Any, str] = {
    operator.add: "add",
    operator.and_: "bitwise_and",
    operator.eq: "eq",
    operator.floordiv: "floor_divide",
    operator.ge: "ge",
    operator.gt: "gt",
    operator.iadd: "add_",
    operator.imul: "mul_",
    operator.inv: "bitwise_not",
    operator.invert: "bitwise_not",
    operator.isub: "sub_",
    operator.itruediv: "div_",
    operator.le: "le",
    operator.lt: "lt",
    operator.matmul: "matmul",
    operator.mod: "remainder",
    operator.mul: "mul",
    operator.ne: "ne",
    operator.neg: "neg",
    operator.or_: "bitwise_or",
    operator.pow: "pow",
    operator.sub: "sub",
    operator.truediv: "div",
    operator.xor: "bitwise_xor",
    abs: "abs",
}
"""Functions of Python -> the operator that tensors give them."""

_ALIASES = {
    "absolute": "abs",
    "absolute_": "abs_",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "divide_": "div_",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "multiply": "mul",
    "multiply_": "mul_",
    "negative": "neg",
    "negative_": "neg_",
    "not_equal": "ne",
    "subtract": "sub",
    "subtract_": "sub_",
    "true_divide": "div",
    "true_divide_": "div_",
}
"""Names under which torch offers an operator, too."""

_INPLACE = (
    "celu",
    "elu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "mish",
    "relu",
    "relu6",
    "selu",
    "silu",
)
_FUNCTIONS: dict[Any, str] = {
    **{getattr(functional, name): name for name in _INPLACE},
    functional.group_norm: "group_norm",
    functional.layer_norm: "layer_norm",
    functional.log_softmax: "log_softmax",
    functional.sigmoid: "sigmoid",
    functional.softmax: "softmax",
    functional.tanh: "tanh",
}
"""Functions of torch.nn.functional that are written in Python and do no more than the operator."""

_MODULES: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    nn.CELU: ("celu", ("alpha",)),
    nn.ELU: ("elu", ("alpha",)),
    nn.Flatten: ("flatten", ("start_dim", "end_dim")),
    nn.GELU: ("gelu", ("approximate",)),
    nn.Hardsigmoid: ("hardsigmoid", ()),
    nn.Hardswish: ("hardswish", ()),
    nn.Hardtanh: ("hardtanh", ("min_val", "max_val")),
    nn.LeakyReLU: ("leaky_relu", ("negative_slope",)),
    nn.Mish: ("mish", ()),
    nn.ReLU: ("relu", ()),
    nn.ReLU6: ("relu6", ()),
    nn.SELU: ("selu", ()),
    nn.SiLU: ("silu", ()),
    nn.Sigmoid: ("sigmoid", ()),
    nn.Tanh: ("tanh", ()),
}
"""Modules without parameters -> the operator that they call, and the attributes that they give it."""


ACTIVATIONS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    name: (kind, attributes) for kind, (name, attributes) in _MODULES.items() if kind is not nn.Flatten
}
"""Name of an activation -> its module, and the attributes that the module gives to the operator."""


class CanonicalCall(NamedTuple):
    """A call of an operator, in full."""

    name: str
    """Of the operator, without its library and overload."""
    arguments: Mapping[str, Any]
    """Parameter of its schema -> argument, with defaults filled in."""
    given: frozenset[str]
    """The parameters whose arguments were not filled in."""


def canonical_name(op: str, target: Any, module: Any = None) -> str | None:
    """Return the name of the operator that a call may be one of, None where it is one of none.

    Args:
        op: Opcode of the call.
        target: Its target.
        module: The module that it calls, where it calls one.
    """
    if op == "call_module":
        return _name_of_module(module)
    if op == "call_method":
        return _name_of_method(target)
    if op != "call_function" or getattr(type(target), "__hash__", None) is None:
        return None
    return _name_of_function(target)


def _name_of_module(module: Any) -> str | None:
    known = _MODULES.get(type(module))
    if known is None or has_hooks(module) or "forward" in vars(module):
        return None
    return f"{known[0]}_" if getattr(module, "inplace", False) else known[0]


@functools.lru_cache(maxsize=1024)
def _name_of_method(target: str) -> str | None:
    name = _ALIASES.get(target, target)
    schema = _first_schema(name)
    if schema is None or getattr(torch.Tensor, target, None) is None or not schema.arguments:
        return None
    # `mask.where(a, b)` has another order of arguments than the operator.
    return name if schema.arguments[0].name == "self" else None


def _name_of_function(target: Callable[..., Any]) -> str | None:
    name = _PYTHON.get(target) or _FUNCTIONS.get(target)
    if name is not None or not isinstance(target, _BUILTIN):
        return name
    return _name_of_builtin(target)


@functools.lru_cache(maxsize=1024)
def _name_of_builtin(target: Callable[..., Any]) -> str | None:
    name = operator_name(target)
    name = _ALIASES.get(name, name) if name is not None else None
    return name if name is not None and _first_schema(name) is not None else None


_BUILTIN = type(torch.add)


@functools.cache
def _first_schema(name: str) -> Any:
    packet = getattr(torch.ops.aten, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return None
    for overload in packet.overloads():
        schema = schema_of(getattr(packet, overload))
        if any("Tensor" in str(argument.type) for argument in schema.arguments):
            return schema
    return None


def canonical_call(node: Node, module: Any = None) -> CanonicalCall | None:
    """Return what a node calls, in full; None where it is no call of an operator, or its arguments fit none.

    Args:
        node: A node. What Python's operators do with it is told for tensors.
        module: The module that it calls, where it calls one.
    """
    return canonical_form(node.op, node.target, node.args, node.kwargs, module)


def canonical_form(
    op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], module: Any = None
) -> CanonicalCall | None:
    """Return a call in full (see `canonical_call`).

    Args:
        op: Its opcode.
        target: Its target.
        args: Positional arguments; nodes stand for values that are not known.
        kwargs: Keyword arguments.
        module: The module that it calls, where it calls one.
    """
    name = canonical_name(op, target, module)
    if name is None or has_old_order(op, target, args):
        return None
    named = dict(kwargs)
    defaults: frozenset[str] = frozenset()
    if op == "call_module":
        named |= {attribute: getattr(module, attribute) for attribute in _MODULES[type(module)][1]}
    elif op == "call_method":
        args = _with_lists(name, args)
    elif target in _FUNCTIONS:
        args, named = (), _by_name(target, args, named)
        defaults = frozenset(repeats_defaults(target, named))
        flag = named.pop("inplace", False)
        if not named or not isinstance(flag, bool) or named.get("dim", 0) is None:
            return None
        name = f"{name}_" if flag else name
    arguments = normalize_operator(name, args, named)
    if arguments is None:
        return None
    given = {"self" if key == "input" else key for key in named if key not in defaults}
    return CanonicalCall(name, arguments, frozenset((*list(arguments)[: len(args)], *given)))


def has_old_order(op: str, target: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a call has the order that torch deprecates: ``torch.add(x, 2, y)`` adds twice ``y``.

    To the schema of the operator, which has all its parameters in another order, it looks like any other call. Where
    the type of the first argument would tell, a call counts that may have it.
    """
    if len(args) < 3 or op == "call_module":
        return False
    name = canonical_name(op, target)
    if name is None:
        return False
    return name.rstrip("_") in ADDING if len(args) == 3 else name.rstrip("_") in {*ADDING, *ADDING_PRODUCTS}


def repeats_defaults(function: Any, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keywords of a call that may have been left out by whoever wrote it.

    The functions that torch writes in Python record all their arguments, so that a default is there like any other.

    Args:
        function: What is called.
        kwargs: Its keyword arguments.
    """
    if not inspect.isfunction(function) or str(function.__module__).partition(".")[0] != "torch":
        return
    parameters = inspect.signature(function).parameters
    for name, value in kwargs.items():
        default = parameters[name].default if name in parameters else inspect.Parameter.empty
        if type(default) is type(value) and default == value:
            yield name


def _by_name(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function written in Python by name, empty when they do not fit."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:
        return {}
    return {name: value for name, value in bound.items() if name != "_stacklevel"}


_TAKE_SIZES = frozenset(
    {
        "broadcast_to",
        "expand",
        "flip",
        "new_empty",
        "new_ones",
        "new_zeros",
        "permute",
        "repeat",
        "reshape",
        "resize_",
        "sum_to_size",
        "tile",
        "view",
    }
)
"""Methods that take sizes or dimensions one by one; ``x.amax(0, True)`` has a dimension and a flag."""


def takes_sizes(method: str) -> bool:
    """Return whether a method of tensors takes sizes or dimensions one by one, as well as in a tuple."""
    return method in _TAKE_SIZES


def _with_lists(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments in which sizes that a method was given one by one stand in a tuple, as the operator has them."""
    if name not in _TAKE_SIZES or len(args) < 2:
        return args
    if not all(type(size) is int or isinstance(size, Node) for size in args[1:]) or _is_whole_size(args[1]):
        return args
    return (args[0], tuple(args[1:]))


def _is_whole_size(value: Any) -> bool:
    if not isinstance(value, Node):
        return False
    if value.op == "call_method":
        return value.target == "size" and len(value.args) == 1 and not value.kwargs
    return value.target is getattr and len(value.args) > 1 and value.args[1] == "shape"

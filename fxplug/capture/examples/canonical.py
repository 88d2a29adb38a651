"""How a call that torch tells of is written in a graph: as the operator, method or attribute that a program writes."""

from __future__ import annotations

import operator
from functools import lru_cache
from types import MethodWrapperType
from typing import TYPE_CHECKING, Any

import torch
import torch.overrides

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Call", "canonical_call"]

Call = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""Opcode, target, positional and keyword arguments."""

_OPERATORS: dict[str, Any] = {
    # What Python's operators on tensors are heard as.
    "add": operator.add,
    "div": operator.truediv,
    **{name: getattr(operator, name) for name in ("eq", "ge", "gt", "le", "lt", "ne")},
    "matmul": operator.matmul,
    "mul": operator.mul,
    "neg": operator.neg,
    "sub": operator.sub,
    "true_divide": operator.truediv,
    **{
        f"__{name}__": getattr(operator, f"__{name}__")
        for name in [
            "add",
            "sub",
            "mul",
            "truediv",
            "floordiv",
            "mod",
            "pow",
            "matmul",
            "lshift",
            "rshift",
            "and",
            "or",
            "xor",
            "invert",
            "neg",
            "pos",
            "abs",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "getitem",
            "setitem",
            "delitem",
            "iadd",
            "isub",
            "imul",
            "itruediv",
            "ifloordiv",
            "imod",
            "ipow",
            "imatmul",
            "ilshift",
            "irshift",
            "iand",
            "ior",
            "ixor",
        ]
    },
}
_UNARY = frozenset({"neg", "__neg__", "__pos__", "__abs__", "__invert__"})
_REFLECTED: dict[str, Any] = {
    f"__r{name}__": getattr(operator, f"__{name}__")
    for name in [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "lshift",
        "rshift",
        "and",
        "or",
        "xor",
    ]
}
_SPOKEN: dict[Any, str] = {
    # Torch names some functions otherwise than the operators that they are.
    torch.Tensor.__pow__: "__pow__",
    torch.Tensor.__rpow__: "__rpow__",
    torch.Tensor.__ipow__: "__ipow__",
    torch.Tensor.__rtruediv__: "__rtruediv__",
    torch.Tensor.__rdiv__: "__rtruediv__",
}
_BUILTINS: dict[str, Any] = {
    "__bool__": operator.truth,
    "__contains__": operator.contains,
    "__complex__": complex,
    "__float__": float,
    "__format__": format,
    "__index__": operator.index,
    "__int__": int,
    "__len__": len,
}

_is_method = lru_cache(maxsize=4096)(torch.overrides.is_tensor_method_or_property)


@lru_cache(maxsize=4096)
def _form_of(function: Callable[..., Any]) -> tuple[str, Any]:
    """Return what kind of call a function of torch is, and its target."""
    if isinstance(function, MethodWrapperType):
        # The getter, setter or deleter of an attribute.
        attribute: Any = function.__self__
        return {"__get__": "get", "__set__": "set"}.get(function.__name__, "delete"), attribute.__name__
    name = _SPOKEN.get(function) or getattr(function, "__name__", "")
    # Torch leaves some methods out of those that it lists: the ones that make new tensors.
    is_method = _is_method(function) or getattr(torch.Tensor, name, None) is function
    if not is_method and function not in _SPOKEN:
        return "function", function
    if name in _REFLECTED:
        return "reflected", _REFLECTED[name]
    if name in _BUILTINS:
        return "function", _BUILTINS[name]
    if name in _OPERATORS:
        return ("unary" if name in _UNARY else "operator"), (_OPERATORS[name], name)
    return "method", name


def canonical_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return how a graph writes a call of `function`.

    Args:
        function: What torch says is called.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    form, target = _form_of(function)
    if form == "function":
        return "call_function", target, args, kwargs
    if form == "method":
        return "call_method", target, args, kwargs
    if form in {"operator", "unary"}:
        symbol, name = target
        count = 3 if name == "__setitem__" else 1 if form == "unary" else 2
        if kwargs or len(args) != count:
            return "call_method", name, args, kwargs
        return "call_function", symbol, args, kwargs
    if form == "reflected":
        return "call_function", target, args[::-1], kwargs
    if form == "get":
        return "call_function", getattr, (args[0], target), {}
    if form == "set":
        return "call_function", setattr, (args[0], target, *args[1:]), {}
    return "call_function", delattr, (args[0], target), {}

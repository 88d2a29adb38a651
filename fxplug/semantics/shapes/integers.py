"""Values of integers and flags among those of which only sizes are known: they are few, and are computed."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.semantics.shapes.abstract import ABSTRACT, UnknownShapeError, abstract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fxplug.semantics.shapes.abstract import Memory

__all__ = ["CREATING", "compute", "holds_tensors", "known_value"]

_MOST_ELEMENTS = 2**20
_NAMES = (
    "add bitwise_and bitwise_not bitwise_or chunk cumsum eq flatten floor_divide ge gt le logical_and logical_not "
    "logical_or lt mul ne ones_like permute reshape split squeeze stack sub t transpose tril triu unbind unsqueeze "
    "zeros_like"
)
_METHODS = frozenset(
    f"{_NAMES} bool contiguous dim expand expand_as float int long masked_fill numel repeat size to view".split()
)
CREATING: frozenset[Any] = frozenset({torch.arange, torch.full, torch.ones, torch.zeros})
"""Functions that make tensors of numbers."""
_OPERATORS = [
    "add",
    "and_",
    "eq",
    "floordiv",
    "ge",
    "getitem",
    "gt",
    "invert",
    "le",
    "lt",
    "mod",
    "mul",
    "ne",
    "neg",
    "or_",
    "sub",
]
_FUNCTIONS: frozenset[Any] = CREATING | {
    *(getattr(torch, name) for name in _NAMES.split()),
    *(getattr(operator, name) for name in _OPERATORS),
    torch.cat,
}
_ATTRIBUTES = frozenset({"device", "dtype", "ndim", "shape"})


def holds_tensors(values: Iterable[Any]) -> bool:
    """Return whether there is a tensor among values that was computed, also in lists, and none that was not."""
    found = False
    for value in values:
        if value.__class__ in ABSTRACT:
            return False
        if isinstance(value, (list, tuple)):
            parts = cast("Sequence[Any]", value)
            if any(one.__class__ in ABSTRACT for one in parts):
                return False
            found = found or any(isinstance(one, torch.Tensor) for one in parts)
        found = found or isinstance(value, torch.Tensor)
    return found


def compute(op: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a call gives, if it does nothing but compute.

    Args:
        op: That of its node.
        target: The function, or the name of the method.
        args: What it is given, none of it abstract.
        kwargs: The same by name.

    Raises:
        UnknownShapeError: It may do something else.
        Exception: What the call raises.
    """
    if "out" in kwargs:
        raise UnknownShapeError  # It would be written to.
    if target is getattr and args[1] in _ATTRIBUTES:
        return getattr(*args)
    if op == "call_method" and target in _METHODS:
        if target == "view" and any(isinstance(one, torch.dtype) for one in (*args, *kwargs.values())):
            raise UnknownShapeError  # It has the memory of another tensor.
        method: Callable[..., Any] = getattr(args[0], target)
        return method(*args[1:], **kwargs)
    if op == "call_function" and target in _FUNCTIONS:
        return target(*args, **kwargs)
    raise UnknownShapeError


def known_value(value: Any, dtype: torch.dtype, memory: Memory) -> Any:
    """Return what is known of a value: all of it where it is no tensor, or one of integers or flags.

    Args:
        value: An input, a weight, or what `compute` has returned.
        dtype: What all other tensors of the program have.
        memory: Whose memory it has, if it is another tensor.

    Raises:
        UnknownShapeError: It is a tensor of which nothing can be told.
    """
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        return tuple([known_value(one, dtype, memory) for one in cast("tuple[Any, ...]", value)])
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point() or value.is_complex():
        return abstract(value, dtype, memory)
    is_usual = type(value) is torch.Tensor and value.is_cpu and value.layout is torch.strided
    if not is_usual or value.is_quantized or value.is_inference() or not 0 < value.numel() <= _MOST_ELEMENTS:
        raise UnknownShapeError
    return value

"""What is read off tensors of which only the sizes are known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug.semantics.shapes.abstract import AbstractFlags, AbstractTensor
from fxplug.semantics.shapes.operands import place_of, require, tensor_of
from fxplug.semantics.shapes.views import exchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["checked", "converted", "count_of_dimensions", "count_of_elements", "read_attribute", "size"]


def read_attribute(x: Any, name: Any, dtype: torch.dtype) -> Any:
    """Return an attribute of a tensor.

    Args:
        x: The tensor.
        name: Of the attribute.
        dtype: What all tensors of the program have.
    """
    x = tensor_of(x)
    if name == "shape":
        return torch.Size(x.sizes)
    if name == "ndim":
        return len(x.sizes)
    if name == "dtype":
        return dtype
    if name == "device":
        return torch.device("cpu")
    require(name == "mT" and len(x.sizes) > 1)
    return exchanged(x, -2, -1)


_CONVERTING = {"cpu": torch.device("cpu"), "double": torch.float64, "float": torch.float32}


def converted(x: Any, name: str, args: Sequence[Any], dtype: torch.dtype) -> AbstractTensor:
    """Return what a method gives that converts a tensor, if that is nothing: the tensor itself.

    Args:
        x: The tensor.
        name: Of the method.
        args: What it is given.
        dtype: What all tensors of the program have.
    """
    wanted = _CONVERTING.get(name)
    if wanted is None:
        (wanted,) = args
        require(name in {"to", "type_as"})
    else:
        require(not args)
    is_same = wanted is dtype or wanted.__class__ is AbstractTensor
    require(is_same or (name != "type_as" and wanted in ("cpu", torch.device("cpu"))))
    return tensor_of(x)


def size(x: Any, /, dim: Any = None) -> Any:
    """Return all sizes, or one of them."""
    sizes = tensor_of(x).sizes
    return torch.Size(sizes) if dim is None else sizes[place_of(dim, len(sizes))]


def count_of_dimensions(x: Any) -> int:
    """Return how many dimensions there are."""
    return len(tensor_of(x).sizes)


def count_of_elements(x: Any) -> int:
    """Return how many elements there are."""
    return math.prod(tensor_of(x).sizes)


def _known(value: Any) -> bool:
    return value.__class__ not in {AbstractFlags, AbstractTensor} and not isinstance(value, torch.Tensor)


def checked(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check that is made of what is known: it raises its own error where it does not hold."""

    def apply(*values: Any) -> Any:
        require(all(map(_known, values)))
        return check(*values)

    return apply

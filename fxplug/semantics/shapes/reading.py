"""What is read off tensors of which only the sizes are known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import immutable_list
from fxplug.semantics.shapes.abstract import ABSTRACT, AbstractFlags, AbstractTensor
from fxplug.semantics.shapes.operands import new_tensor, place_of, require, tensor_of
from fxplug.semantics.shapes.views import exchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "checked",
    "converted",
    "count_of_dimensions",
    "count_of_elements",
    "named",
    "read_attribute",
    "size",
]


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


def converted(
    x: Any, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype
) -> AbstractTensor | AbstractFlags:
    """Return what a method gives that converts a tensor: the tensor itself, flags, or numbers of flags and integers.

    Args:
        x: The tensor.
        method: Its name.
        args: What it is given.
        kwargs: The same by name.
        dtype: What all tensors of the program have.
    """
    is_other = x.__class__ is not AbstractTensor and x.__class__ in ABSTRACT
    x = new_tensor(x.sizes) if is_other else tensor_of(x)
    wanted: dict[str, Any] = dict(kwargs)
    if (known := _CONVERTING.get(method)) is not None:
        require(not args and not kwargs)
        wanted = {"device" if method == "cpu" else "dtype": known}
    elif method == "type_as" or (args and args[0].__class__ is AbstractTensor):
        (other,) = args
        require(method in {"to", "type_as"} and other.__class__ is AbstractTensor and not kwargs)
        wanted = {"dtype": dtype}
    else:
        require(method == "to" and {"device", "dtype"}.issuperset(kwargs))
        if len(args) == 1 and isinstance(args[0], torch.dtype):
            require(not kwargs)
            wanted = {"dtype": args[0]}
        elif args:
            given: dict[str, Any] = dict(zip(("device", "dtype"), args, strict=len(args) > 1))
            require(given.keys().isdisjoint(kwargs))
            wanted.update(given)
        require(wanted)
    require(wanted.get("device", "cpu") in ("cpu", torch.device("cpu")))
    is_flags = wanted.get("dtype") is torch.bool
    require(is_flags or wanted.get("dtype", None if is_other else dtype) is dtype)
    return AbstractFlags(x.sizes) if is_flags else x


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


def named(value: Any) -> Any:
    """Return what a list is that a graph gives a name to: the list."""
    require(type(value) is immutable_list)
    return value


def _known(value: Any) -> bool:
    return value.__class__ not in ABSTRACT and not isinstance(value, torch.Tensor)


def checked(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return a check that is made of what is known: it raises its own error where it does not hold."""

    def apply(*values: Any) -> Any:
        require(all(map(_known, values)))
        return check(*values)

    return apply

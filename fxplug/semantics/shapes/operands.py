"""What shape functions ask of what they are given, and make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.semantics.shapes.abstract import AbstractTensor, Memory, Order, UnknownShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "base_of",
    "broadcast",
    "each_of",
    "given_sizes",
    "is_dense",
    "is_number",
    "is_positive",
    "new_tensor",
    "of_numbers",
    "order_like",
    "place_of",
    "places_of",
    "require",
    "sizes_of",
    "tensor_of",
    "view_of",
]


def require(condition: object) -> None:
    """Say that something is not known, if it is not so.

    Raises:
        UnknownShapeError: The condition does not hold.
    """
    if not condition:
        raise UnknownShapeError


def tensor_of(value: Any) -> AbstractTensor:
    """Return an operand that has to be an abstract tensor."""
    if value.__class__ is not AbstractTensor:
        raise UnknownShapeError
    return value


_NUMBERS = frozenset({int, float})
_LARGEST_NUMBER = 2**31


def is_number(value: Any) -> bool:
    """Return whether a value is a number that any float tensor may be computed with."""
    return type(value) in _NUMBERS and abs(value) < _LARGEST_NUMBER


def is_positive(value: Any) -> bool:
    """Return whether a value is a number that may be added to what is divided by."""
    return type(value) in _NUMBERS and 0 < value < _LARGEST_NUMBER


def sizes_of(weight: Any) -> tuple[int, ...]:
    """Return the sizes of a weight: an abstract tensor, or the sizes themselves."""
    if weight.__class__ is AbstractTensor:
        return weight.sizes
    require(weight.__class__ is torch.Size)
    return weight


def new_tensor(sizes: Sequence[int], order: Order = "unknown") -> AbstractTensor:
    """Return a tensor with memory of its own."""
    return AbstractTensor(tuple(sizes), order, "own")


def order_like(x: AbstractTensor) -> Order:
    """Return how a new tensor lies in memory that is laid out as another one is, if that is known."""
    return "unknown" if x.order in _UNTOLD else "contiguous"


_UNTOLD = frozenset({"unknown", "dense"})


def is_dense(x: AbstractTensor) -> bool:
    """Return whether there is nothing between the elements of a tensor, which lie in the order of its dimensions."""
    return x.order in {"contiguous", "dense"}


def view_of(
    x: AbstractTensor, sizes: Sequence[int], order: Order = "unknown", memory: Memory = "view"
) -> AbstractTensor:
    """Return what is known of a view of a tensor."""
    return AbstractTensor(tuple(sizes), order, "part" if x.memory == "part" else memory, base_of(x))


def base_of(x: AbstractTensor) -> AbstractTensor | None:
    """Return the value that has the memory of a tensor, if that is no input and no weight."""
    return x if x.memory == "own" else x.base


def place_of(dim: Any, count: int) -> int:
    """Return the number of a dimension from the front."""
    require(type(dim) is int and -count <= dim < count)
    return dim % count


def places_of(dims: Any, count: int) -> list[int]:
    """Return the numbers of several dimensions from the front, or of one."""
    found = [place_of(dim, count) for dim in (dims if isinstance(dims, (list, tuple)) else (dims,))]
    require(len(set(found)) == len(found))
    return found


def each_of(value: Any, count: int) -> tuple[int, ...]:
    """Return one integer for each of several dimensions, of which all may be given as one."""
    if value.__class__ is int and abs(value) < _LARGEST_NUMBER:
        return (value,) * count
    values: tuple[Any, ...] = value if value.__class__ is tuple else tuple(value)
    require(len(values) == count)
    for one in values:
        require(one.__class__ is int and abs(one) < _LARGEST_NUMBER)
    return values


def given_sizes(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """Return sizes that are given one by one, or all in one argument."""
    require(sizes)
    if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)):
        sizes = tuple(cast("Sequence[Any]", sizes[0]))
    for one in sizes:
        require(one.__class__ is int)
    return sizes


def broadcast(sizes: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes to which two tensors are broadcast."""
    if sizes == others:
        return sizes
    count = max(len(sizes), len(others))
    first, second = (1,) * (count - len(sizes)) + sizes, (1,) * (count - len(others)) + others
    require(all(1 in pair or pair[0] == pair[1] for pair in zip(first, second, strict=True)))
    return tuple(map(max, zip(first, second, strict=True)))


_PLAIN_NUMBERS = frozenset({int, float, bool, torch.Size, torch.dtype, torch.device, type(None)})


def of_numbers(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes with numbers, sizes, dtypes and devices, and refuses all else."""

    def apply(*values: Any, **options: Any) -> Any:
        require(_PLAIN_NUMBERS.issuperset(map(type, values)) and not options)
        return compute(*values)

    return apply

"""Shape functions of what joins tensors, repeats or picks their rows, and reduces them along dimensions."""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from fxplug.semantics.shapes.abstract import AbstractIndices, AbstractTensor
from fxplug.semantics.shapes.operands import (
    base_of,
    given_sizes,
    new_tensor,
    order_like,
    place_of,
    places_of,
    require,
    sizes_of,
    tensor_of,
)

__all__ = [
    "embedded",
    "joined",
    "looked_up",
    "norm",
    "of_indices",
    "outer_product",
    "place_of_extreme",
    "reduced",
    "repeated",
    "repeated_in_place",
    "rolled",
    "stacked",
    "summed_up",
    "varied",
]


_UNSAID = object()
"""Stands for what is not given where None means something."""


def joined(tensors: Any, dim: Any = 0) -> AbstractTensor:
    """Return what `torch.cat` gives."""
    parts = [tensor_of(one) for one in tensors]
    sizes = list(parts[0].sizes)
    place = place_of(dim, len(sizes))
    for part in parts:
        require(len(part.sizes) == len(sizes))
        require((*part.sizes[:place], *part.sizes[place + 1 :]) == (*sizes[:place], *sizes[place + 1 :]))
    sizes[place] = sum(part.sizes[place] for part in parts)
    return new_tensor(sizes, "unknown" if "unknown" in map(order_like, parts) else "contiguous")


def stacked(tensors: Any, dim: Any = 0) -> AbstractTensor:
    """Return what `torch.stack` gives."""
    parts = [tensor_of(one) for one in tensors]
    sizes = parts[0].sizes
    require(all(part.sizes == sizes for part in parts))
    place = place_of(dim, len(sizes) + 1)
    return new_tensor((*sizes[:place], len(parts), *sizes[place:]))


def reduced(x: Any, /, dim: Any = None, keepdim: Any = _UNSAID) -> AbstractTensor:
    """Return what is left where some dimensions, or all, are reduced to one value."""
    sizes = tensor_of(x).sizes
    # Those that reduce all are not told what to keep.
    require(keepdim is _UNSAID or (type(keepdim) is bool and dim is not None))
    places = range(len(sizes)) if dim is None else places_of(dim, len(sizes))
    require(dim is None or places)
    keepdim = keepdim is True
    kept = [
        1 if place in places else size for place, size in enumerate(sizes) if keepdim or place not in places
    ]
    return new_tensor(kept, x.order if x.order == "contiguous" else "unknown")


def extreme(x: Any, /, *dim: Any, keepdim: Any = _UNSAID) -> Any:
    """Return what `torch.max` and `torch.min` give: along a dimension also where the values are, which is not known."""
    if not dim:
        require(keepdim is _UNSAID)
        return reduced(x)
    (place,) = dim
    require(type(place) is int and len(tensor_of(x).sizes))
    found = reduced(x, place, keepdim)
    return found, AbstractIndices(found.sizes)


def place_of_extreme(x: Any, /, dim: Any = None, keepdim: Any = _UNSAID) -> AbstractIndices:
    """Return what `torch.argmax` and `torch.argmin` give."""
    require(dim is None or (type(dim) is int and len(tensor_of(x).sizes)))
    return AbstractIndices(reduced(x, dim, keepdim).sizes)


def summed_up(x: Any, /, dim: Any) -> AbstractTensor:
    """Return what `torch.cumsum` gives."""
    place_of(dim, len(tensor_of(x).sizes))
    return new_tensor(x.sizes, order_like(x))


def outer_product(x: Any, y: Any, /) -> AbstractTensor:
    """Return what `torch.outer` gives."""
    require(len(tensor_of(x).sizes) == len(tensor_of(y).sizes) == 1)
    return new_tensor((*x.sizes, *y.sizes))


def of_indices(equation: Any, /, first: Any, *others: Any) -> AbstractTensor:
    """Return what `torch.einsum` gives, of an equation in which each index stands in an operand once."""
    require(type(equation) is str)
    operands = (first, *others)
    given, arrow, wanted = equation.replace(" ", "").partition("->")
    parts = given.split(",")
    require(arrow and len(parts) == len(operands))
    sizes: dict[str, int] = {}
    for part, operand in zip(parts, operands, strict=True):
        require(len(set(part)) == len(part) == len(tensor_of(operand).sizes))
        for index, size in zip(part, operand.sizes, strict=True):
            require(index.isascii() and index.isalpha() and sizes.setdefault(index, size) == size)
    require(len(set(wanted)) == len(wanted) and sizes.keys() >= set(wanted))
    found = [sizes[index] for index in wanted]
    if others:
        return new_tensor(found)
    return AbstractTensor(tuple(found), "unknown", "part", base_of(first))  # It may be a view.


def varied(x: Any, /, dim: Any = None, unbiased: Any = True, keepdim: Any = _UNSAID) -> AbstractTensor:
    """Return what a variance or standard deviation gives."""
    found = reduced(x, dim, keepdim)
    # A variance of one value is one of none, of which torch warns.
    require(type(unbiased) is bool and math.prod(found.sizes) < math.prod(x.sizes))
    return found


def norm(x: Any, /, p: Any = 2, dim: Any = None, keepdim: Any = _UNSAID) -> AbstractTensor:
    """Return what a norm gives."""
    matrix = 2
    require(p in {1, 2} and (not isinstance(dim, (list, tuple)) or len(cast("list[Any]", dim)) <= matrix))
    return reduced(x, dim, keepdim)


def rolled(x: Any, /, shifts: Any, dims: Any = None) -> AbstractTensor:
    """Return what `torch.roll` gives."""
    sizes = tensor_of(x).sizes
    if dims is not None:
        shifts = (shifts,) if shifts.__class__ is int else tuple(shifts)
        require(shifts and len(places_of(dims, len(sizes))) == len(shifts))
        for one in shifts:
            require(one.__class__ is int)
    else:
        require(shifts.__class__ is int)
    return new_tensor(sizes)


def looked_up(indices: torch.Tensor, table: Any) -> AbstractTensor:
    """Return what looking up rows of a table gives.

    Args:
        indices: Integers, of any shape.
        table: The sizes of a table, or an abstract tensor.
    """
    count, *row = sizes_of(table)
    require(type(indices) is torch.Tensor and indices.dtype in {torch.int32, torch.int64})
    require(indices.numel() and int(indices.min()) >= 0 and int(indices.max()) < count)
    return new_tensor((*indices.shape, *row))


def embedded(input: Any, weight: Any, padding_idx: Any = None) -> AbstractTensor:
    """Return what `torch.nn.functional.embedding` gives."""
    matrix = 2
    require(len(tensor_of(weight).sizes) == matrix)
    require(padding_idx is None or (type(padding_idx) is int and 0 <= padding_idx < weight.sizes[0]))
    found = looked_up(input, weight)
    return new_tensor(found.sizes, "contiguous")


def repeated(x: Any, /, *sizes: Any) -> AbstractTensor:
    """Return what `repeat` gives."""
    old, counts = tensor_of(x).sizes, given_sizes(sizes)
    require(len(counts) >= len(old) and all(one > 0 for one in counts))
    old = (1,) * (len(counts) - len(old)) + old
    return new_tensor([size * count for size, count in zip(old, counts, strict=True)])


def repeated_in_place(x: Any, /, repeats: Any, dim: Any = None) -> AbstractTensor:
    """Return what `torch.repeat_interleave` gives where each element, or slice, is repeated as often as any other."""
    sizes = list(tensor_of(x).sizes)
    require(type(repeats) is int and repeats > 0 and sizes)
    if dim is None:
        return new_tensor([math.prod(sizes) * repeats])
    sizes[place_of(dim, len(sizes))] *= repeats
    return new_tensor(sizes)

"""Shape functions of what gives other views of the same elements."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, cast

import torch

from fxplug.ir import immutable_list
from fxplug.semantics.shapes.abstract import AbstractTensor, Memory, Order
from fxplug.semantics.shapes.joining import looked_up
from fxplug.semantics.shapes.operands import (
    base_of,
    broadcast,
    given_sizes,
    is_dense,
    is_number,
    new_tensor,
    order_like,
    place_of,
    places_of,
    require,
    tensor_of,
    view_of,
)
from fxplug.semantics.shapes.pointwise import in_place

__all__ = [
    "chunked",
    "exchanged",
    "expanded",
    "expanded_as",
    "flattened",
    "item",
    "made_contiguous",
    "permuted",
    "permuted_to",
    "reshaped",
    "reshaped_as",
    "reshaped_to",
    "split",
    "squeezed",
    "swapped",
    "transposed_matrix",
    "unbound",
    "unsqueezed",
    "viewed",
    "viewed_as",
    "written_at",
]


def _with_sizes(x: AbstractTensor, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of other dimensions for the same elements, of which one may be left open."""
    count, known = math.prod(x.sizes), math.prod(wanted)
    if -1 not in wanted:
        require(count == known and (not wanted or min(wanted) > 0))
        return wanted
    place = wanted.index(-1)
    others = (*wanted[:place], *wanted[place + 1 :])
    require(known < 0 and count % -known == 0 and (not others or min(others) > 0))
    return (*wanted[:place], count // -known, *wanted[place + 1 :])


def viewed(x: Any, /, *sizes: Any) -> AbstractTensor:
    """Return what `view` gives."""
    wanted = _with_sizes(tensor_of(x), given_sizes(sizes))
    require(is_dense(x) or _is_split(x.sizes, wanted))
    return view_of(x, wanted, x.order)


def _is_split(sizes: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Return whether dimensions are parted, and none are joined: a view may be so of whatever memory."""
    parts = iter(wanted)
    for size in sizes:
        count = 1
        while count < size:
            count *= next(parts)
        if count != size:
            return False
    return all(one == 1 for one in parts)


def reshaped(x: Any, /, *sizes: Any) -> AbstractTensor:
    """Return what the method `reshape` gives."""
    wanted = _with_sizes(tensor_of(x), given_sizes(sizes))
    return view_of(x, wanted, x.order if is_dense(x) else "unknown", "part")


def reshaped_to(x: Any, /, shape: Any) -> AbstractTensor:
    """Return what `torch.reshape` gives."""
    return reshaped(x, tuple(shape))


def viewed_as(x: Any, other: Any) -> AbstractTensor:
    """Return what `view_as` gives."""
    return viewed(x, tensor_of(other).sizes)


def reshaped_as(x: Any, other: Any) -> AbstractTensor:
    """Return what `reshape_as` gives."""
    return reshaped(x, tensor_of(other).sizes)


def flattened(x: Any, /, start_dim: Any = 0, end_dim: Any = -1) -> AbstractTensor:
    """Return what flattening some dimensions gives."""
    sizes = tensor_of(x).sizes
    first, last = place_of(start_dim, len(sizes)), place_of(end_dim, len(sizes))
    require(first <= last)
    if first == last:
        return x
    whole = math.prod(sizes[first : last + 1])
    order: Order = x.order if is_dense(x) else "unknown"
    return view_of(x, (*sizes[:first], whole, *sizes[last + 1 :]), order, "part")


def permuted(x: Any, /, *dims: Any) -> AbstractTensor:
    """Return what the method `permute` gives."""
    sizes = tensor_of(x).sizes
    places = places_of(given_sizes(dims), len(sizes))
    require(len(places) == len(sizes))
    return view_of(x, [sizes[place] for place in places])


def permuted_to(x: Any, /, dims: Any) -> AbstractTensor:
    """Return what `torch.permute` gives."""
    return permuted(x, tuple(dims))


def exchanged(x: Any, /, dim0: Any, dim1: Any) -> AbstractTensor:
    """Return what `torch.transpose` gives."""
    sizes = list(tensor_of(x).sizes)
    first, second = place_of(dim0, len(sizes)), place_of(dim1, len(sizes))
    sizes[first], sizes[second] = sizes[second], sizes[first]
    return view_of(x, sizes)


def swapped(x: Any, axis0: Any, axis1: Any, /) -> AbstractTensor:
    """Return what `torch.swapaxes` gives."""
    return exchanged(x, axis0, axis1)


def transposed_matrix(x: AbstractTensor) -> AbstractTensor:
    """Return what `t` gives."""
    matrix = 2
    require(len(x.sizes) == matrix)
    return exchanged(x, 0, 1)


def made_contiguous(x: Any) -> AbstractTensor:
    """Return what `contiguous` gives: the same tensor, or a copy."""
    x = tensor_of(x)
    if is_dense(x):
        return x
    # It may be the tensor itself, and of its class.
    memory: Memory = x.memory if x.memory in {"given", "weight"} else "part"
    return AbstractTensor(x.sizes, "dense" if 1 in x.sizes else "contiguous", memory, base_of(x))


def unsqueezed(x: Any, /, dim: Any) -> AbstractTensor:
    """Return what `torch.unsqueeze` gives."""
    sizes = list(tensor_of(x).sizes)
    sizes.insert(place_of(dim, len(sizes) + 1), 1)
    return view_of(x, sizes, x.order)


def squeezed(x: Any, /, dim: Any = "all") -> AbstractTensor:
    """Return what `torch.squeeze` gives."""
    sizes = tensor_of(x).sizes
    places = range(len(sizes)) if dim == "all" else (place_of(dim, len(sizes)),)
    kept = [size for place, size in enumerate(sizes) if size > 1 or place not in places]
    return view_of(x, kept, x.order)


def expanded(x: Any, /, *sizes: Any) -> AbstractTensor:
    """Return what `expand` gives."""
    old, wanted = tensor_of(x).sizes, list(given_sizes(sizes))
    added = len(wanted) - len(old)
    require(added >= 0 and all(one > 0 for one in wanted[:added]))
    for number, size in enumerate(old):
        one = wanted[added + number]
        require(one in (-1, size) or (size == 1 and one > 0))
        wanted[added + number] = size if one == -1 else one
    return view_of(x, wanted, "unknown", "part")


def expanded_as(x: Any, other: Any) -> AbstractTensor:
    """Return what `expand_as` gives."""
    return expanded(x, tensor_of(other).sizes)


def chunked(x: Any, /, chunks: Any, dim: Any = 0) -> tuple[AbstractTensor, ...]:
    """Return what `torch.chunk` gives."""
    sizes = tensor_of(x).sizes
    require(type(chunks) is int and chunks > 0)
    return split(x, -(-sizes[place_of(dim, len(sizes))] // chunks), dim)


def split(x: Any, split_size: Any, /, dim: Any = 0) -> tuple[AbstractTensor, ...]:
    """Return what `torch.split` gives."""
    sizes = list(tensor_of(x).sizes)
    place = place_of(dim, len(sizes))
    whole = sizes[place]
    if type(split_size) is int:
        require(split_size > 0)
        parts = [min(split_size, whole - begin) for begin in range(0, whole, split_size)]
    else:
        parts = [*split_size]
        require(all(type(one) is int and one > 0 for one in parts) and sum(parts) == whole)
    order = _part_out(x)
    return tuple([view_of(x, (*sizes[:place], part, *sizes[place + 1 :]), order, "part") for part in parts])


def _part_out(x: AbstractTensor) -> Order:
    """Note that parts of a tensor are handed out, and return how they lie in memory."""
    base = base_of(x)
    if base is not None:
        base.is_parted = True
    return _of_part(x)


def _of_part(x: AbstractTensor) -> Order:
    """Return how a part of a tensor lies in memory."""
    return "unknown" if order_like(x) == "unknown" else "ordered"


def unbound(x: Any, /, dim: Any = 0) -> tuple[AbstractTensor, ...]:
    """Return what `torch.unbind` gives."""
    sizes = tensor_of(x).sizes
    place = place_of(dim, len(sizes))
    left, order = (*sizes[:place], *sizes[place + 1 :]), _part_out(x)
    return tuple([view_of(x, left, order, "part") for _ in range(sizes[place])])


def written_at(x: Any, key: Any, value: Any, /) -> AbstractTensor:
    """Return a tensor that a number, or another tensor, was written to at an index."""
    part = item(in_place(x), key)
    require(part.memory == "view")
    if not is_number(value):
        # Of the same memory it may be another part, which torch refuses.
        require(base_of(tensor_of(value)) is not base_of(x))
        require(broadcast(part.sizes, value.sizes) == part.sizes)
    return x


_TAKING = frozenset({int, immutable_list, list, slice})


_PARTED = frozenset({tuple, list, torch.Size})


def item(x: Any, key: Any) -> Any:
    """Return what an index gives."""
    if x.__class__ is not AbstractTensor:
        require((type(x) in _PARTED and type(key) in {int, slice}) or type(x) is OrderedDict)
        return x[key]
    if isinstance(key, torch.Tensor):
        require(key.dim())  # One without dimensions is an index as a number is.
        return looked_up(key, x)
    if key.__class__ is int:
        place_of(key, x.sizes[0])
        return view_of(x, x.sizes[1:], x.order)
    keys = key if type(key) is tuple else (key,)
    count = sum(type(one) in _TAKING for one in keys)
    open_ones = len(x.sizes) - count
    require(open_ones >= 0 and sum(one is Ellipsis for one in keys) <= 1)
    if all(one is not Ellipsis for one in keys):
        keys = (*keys, Ellipsis)
    sizes: list[int] = []
    place = 0
    for one in keys:
        if one is None:
            sizes.append(1)
        elif one is Ellipsis:
            sizes += x.sizes[place : place + open_ones]
            place += open_ones
        else:
            sizes += _part(x.sizes[place], one)
            place += 1
    if lists := [one for one in keys if isinstance(one, list)]:
        # Several are taken together, and one makes a copy.
        require(len(lists) == 1 and all(type(one) is slice or one in (lists[0], Ellipsis) for one in keys))
        return new_tensor(sizes)
    if 1 in sizes and any(type(one) is slice and one.step not in {None, 1} for one in keys):
        return view_of(x, sizes)  # The stride of a dimension of size 1 may be larger than all others.
    is_first = type(key) is slice and key.step in {None, 1}
    return view_of(x, sizes, x.order if is_first else _of_part(x))


def _part(size: int, key: Any) -> list[int]:
    """Return the size that is left of a dimension, if it is."""
    if type(key) is int:
        place_of(key, size)
        return []
    if isinstance(key, list):
        places = [place_of(one, size) for one in cast("list[Any]", key)]
        require(places)
        return [len(places)]
    require(isinstance(key, slice))
    start, stop, step = key.start, key.stop, key.step
    require(
        all(one is None or type(one) is int for one in (start, stop, step)) and (step is None or step > 0)
    )
    left = len(range(*slice(start, stop, step).indices(size)))
    require(left)
    return [left]

"""Operators that pick, replace and order elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord
from fxplug_tensorrt.network import Conversion, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fxplug_tensorrt.network import Size

__all__ = ["records"]

aten = torch.ops.aten
_MOST = 3840  # What TensorRT's layer orders at most.


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


# -- by place


def _gather(build: Conversion, x: Value, dim: int, index: Value, **_: Any) -> Value:
    if not x.rank:
        return x
    axis = x.axis(dim)
    # PyTorch leaves out what stands behind the index in the other dimensions; TensorRT has equal sizes.
    for place in range(x.rank):
        if place != axis and x.sizes[place] != index.sizes[place]:
            x = build.part(x, place, 0, index.size(place))
    return build.gather(x, index, axis, "ELEMENT")


def _take_along(build: Conversion, x: Value, dim: int, index: Value) -> Value:
    if not x.rank:
        return x if not index.rank else x.reshape([1])
    return build.gather(x, index.reshape([1]) if not index.rank else index, x.axis(dim))


def _embedding(build: Conversion, weight: Value, indices: Value, *_: Any) -> Value:
    return build.gather(weight, indices, 0)


_SUM, _MEAN, _MAX = 0, 1, 2


def _embedding_bag(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,  # noqa: FBT001, FBT002
    mode: int = _SUM,
    sparse: bool = False,  # noqa: FBT001, FBT002
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,  # noqa: FBT001, FBT002
    padding_idx: int = -1,
) -> tuple[Value, None, None, None]:
    """Return a row for each bag, made of rows of the weight; as large as bags and indices multiplied."""
    if include_last_offset:
        offsets = build.part(offsets, 0, 0, offsets.known_size(0) - 1)
    members = _members(build, indices, offsets)
    if padding_idx >= 0:
        members = members & ~indices.to(torch.int64).equals(padding_idx).unsqueeze(0)
    rows = build.gather(weight, indices, 0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    count = build.cast(members, torch.int64).reduce("SUM", [1], keep=True)
    if mode == _MAX:
        found = build.select(members.unsqueeze(2), rows.unsqueeze(0), -math.inf).reduce("MAX", [1])
        return build.select(count > 0, found, 0.0), None, None, None
    found = build.matmul(members.to(rows.dtype), rows)
    if mode == _MEAN:
        found = found / count.maximum(1).to(rows.dtype)
    return found, None, None, None


def _members(build: Conversion, indices: Value, offsets: Value) -> Value:
    """Return, for each bag, which indices are in it: those from its offset on, and before the next one."""
    places = build.tensor(torch.arange(indices.known_size(0)).reshape(1, -1))
    starts = offsets.to(torch.int64).unsqueeze(1)
    begun = ~(places < starts)
    later = build.cast(begun, torch.int64).reduce(
        "SUM", [0], keep=True
    )  # How many bags have begun at each place.
    numbers = build.tensor(torch.arange(1, offsets.known_size(0) + 1).reshape(-1, 1))
    return later.equals(numbers)


def _take(build: Conversion, x: Value, index: Value) -> Value:
    flat = x.reshape([-1])
    return build.gather(flat, _counted(build, flat, index, 0), 0)


def _counted(build: Conversion, x: Value, index: Value, dim: int) -> Value:
    """Return places counted from the front."""
    places = index.to(torch.int64)
    size = x.size(dim)
    from_behind = places + (Value(build, size.output, torch.int64) if isinstance(size, Value) else size)
    return build.select(places < 0, from_behind, places)


def _indexed(build: Conversion, x: Value, indices: Sequence[Value | None]) -> tuple[list[int], list[Value]]:
    """Return the dimensions that are picked from, and the places."""
    given = [number for number, value in enumerate(indices) if value is not None]
    chosen = [value for value in indices if value is not None]
    if any(value.dtype in (torch.bool, torch.uint8) for value in chosen):
        raise build.fail("how many elements a mask picks is not known before it runs")
    if any(size < 0 for value in chosen for size in value.sizes) and len(chosen) > 1:
        raise build.fail("it picks by several tensors, and a size is left open")
    places = [_counted(build, x, value, number) for number, value in zip(given, chosen, strict=True)]
    return given, places


def _together(build: Conversion, places: Sequence[Value]) -> tuple[Value, tuple[int, ...]]:
    """Return places of several dimensions side by side, and the sizes of what they pick."""
    shape = torch.broadcast_shapes(*(value.sizes for value in places))
    wide = [build.expand(value, list(shape)).unsqueeze(len(shape)) for value in places]
    return build.concat(wide, len(shape)), tuple(shape)


def _index(build: Conversion, x: Value, indices: Sequence[Value | None]) -> Value:
    given, places = _indexed(build, x, indices)
    if len(places) == 1:
        return build.gather(x, places[0], given[0])
    order = [*given, *(dim for dim in range(x.rank) if dim not in given)]
    found, shape = _together(build, places)
    picked = build.gather(x.permute(order), found, 0, "ND")
    front = given[0]
    if given != list(range(front, given[-1] + 1)) or front == 0:
        return picked  # Those that do not stand together come first.
    rank = len(shape)
    behind = range(rank + front, rank + x.rank - len(given))
    return picked.permute([*range(rank, rank + front), *range(rank), *behind])


def _index_put(
    build: Conversion,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,  # noqa: FBT001, FBT002 - ATen's
) -> Value:
    if accumulate:
        raise build.fail("TensorRT does not add where it replaces")
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is torch.bool and values.rank == 0:
        mask = indices[0]
        mask = mask.unsqueeze(*range(mask.rank, x.rank))
        return build.select(mask, values.to(x.dtype), x)
    given, places = _indexed(build, x, indices)
    order = [*given, *(dim for dim in range(x.rank) if dim not in given)]
    if given != list(range(len(given))):
        raise build.fail("it replaces elements of dimensions that are not the first")
    found, shape = _together(build, places)
    wanted: list[Size] = [*shape, *(x.size(dim) for dim in order[len(given) :])]
    return build.scatter(x, found, build.expand(values.to(x.dtype), wanted), 0, "ND")


# -- replaced


def _scatter(build: Conversion, x: Value, dim: int, index: Value, source: Any, **_: Any) -> Value:
    if not x.rank:
        raise build.fail("it replaces a single number")
    if isinstance(source, Value):
        updates = source.to(x.dtype)
        for place in range(index.rank):
            if updates.sizes[place] != index.sizes[place]:
                updates = build.part(updates, place, 0, index.size(place))
    else:
        updates = build.filled([index.size(place) for place in range(index.rank)], source, x.dtype)
    if x.dtype is torch.bool:
        made = build.scatter(x.to(torch.int32), index, updates.to(torch.int32), x.axis(dim))
        return made.to(torch.bool)
    return build.scatter(x, index, updates, x.axis(dim))


def _placed(build: Conversion, x: Value, axis: int, places: Value, source: Value) -> Value:
    """Return a value whose slices at these places are replaced."""
    rank = source.rank
    shape = [1] * axis + [-1] + [1] * (rank - axis - 1)
    sizes = [source.size(dim) for dim in range(rank)]
    return _scatter(build, x, axis, build.expand(places.reshape(shape), sizes), source)


def _select_scatter(build: Conversion, x: Value, source: Value, dim: int, index: int) -> Value:
    axis = x.axis(dim)
    place = build.constant([index % x.known_size(axis)])
    return _placed(build, x, axis, place, source.unsqueeze(axis))


def _slice_scatter(
    build: Conversion,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    axis = x.axis(dim)
    places = list(range(x.known_size(axis)))[slice(start, end, step)]
    if len(places) == x.known_size(axis):
        return source
    return _placed(build, x, axis, build.constant(places), source.to(x.dtype))


def _index_copy(build: Conversion, x: Value, dim: int, index: Value, source: Value) -> Value:
    return _placed(build, x, x.axis(dim), index, source)


def _index_fill(build: Conversion, x: Value, dim: int, index: Value, value: Any) -> Value:
    axis = x.axis(dim)
    sizes: list[Size] = [x.size(place) for place in range(x.rank)]
    sizes[axis] = index.size(0)
    return _placed(
        build, x, axis, _counted(build, x, index, axis), build.expand(build.cast(value, x.dtype), sizes)
    )


def _hits(build: Conversion, index: Value, count: int, axis: int) -> Value:
    """Return, for each place of a dimension (the one at `axis`), which elements of an index name it."""
    shape = [1] * axis + [count] + [1] * (index.rank - axis)
    numbers = build.tensor(torch.arange(count).reshape(shape))
    return index.to(torch.int64).unsqueeze(axis).equals(numbers)


def _scatter_add(build: Conversion, x: Value, dim: int, index: Value, source: Value) -> Value:
    """Add up what goes to each place: as large as index and dimension multiplied."""
    axis = x.axis(dim)
    _check_whole(build, x, axis, index, source)
    hits = _hits(build, index, x.known_size(axis), axis)
    return x + build.select(hits, source.unsqueeze(axis), 0).reduce("SUM", [axis + 1])


def _check_whole(build: Conversion, x: Value, axis: int, index: Value, source: Value) -> None:
    others = [place for place in range(x.rank) if place != axis]
    if not x.rank or any(index.sizes[place] != x.sizes[place] for place in others):
        raise build.fail("it adds to a part of its tensor")
    if index.sizes != source.sizes:
        raise build.fail("it adds a part of its source")


# What a reduction is called in TensorRT, and how two of its results become one.
_REDUCTIONS = {
    "sum": ("SUM", "SUM"),
    "mean": ("SUM", "SUM"),
    "prod": ("PROD", "PROD"),
    "amax": ("MAX", "MAX"),
    "amin": ("MIN", "MIN"),
}


def _scatter_reduce(
    build: Conversion,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """Reduce what goes to each place: as large as index and dimension multiplied."""
    axis = x.axis(dim)
    _check_whole(build, x, axis, index, source)
    hits = _hits(build, index, x.known_size(axis), axis)
    layer, joined = _REDUCTIONS[reduce]
    found = build.select(hits, source.unsqueeze(axis), _neutral(reduce, x.dtype)).reduce(layer, [axis + 1])
    count = build.cast(hits, torch.int64).reduce("SUM", [axis + 1])
    made = build.binary(joined, x, found) if include_self else found
    if reduce == "mean":
        parts = count + 1 if include_self else count.maximum(1)
        made = _shared(build, made, parts.to(x.dtype))
    return made if include_self else build.select(count > 0, made, x)


def _neutral(reduce: str, dtype: torch.dtype) -> float:
    """Return what changes nothing in a reduction."""
    limits = torch.iinfo(dtype) if not dtype.is_floating_point else None
    if reduce == "amax":
        return -math.inf if limits is None else limits.min
    if reduce == "amin":
        return math.inf if limits is None else limits.max
    return 1 if reduce == "prod" else 0


def _shared(build: Conversion, whole: Value, parts: Value) -> Value:
    return whole / parts if whole.is_floating else build.binary("FLOOR_DIV", whole, parts)


def _index_add(
    build: Conversion, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    axis = x.axis(dim)
    shape = [1] * axis + [-1] + [1] * (x.rank - axis - 1)
    sizes = [source.size(place) for place in range(source.rank)]
    places = build.expand(index.reshape(shape), sizes)
    return _scatter_add(build, x, dim, places, source if alpha == 1 else source * alpha)


# -- in order


def _topk(
    build: Conversion,
    x: Value,
    count: int,
    dim: int = -1,
    largest: bool = True,  # noqa: FBT001, FBT002
    ordered: bool = True,  # noqa: FBT001, FBT002
) -> tuple[Value, Value]:
    if not x.rank:
        return x, build.constant(0)
    _check_count(build, count)
    return build.top(x, count, x.axis(dim), largest=largest)


def _check_count(build: Conversion, count: int) -> None:
    if count > _MOST:
        raise build.fail(f"it orders {count} elements, and TensorRT at most {_MOST}")


def _sort(build: Conversion, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, Value]:  # noqa: FBT001, FBT002 - ATen's
    if not x.rank:
        return x, build.constant(0)
    return _topk(build, x, x.known_size(dim), dim, descending)


def _stable_sort(
    build: Conversion, x: Value, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Value, Value]:
    if stable:
        raise build.fail("TensorRT does not keep the order of equal elements")
    return _sort(build, x, dim, descending)


def _kth(build: Conversion, x: Value, count: int, dim: int = -1, keep: bool = False) -> tuple[Value, Value]:  # noqa: FBT001, FBT002 - ATen's
    if not x.rank:
        return x, build.constant(0)
    axis = x.axis(dim)
    _check_count(build, count)
    found = [build.part(part, axis, count - 1, 1) for part in build.top(x, count, axis, largest=False)]
    values, places = found if keep else [part.squeeze(axis) for part in found]
    return values, places


def _median(build: Conversion, x: Value, dim: int = -1, keep: bool = False) -> tuple[Value, Value]:  # noqa: FBT001, FBT002 - ATen's
    return _kth(build, x, (x.known_size(dim) + 1) // 2 if x.rank else 1, dim, keep)


def _median_of_all(build: Conversion, x: Value) -> Value:
    if any(size < 0 for size in x.sizes):
        raise build.fail("it has to know a size that is left open")
    return _kth(build, x.reshape([-1]), (math.prod(x.sizes) + 1) // 2)[0]


def _searchsorted(build: Conversion, borders: Value, values: Value, *, right: bool, is_int: bool) -> Value:
    """Count, for each value, the borders below it."""
    dtype = torch.result_type(*(torch.empty(1, dtype=part.dtype) for part in (borders, values)))
    edges, wide = borders.to(dtype), values.to(dtype).unsqueeze(values.rank)
    edges, wide = build.aligned(edges, wide)
    below = (edges < wide) | edges.equals(wide) if right else edges < wide
    return below.to(torch.int64).reduce("SUM", [-1]).to(torch.int32 if is_int else torch.int64)


def _bucketize(
    build: Conversion, values: Value, borders: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    return _searchsorted(build, borders, values, right=right, is_int=out_int32)


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.gather.default, _gather),
    (aten.index_select.default, _take_along),
    (aten.embedding.default, _embedding),
    (aten._embedding_bag.default, _embedding_bag),
    (aten._embedding_bag_forward_only.default, _embedding_bag),
    (aten.take.default, _take),
    (aten.index.Tensor, _index),
    (aten._unsafe_index.Tensor, _index),
    (aten.index_put.default, _index_put),
    (aten._unsafe_index_put.default, _index_put),
    (aten.scatter.src, _scatter),
    (aten.scatter.value, _scatter),
    (aten.select_scatter.default, _select_scatter),
    (aten.slice_scatter.default, _slice_scatter),
    (aten.index_copy.default, _index_copy),
    (aten.index_fill.int_Scalar, _index_fill),
    (aten.index_fill.int_Tensor, _index_fill),
    (aten.scatter_add.default, _scatter_add),
    (aten.scatter_reduce.two, _scatter_reduce),
    (aten.index_add.default, _index_add),
    (aten.topk.default, _topk),
    (aten.sort.default, _sort),
    (aten.sort.stable, _stable_sort),
    (aten.kthvalue.default, _kth),
    (aten.median.dim, _median),
    (aten.median.default, _median_of_all),
    (aten.bucketize.Tensor, _bucketize),
]

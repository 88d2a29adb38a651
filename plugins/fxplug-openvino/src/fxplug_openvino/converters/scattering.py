"""Operators that write into a copy of a tensor, or pick windows and diagonals of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_openvino.conversion import Conversion, ConverterRecord, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["cut_to", "records"]

aten = torch.ops.aten
_REDUCTIONS = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min", "mean": "mean"}


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def cut_to(build: Conversion, value: Value, like: Value, kept: int | None = None) -> Any:
    """Return the front of a value, as large as another one is; whole along the dimension `kept`."""
    made = value.output
    for axis in range(value.rank):
        size = like.like.shape[axis]
        if axis != kept and value.like.shape[axis] != size:
            # Not sliced: OpenVINO drops a slice in front of what picks elements.
            made = build.out(build.ops.gather(made, build.ints(list(range(int(size)))), build.constant(axis)))
    return made


def _places(build: Conversion, x: Value, dim: int, first: Any, last: Any, step: int) -> Any:
    size = x.like.shape[dim]
    if not all(bound is None or isinstance(bound, int) for bound in (first, last)) or not isinstance(
        size, int
    ):
        raise build.fail("it writes to places that are not known before it runs")
    return build.ints(list(range(size))[slice(first, last, step)])


def _slice_scatter(
    build: Conversion,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Any:
    axis = x.axis(dim)
    places = _places(build, x, axis, start, end, step)
    return build.ops.scatter_update(x.output, places, build.cast(source, x.dtype), build.constant(axis))


def _select_scatter(build: Conversion, x: Value, source: Value, dim: int, index: int) -> Any:
    axis = x.axis(dim)
    part = build.ops.unsqueeze(build.cast(source, x.dtype), build.ints([axis]))
    place = build.ints([index % int(x.like.shape[axis])])
    return build.ops.scatter_update(x.output, place, part, build.constant(axis))


def _index_copy(build: Conversion, x: Value, dim: int, index: Value, source: Value) -> Any:
    if not x.rank or not index.rank:
        raise build.fail("it writes single numbers")
    return build.ops.scatter_update(x.output, index.output, source.output, build.constant(x.axis(dim)))


def _index_fill(build: Conversion, x: Value, dim: int, index: Value, value: Any) -> Any:
    if not x.rank or not index.rank:
        raise build.fail("it writes single numbers")
    axis = build.constant(x.axis(dim))
    part = build.ops.gather(x.output, index.output, axis)
    filled = build.ops.broadcast(build.cast(value, x.dtype), build.ops.shape_of(part, "i64"))
    return build.ops.scatter_update(x.output, index.output, filled, axis)


def _index_add(build: Conversion, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1) -> Any:
    if not x.rank or not index.rank:
        raise build.fail("it writes single numbers")
    axis = x.axis(dim)
    part = source.output if alpha == 1 else build.ops.multiply(source.output, build.cast(alpha, x.dtype))
    shape = build.ints([-1 if number == axis else 1 for number in range(x.rank)])
    everywhere = build.ops.broadcast(
        build.ops.reshape(index.output, shape, False), build.shape_of(source), broadcast_spec="BIDIRECTIONAL"
    )
    return build.ops.scatter_elements_update(
        x.output, everywhere, part, build.constant(axis), reduction="sum", use_init_val=True
    )


def _scatter_add(build: Conversion, x: Value, dim: int, index: Value, source: Value) -> Any:
    return _scatter_reduce(build, x, dim, index, source, "sum")


def _scatter_reduce(
    build: Conversion,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    if not x.rank:
        raise build.fail("it writes a single number")
    return build.ops.scatter_elements_update(
        x.output,
        index.output,
        cut_to(build, source, index),
        build.constant(x.axis(dim)),
        reduction=_REDUCTIONS[reduce],
        use_init_val=include_self,
    )


def _index_put(
    build: Conversion,
    x: Value,
    indices: Sequence[Value | None],
    values: Value,
    accumulate: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    chosen = [value for value in indices if value is not None]
    if len(chosen) != len(indices) or any(value.dtype in (torch.bool, torch.uint8) for value in chosen):
        raise build.fail("it writes where a mask says, or leaves out a dimension")
    shape = torch.broadcast_shapes(*(value.like.shape for value in chosen))
    sizes = build.ints(list(shape))
    parts: list[Any] = []
    for number, value in enumerate(chosen):
        place = build.cast(value, torch.int64)
        size = build.constant(int(x.like.shape[number]))
        place = build.ops.select(build.ops.less(place, build.constant(0)), build.ops.add(place, size), place)
        spread = build.ops.broadcast(place, sizes, broadcast_spec="BIDIRECTIONAL")
        parts.append(build.ops.unsqueeze(spread, build.ints([-1])))
    wanted = build.ints([*shape, *x.like.shape[len(chosen) :]])
    spread = build.ops.broadcast(build.cast(values, x.dtype), wanted, broadcast_spec="BIDIRECTIONAL")
    return build.ops.scatter_nd_update(
        x.output, build.ops.concat(parts, -1), spread, "sum" if accumulate else "none"
    )


def _unfold(build: Conversion, x: Value, dim: int, size: int, step: int) -> Any:
    axis, length = x.axis(dim), x.like.shape[x.axis(dim)]
    starts = range(0, int(length) - size + 1, step)
    windows = torch.tensor([[start + inner for inner in range(size)] for start in starts])
    made = build.ops.gather(x.output, build.tensor(windows), build.constant(axis))
    order = [number for number in range(x.rank + 1) if number != axis + 1]
    return build.ops.transpose(made, build.ints([*order, axis + 1]))


def _im2col(
    build: Conversion,
    x: Value,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    ops = build.ops
    made = x.output if x.rank == 4 else ops.unsqueeze(x.output, build.ints([0]))
    around = build.ints([0, 0, *padding])
    made = ops.pad(made, around, around, "constant", build.constant(0, x.dtype))
    channels, counts = int(x.like.shape[-3]), list[int]()
    for axis in range(2):
        size = int(x.like.shape[axis - 2]) + 2 * padding[axis]
        counts.append((size - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1)
        places = [
            window * stride[axis] + inner * dilation[axis]
            for inner in range(kernel[axis])
            for window in range(counts[axis])
        ]
        made = ops.gather(made, build.ints(places), build.constant(axis + 2))
    apart = ops.reshape(made, build.ints([0, 0, kernel[0], counts[0], kernel[1], counts[1]]), True)
    sorted_out = ops.transpose(apart, build.ints([0, 1, 2, 4, 3, 5]))
    flat = ops.reshape(sorted_out, build.ints([0, channels * math.prod(kernel), math.prod(counts)]), True)
    return flat if x.rank == 4 else ops.squeeze(flat, build.ints([0]))


def _diagonal(build: Conversion, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    first, second = x.axis(dim1), x.axis(dim2)
    rows, columns = int(x.like.shape[first]), int(x.like.shape[second])
    others = [number for number in range(x.rank) if number not in (first, second)]
    moved = build.ops.transpose(x.output, build.ints([*others, first, second]))
    flat = build.ops.reshape(moved, build.ints([*[0] * len(others), -1]), True)
    places = [row * columns + row + offset for row in range(rows) if 0 <= row + offset < columns]
    return build.ops.gather(flat, build.ints(places), build.constant(len(others)))


def _take(build: Conversion, x: Value, index: Value) -> Any:
    flat = build.ops.reshape(x.output, build.ints([-1]), False)
    return build.ops.gather(flat, index.output, build.constant(0))


def _pixel_unshuffle(build: Conversion, x: Value, factor: int) -> Any:
    return build.ops.space_to_depth(x.output, "depth_first", factor)


def _channel_shuffle(build: Conversion, x: Value, groups: int) -> Any:
    channels, spatial = int(x.like.shape[1]), [int(size) for size in x.like.shape[2:]]
    apart = build.ops.reshape(x.output, build.ints([0, groups, channels // groups, math.prod(spatial)]), True)
    swapped = build.ops.transpose(apart, build.ints([0, 2, 1, 3]))
    return build.ops.reshape(swapped, build.ints([0, channels, *spatial]), True)


def _cdist(build: Conversion, x: Value, other: Value, p: float, mode: int | None = None) -> Any:
    if p != 2:
        raise build.fail(f"distances of order {p} are not supported")
    first = build.ops.unsqueeze(x.output, build.ints([-2]))
    second = build.ops.unsqueeze(other.output, build.ints([-3]))
    return build.ops.reduce_l2(build.ops.subtract(first, second), build.ints([-1]), False)


def _cross(build: Conversion, x: Value, other: Value, *, dim: int = -1) -> Any:
    axis = build.constant(x.axis(dim))

    def turned(value: Value, order: list[int]) -> Any:
        return build.ops.gather(value.output, build.ints(order), axis)

    front = build.ops.multiply(turned(x, [1, 2, 0]), turned(other, [2, 0, 1]))
    return build.ops.subtract(front, build.ops.multiply(turned(x, [2, 0, 1]), turned(other, [1, 2, 0])))


def _grid_sampler(
    build: Conversion,
    x: Value,
    grid: Value,
    mode: int,
    padding_mode: int,
    align_corners: bool,  # noqa: FBT001
) -> Any:
    return build.ops.grid_sample(
        x.output,
        grid.output,
        {
            "align_corners": bool(align_corners),
            "mode": ("bilinear", "nearest", "bicubic")[mode],
            "padding_mode": ("zeros", "border", "reflection")[padding_mode],
        },
    )


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.slice_scatter.default, _slice_scatter),
    (aten.select_scatter.default, _select_scatter),
    (aten.index_copy.default, _index_copy),
    (aten.index_fill.int_Scalar, _index_fill),
    (aten.index_add.default, _index_add),
    (aten.scatter_add.default, _scatter_add),
    (aten.scatter_reduce.two, _scatter_reduce),
    (aten.index_put.default, _index_put),
    (aten.unfold.default, _unfold),
    (aten.im2col.default, _im2col),
    (aten.diagonal.default, _diagonal),
    (aten.take.default, _take),
    (aten.pixel_unshuffle.default, _pixel_unshuffle),
    (aten.channel_shuffle.default, _channel_shuffle),
    (aten._cdist_forward.default, _cdist),
    (aten.linalg_cross.default, _cross),
    (aten.grid_sampler_2d.default, _grid_sampler),
]

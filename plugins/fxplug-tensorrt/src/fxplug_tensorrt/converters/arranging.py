"""Operators that arrange, join, take apart and make tensors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord
from fxplug_tensorrt.network import Conversion, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fxplug_tensorrt.network import Size

__all__ = ["records"]

aten = torch.ops.aten


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


# -- views


def _view(build: Conversion, x: Value, size: Sequence[Size], *_: Any) -> Value:
    return x.reshape(list(size))


def _permute(build: Conversion, x: Value, dims: Sequence[int]) -> Value:
    return x.permute(dims)


def _transpose(build: Conversion, x: Value, first: int, second: int) -> Value:
    order = list(range(x.rank))
    if order:
        one, other = x.axis(first), x.axis(second)
        order[one], order[other] = order[other], order[one]
    return x.permute(order)


def _t(build: Conversion, x: Value) -> Value:
    return x.permute(range(x.rank)[::-1])


def _squeeze(build: Conversion, x: Value, dims: Any = None) -> Value:
    given = range(x.rank) if dims is None else ([dims] if isinstance(dims, int) else dims)
    sizes = x.sizes
    if any(sizes[x.axis(dim)] < 0 for dim in given if x.rank):
        raise build.fail("it drops dimensions of size one, and a size is left open")
    return x.squeeze(*(dim for dim in given if x.rank and sizes[x.axis(dim)] == 1))


def _unsqueeze(build: Conversion, x: Value, dim: int) -> Value:
    return x.unsqueeze(dim % (x.rank + 1))


def _expand(build: Conversion, x: Value, size: Sequence[Any], implicit: bool = False) -> Value:  # noqa: FBT001, FBT002 - ATen's
    front = len(size) - x.rank
    wanted = [
        x.size(place - front) if isinstance(part, int) and part == -1 else part
        for place, part in enumerate(size)
    ]
    return build.expand(x, wanted)


def _diagonal(build: Conversion, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    first, second = x.axis(dim1), x.axis(dim2)
    rows, columns = x.known_size(first), x.known_size(second)
    count = min(rows + min(offset, 0), columns - max(offset, 0))
    order = [dim for dim in range(x.rank) if dim not in (first, second)] + [first, second]
    moved = x.permute(order)
    front: list[Size] = [moved.size(dim) for dim in range(x.rank - 2)]
    flat = moved.reshape([*front, rows * columns])
    start = max(-offset, 0) * columns + max(offset, 0)
    return build.part(flat, x.rank - 2, start, count, columns + 1)


def _unfold(build: Conversion, x: Value, dim: int, size: int, step: int) -> Value:
    axis = x.axis(dim)
    count = (x.known_size(axis) - size) // step + 1
    places = torch.arange(count)[:, None] * step + torch.arange(size)
    picked = build.gather(x, build.tensor(places), axis)
    order = [dim for dim in range(x.rank + 1) if dim != axis + 1] + [axis + 1]
    return picked.permute(order)


def _as_strided(
    build: Conversion, x: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    if any(part < 0 for part in x.sizes):
        raise build.fail("it reads memory by places, and a size is left open")
    if not isinstance(build.like, torch.Tensor) or storage_offset:
        raise build.fail("it reads memory that may be outside of the tensor")
    places = torch.zeros(1, dtype=torch.int64)
    for number, (count, step) in enumerate(zip(size, stride, strict=True)):
        row = torch.arange(count).reshape(-1, *[1] * (len(size) - number - 1)) * step
        places = places + row
    flat = x.reshape([-1])
    if int(places.max()) >= flat.known_size(0):
        raise build.fail("it reads memory that may be outside of the tensor")
    return build.gather(flat, build.tensor(places.reshape(tuple(size))), 0)


# -- parts


def _slice(
    build: Conversion, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    axis = x.axis(dim)
    size = x.size(axis)
    first, last = 0 if start is None else start, sys.maxsize if end is None else end
    if isinstance(size, int) and isinstance(first, int) and isinstance(last, int):
        begin, stop, _ = slice(first, last, step).indices(size)
        return build.part(x, axis, begin, len(range(begin, stop, step)), step)
    begin = _place(build, first, size)
    stop = _place(build, last, size)
    if isinstance(begin, int) and begin == 0 and stop is size and step == 1:
        return x
    count = _less(build, stop, begin)
    if step != 1:
        count = (
            build.binary("FLOOR_DIV", count + (step - 1), step)
            if isinstance(count, Value)
            else -(-count // step)
        )
    return build.part(x, axis, begin, count, step)


def _place(build: Conversion, place: Size, size: Size) -> Size:
    """Return a place counted from the front, inside of a dimension."""
    if isinstance(place, int) and place == sys.maxsize:
        return size
    if isinstance(place, int) and place == 0:
        return 0
    if isinstance(place, int) and place < 0:
        whole = size + place
        return whole.maximum(0) if isinstance(whole, Value) else max(whole, 0)
    if isinstance(place, Value):
        return place.minimum(size)
    return size.minimum(place) if isinstance(size, Value) else min(place, size)


def _less(build: Conversion, first: Size, second: Size) -> Size:
    if isinstance(second, int):
        return first - second if second else first
    return build.binary("SUB", first, second)


def _select(build: Conversion, x: Value, dim: int, index: Any) -> Value:
    axis = x.axis(dim)
    if isinstance(index, int) and index < 0:
        index = x.size(axis) + index
    place = build.constant(index) if isinstance(index, int) else index
    return build.gather(x, place, axis)


def _split(build: Conversion, x: Value, size: Any, dim: int = 0) -> tuple[Value, ...]:
    axis = x.axis(dim)
    whole = x.known_size(axis)
    lengths = size if isinstance(size, (list, tuple)) else [size] * (-(-whole // size))
    made: list[Value] = []
    start = 0
    for length in lengths:
        count = min(length, whole - start)
        made.append(build.part(x, axis, start, count))
        start += count
    return tuple(made)


def _unbind(build: Conversion, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = x.axis(dim)
    return tuple(build.gather(x, build.constant(number), axis) for number in range(x.known_size(axis)))


# -- several


def _cat(build: Conversion, tensors: Sequence[Value], dim: int = 0) -> Value:
    values = [build.cast(value, build.like.dtype) for value in tensors]
    return build.concat(values, values[0].axis(dim))


def _stack(build: Conversion, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = dim % (tensors[0].rank + 1)
    return build.concat([build.cast(value, build.like.dtype).unsqueeze(axis) for value in tensors], axis)


def _flip(build: Conversion, x: Value, dims: Sequence[int]) -> Value:
    starts: list[Size] = [0] * x.rank
    sizes: list[Size] = [x.size(dim) for dim in range(x.rank)]
    steps = [1] * x.rank
    for dim in dims:
        axis = x.axis(dim)
        starts[axis], steps[axis] = sizes[axis] + -1, -1
    return build.slice(x, starts, sizes, steps) if dims and x.rank else x


def _roll(build: Conversion, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    if not dims:
        sizes = [x.size(dim) for dim in range(x.rank)]
        return _roll(build, x.reshape([-1]), shifts, [0]).reshape(sizes)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = x.axis(dim)
        x = build.gather(x, _turned(build, x.size(axis), shift), axis)
    return x


def _turned(build: Conversion, size: Size, shift: int) -> Value:
    """Return the places that roll to the front, the second place, and so on."""
    if isinstance(size, int):
        return build.tensor((torch.arange(size) - shift) % size)
    places = _counted_up_to(build, size) - shift
    length = Value(build, size.output, torch.int64)
    return places - build.binary("FLOOR_DIV", places, length) * length


def _counted_up_to(build: Conversion, size: Size) -> Value:
    """Return 0, 1, 2 and so on."""
    ones = build.filled([size], 1, torch.int64)
    place = build.constant(0, torch.int32)
    kind = build.trt.CumulativeOperation.SUM
    return build.value(build.add("cumulative", ones.output, place.output, kind, True, False), torch.int64)


def _repeat(build: Conversion, x: Value, repeats: Sequence[Size]) -> Value:
    x = x.unsqueeze(*range(len(repeats) - x.rank))
    for axis, count in enumerate(repeats):
        if isinstance(count, int):
            x = build.concat([x] * count, axis)
            continue
        sizes = _sizes(x)
        wide = build.expand(x.unsqueeze(axis), [*sizes[:axis], count, *sizes[axis:]])
        x = wide.reshape([*sizes[:axis], count * sizes[axis], *sizes[axis + 1 :]])
    return x


def _repeat_interleave(build: Conversion, x: Value, repeats: int, dim: int | None = None, **_: Any) -> Value:
    if not isinstance(repeats, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise build.fail("how often it repeats each element is not known before it runs")
    if dim is None:
        return _repeat_interleave(build, x.reshape([-1]), repeats, 0)
    axis = x.axis(dim)
    sizes = [x.size(place) for place in range(x.rank)]
    wide = x.unsqueeze(axis + 1)
    made = build.concat([wide] * repeats, axis + 1)
    return made.reshape([*sizes[:axis], sizes[axis] * repeats, *sizes[axis + 1 :]])


# -- made


def _sizes(x: Value) -> list[Size]:
    return [x.size(dim) for dim in range(x.rank)]


def _filled_like(value: float) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, **_: Any) -> Value:
        return build.filled(_sizes(x), value, build.like.dtype)

    return convert


def _full_like(build: Conversion, x: Value, value: Any, **_: Any) -> Value:
    return _full(build, _sizes(x), value)


def _full(build: Conversion, size: Sequence[Size], value: Any, **_: Any) -> Value:
    if isinstance(value, Value):
        return build.expand(value.to(build.like.dtype), list(size))
    return build.filled(list(size), value, build.like.dtype)


def _made_of(value: float) -> Callable[..., Any]:
    def convert(build: Conversion, size: Sequence[Size], **_: Any) -> Value:
        return build.filled(list(size), value, build.like.dtype)

    return convert


def _new(value: float) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, size: Sequence[Size], **_: Any) -> Value:
        return build.filled(list(size), value, build.like.dtype)

    return convert


def _new_full(build: Conversion, x: Value, size: Sequence[Size], value: Any, **_: Any) -> Value:
    return _full(build, size, value)


def _filled_as(build: Conversion, x: Value, value: Any) -> Value:
    return _full(build, _sizes(x), value)


def _triangle(*, upper: bool) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, diagonal: int = 0) -> Value:
        ones = torch.ones(x.known_size(-2), x.known_size(-1), dtype=torch.bool)
        mask = ones.triu(diagonal) if upper else ones.tril(diagonal)
        if x.dtype is torch.bool:
            return x & build.aligned(x, build.tensor(mask))[1]
        return build.select(build.tensor(mask), x, 0)

    return convert


def _arange(build: Conversion, *args: Any, **_: Any) -> Value:
    """Count up to a size that is left open; where it is known, the numbers are too, and this is not called."""
    start, end, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}[len(args)]
    if isinstance(start, Value) or not isinstance(step, int):
        raise build.fail("it counts from a size that is left open, or by steps that are not whole")
    count = end - start if start else end
    count = build.binary("FLOOR_DIV", count + (step - 1), step) if step != 1 else count
    made = _counted_up_to(build, count)
    made = made * step if step != 1 else made
    return (made + start if start else made).to(build.like.dtype)


def _diag_embed(build: Conversion, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    if offset or (dim1 % (x.rank + 1), dim2 % (x.rank + 1)) != (x.rank - 1, x.rank):
        raise build.fail("it makes other matrices than those with a main diagonal at the end")
    eye = torch.eye(x.known_size(-1), dtype=torch.bool)
    return build.select(build.tensor(eye), x.unsqueeze(x.rank), 0)


def _trace(build: Conversion, x: Value) -> Value:
    return _diagonal(build, x).to(build.like.dtype).reduce("SUM", [0])


def _size(build: Conversion, x: Value, dim: int) -> Size:
    return x.size(dim)


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.view.default, _view),
    (aten._unsafe_view.default, _view),
    (aten._reshape_alias.default, _view),
    (aten.reshape.default, _view),
    (aten.permute.default, _permute),
    (aten.transpose.int, _transpose),
    (aten.t.default, _t),
    (aten.squeeze.default, _squeeze),
    (aten.squeeze.dim, _squeeze),
    (aten.squeeze.dims, _squeeze),
    (aten.unsqueeze.default, _unsqueeze),
    (aten.expand.default, _expand),
    (aten.diagonal.default, _diagonal),
    (aten.unfold.default, _unfold),
    (aten.as_strided.default, _as_strided),
    (aten.slice.Tensor, _slice),
    (aten.select.int, _select),
    (aten.split.Tensor, _split),
    (aten.unsafe_split.Tensor, _split),
    (aten.split_with_sizes.default, _split),
    (aten.unbind.int, _unbind),
    (aten.cat.default, _cat),
    (aten.stack.default, _stack),
    (aten.flip.default, _flip),
    (aten.roll.default, _roll),
    (aten.repeat.default, _repeat),
    (aten.repeat_interleave.self_int, _repeat_interleave),
    (aten.zeros_like.default, _filled_like(0)),
    (aten.ones_like.default, _filled_like(1)),
    (aten.full_like.default, _full_like),
    (aten.full.default, _full),
    (aten.zeros.default, _made_of(0)),
    (aten.ones.default, _made_of(1)),
    (aten.new_zeros.default, _new(0)),
    (aten.new_ones.default, _new(1)),
    (aten.new_full.default, _new_full),
    (aten.fill.Scalar, _filled_as),
    (aten.fill.Tensor, _filled_as),
    (aten.tril.default, _triangle(upper=False)),
    (aten.triu.default, _triangle(upper=True)),
    (aten.diag_embed.default, _diag_embed),
    (aten.trace.default, _trace),
    (aten.sym_size.int, _size),
    (aten.arange.default, _arange),
    (aten.arange.start, _arange),
    (aten.arange.start_step, _arange),
]

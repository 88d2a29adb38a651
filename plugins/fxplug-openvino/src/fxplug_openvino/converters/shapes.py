"""Operators that arrange, join, take apart and pick elements."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from fxplug_openvino.conversion import Conversion, ConverterRecord, Value
from fxplug_openvino.converters.scattering import cut_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["records"]

aten = torch.ops.aten
_END = 2**31 - 1


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def _view(build: Conversion, x: Value, size: Sequence[Any], *_: Any) -> Any:
    return build.ops.reshape(x.output, build.ints(list(size)), False)


def _permute(build: Conversion, x: Value, dims: Sequence[int]) -> Any:
    return build.ops.transpose(x.output, build.ints([x.axis(dim) for dim in dims]))


def _transpose(build: Conversion, x: Value, first: int, second: int) -> Any:
    order = list(range(x.rank))
    if x.rank:
        one, other = x.axis(first), x.axis(second)
        order[one], order[other] = order[other], order[one]
    return build.ops.transpose(x.output, build.ints(order)) if order else x.output


def _t(build: Conversion, x: Value) -> Any:
    return _transpose(build, x, 0, 1) if x.rank == 2 else x.output


def _squeeze(build: Conversion, x: Value, dims: Any = None) -> Any:
    given = range(x.rank) if dims is None else ([dims] if isinstance(dims, int) else dims)
    axes = [x.axis(dim) for dim in given if x.rank and x.like.shape[x.axis(dim)] == 1]
    return build.ops.squeeze(x.output, build.ints(axes)) if axes else x.output


def _unsqueeze(build: Conversion, x: Value, dim: int) -> Any:
    return build.ops.unsqueeze(x.output, build.ints([dim % (x.rank + 1)]))


def _expand(build: Conversion, x: Value, size: Sequence[Any], implicit: bool = False) -> Any:  # noqa: FBT001, FBT002 - ATen's
    wanted = [1 if isinstance(part, int) and part == -1 else part for part in size]
    if wanted and all(isinstance(part, int) and part == 1 for part in wanted) and len(wanted) == x.rank:
        return x.output
    return (
        build.ops.broadcast(x.output, build.ints(wanted), broadcast_spec="BIDIRECTIONAL")
        if wanted
        else x.output
    )


def _cat(build: Conversion, tensors: Sequence[Value], dim: int = 0) -> Any:
    parts = [value for value in tensors if not (value.rank == 1 and value.like.shape[0] == 0)]
    if not parts:
        return tensors[0].output
    return build.ops.concat([build.cast(value, build.like.dtype) for value in parts], parts[0].axis(dim))


def _stack(build: Conversion, tensors: Sequence[Value], dim: int = 0) -> Any:
    axis = build.ints([dim % (tensors[0].rank + 1)])
    parts = [build.ops.unsqueeze(build.cast(value, build.like.dtype), axis) for value in tensors]
    return build.ops.concat(parts, dim % (tensors[0].rank + 1))


def _slice(
    build: Conversion, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    axis = x.axis(dim)
    first = 0 if start is None else start
    last = _END if end is None or (isinstance(end, int) and end >= sys.maxsize) else end
    if isinstance(first, int) and first == 0 and isinstance(last, int) and last == _END and step == 1:
        return x.output
    return build.ops.slice(
        x.output, build.ints([first]), build.ints([last]), build.ints([step]), build.ints([axis])
    )


def _select(build: Conversion, x: Value, dim: int, index: Any) -> Any:
    place = (
        build.constant(index)
        if isinstance(index, int)
        else build.ops.squeeze(build.ints([index]), build.ints([0]))
    )
    return build.ops.gather(x.output, place, build.constant(x.axis(dim)))


def _split(build: Conversion, x: Value, size: Any, dim: int = 0) -> tuple[Any, ...]:
    lengths = [part.shape[x.axis(dim)] for part in build.like]
    made = build.ops.variadic_split(x.output, build.constant(x.axis(dim)), build.ints([*lengths[:-1], -1]))
    return tuple(made.output(number) for number in range(len(lengths)))


def _unbind(build: Conversion, x: Value, dim: int = 0) -> tuple[Any, ...]:
    axis = build.constant(x.axis(dim))
    return tuple(
        build.ops.gather(x.output, build.constant(number), axis) for number in range(len(build.like))
    )


def _flip(build: Conversion, x: Value, dims: Sequence[int]) -> Any:
    if not dims:
        return x.output
    axes = [x.axis(dim) for dim in dims]
    count = len(axes)
    return build.ops.slice(
        x.output,
        build.ints([-1] * count),
        build.ints([-_END] * count),
        build.ints([-1] * count),
        build.ints(axes),
    )


def _roll(build: Conversion, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        flat = build.ops.reshape(x.output, build.ints([-1]), False)
        rolled = build.ops.roll(flat, build.ints(list(shifts)), build.ints([0]))
        return build.ops.reshape(rolled, build.shape_of(x), False)
    return build.ops.roll(x.output, build.ints(list(shifts)), build.ints([x.axis(dim) for dim in dims]))


def _repeat(build: Conversion, x: Value, repeats: Sequence[Any]) -> Any:
    return build.ops.tile(x.output, build.ints(list(repeats))) if repeats else x.output


def _pad(build: Conversion, x: Value, pad: Sequence[int], value: float = 0.0) -> Any:
    return _padded(build, x, pad, "constant", build.constant(value, x.dtype))


def _padded(build: Conversion, x: Value, pad: Sequence[int], mode: str, value: Any = None) -> Any:
    begin, end = [0] * x.rank, [0] * x.rank
    for number in range(len(pad) // 2):
        begin[x.rank - 1 - number], end[x.rank - 1 - number] = pad[2 * number], pad[2 * number + 1]
    return build.ops.pad(x.output, build.ints(begin), build.ints(end), mode, value)


def _pad_of(mode: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, pad: Sequence[int]) -> Any:
        return _padded(build, x, pad, mode)

    return convert


def _gather(build: Conversion, x: Value, dim: int, index: Value, **_: Any) -> Any:
    if not x.rank:
        return x.output
    return build.ops.gather_elements(cut_to(build, x, index, x.axis(dim)), index.output, x.axis(dim))


def _index_select(build: Conversion, x: Value, dim: int, index: Value) -> Any:
    return build.ops.gather(x.output, index.output, build.constant(x.axis(dim)))


def _embedding(build: Conversion, weight: Value, indices: Value, *_: Any) -> Any:
    return build.ops.gather(weight.output, indices.output, build.constant(0))


def _index(build: Conversion, x: Value, indices: Sequence[Value | None]) -> Any:
    """Pick elements; what is picked stands where its dimensions stood, or in front where they stood apart."""
    given = [number for number, value in enumerate(indices) if value is not None]
    chosen = [value for value in indices if value is not None]
    if any(value.dtype in (torch.bool, torch.uint8) for value in chosen):
        raise build.fail("how many elements a mask picks is not known before it runs")
    if len(chosen) == 1:
        return build.ops.gather(x.output, chosen[0].output, build.constant(given[0]))
    front, count = given[0], len(chosen)
    others = [number for number in range(x.rank) if number not in given]
    order = [*given, *others]
    moved = x.output if order == list(range(x.rank)) else build.ops.transpose(x.output, build.ints(order))
    shape = torch.broadcast_shapes(*(value.like.shape for value in chosen))
    sizes = build.ints(list(shape))
    places = [
        build.ops.unsqueeze(
            build.ops.broadcast(
                _counted(build, x, value, given[number]), sizes, broadcast_spec="BIDIRECTIONAL"
            ),
            build.ints([-1]),
        )
        for number, value in enumerate(chosen)
    ]
    picked = build.ops.gather_nd(moved, build.ops.concat(places, -1), 0)
    if front == 0 or given != list(range(front, front + count)):
        return picked
    rank = len(shape)
    back = [*range(rank, rank + front), *range(rank), *range(rank + front, rank + x.rank - count)]
    return build.ops.transpose(picked, build.ints(back))


def _counted(build: Conversion, x: Value, index: Value, dim: int) -> Any:
    """Return an index counted from the front."""
    place = build.cast(index, torch.int64)
    size = build.ops.gather(build.shape_of(x), build.constant(dim), build.constant(0))
    return build.ops.select(build.ops.less(place, build.constant(0)), build.ops.add(place, size), place)


def _filled_like(value: int) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, **_: Any) -> Any:
        return build.ops.broadcast(build.constant(value, build.like.dtype), build.shape_of(x))

    return convert


def _full_like(build: Conversion, x: Value, value: Any, **_: Any) -> Any:
    return build.ops.broadcast(build.constant(value, build.like.dtype), build.shape_of(x))


def _full(build: Conversion, size: Sequence[Any], value: Any, **_: Any) -> Any:
    return build.ops.broadcast(build.constant(value, build.like.dtype), build.ints(list(size)))


def _of_number(value: int) -> Callable[..., Any]:
    def convert(build: Conversion, size: Sequence[Any], **_: Any) -> Any:
        return _full(build, size, value)

    return convert


def _as_strided(
    build: Conversion, x: Value, size: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> Any:
    sizes = tuple(x.like.shape)
    wanted = [step for step, count in zip(stride, sizes, strict=False) if count != 1]
    given = [step for step, count in zip(x.like.stride(), sizes, strict=True) if count != 1]
    if tuple(size) != sizes or wanted != given or offset not in {None, x.like.storage_offset()}:
        raise build.fail("it reads memory in an order of its own (as_strided)")
    return x.output


def _triangle(*, upper: bool) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, diagonal: int = 0) -> Any:
        ones = torch.ones(tuple(x.like.shape[-2:]), dtype=torch.bool)
        mask = ones.triu(diagonal) if upper else ones.tril(diagonal)
        return build.ops.select(build.tensor(mask), x.output, build.constant(0, x.dtype))

    return convert


def _size(build: Conversion, x: Value, dim: int) -> Any:
    return build.out(build.ops.gather(build.shape_of(x), build.constant(x.axis(dim)), build.constant(0)))


def _scatter(build: Conversion, x: Value, dim: int, index: Value, source: Any) -> Any:
    if isinstance(source, Value):
        updates = cut_to(build, source, index)
    else:
        updates = build.ops.broadcast(build.cast(source, x.dtype), build.shape_of(index))
    return build.ops.scatter_elements_update(x.output, index.output, updates, build.constant(x.axis(dim)))


def _pixel_shuffle(build: Conversion, x: Value, factor: int) -> Any:
    return build.ops.depth_to_space(x.output, "depth_first", factor)


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.view.default, _view),
    (aten._unsafe_view.default, _view),
    (aten.reshape.default, _view),
    (aten._reshape_alias.default, _view),
    (aten.permute.default, _permute),
    (aten.transpose.int, _transpose),
    (aten.t.default, _t),
    (aten.squeeze.default, _squeeze),
    (aten.squeeze.dim, _squeeze),
    (aten.squeeze.dims, _squeeze),
    (aten.unsqueeze.default, _unsqueeze),
    (aten.expand.default, _expand),
    (aten.cat.default, _cat),
    (aten.stack.default, _stack),
    (aten.slice.Tensor, _slice),
    (aten.select.int, _select),
    (aten.split.Tensor, _split),
    (aten.split_with_sizes.default, _split),
    (aten.chunk.default, _split),
    (aten.unbind.int, _unbind),
    (aten.flip.default, _flip),
    (aten.roll.default, _roll),
    (aten.repeat.default, _repeat),
    (aten.tile.default, _repeat),
    (aten.constant_pad_nd.default, _pad),
    (aten.reflection_pad1d.default, _pad_of("reflect")),
    (aten.reflection_pad2d.default, _pad_of("reflect")),
    (aten.reflection_pad3d.default, _pad_of("reflect")),
    (aten.replication_pad1d.default, _pad_of("edge")),
    (aten.replication_pad2d.default, _pad_of("edge")),
    (aten.replication_pad3d.default, _pad_of("edge")),
    (aten.gather.default, _gather),
    (aten.index_select.default, _index_select),
    (aten.embedding.default, _embedding),
    (aten.index.Tensor, _index),
    (aten._unsafe_index.Tensor, _index),
    (aten.zeros_like.default, _filled_like(0)),
    (aten.zero.default, _filled_like(0)),
    (aten.ones_like.default, _filled_like(1)),
    (aten.full_like.default, _full_like),
    (aten.full.default, _full),
    (aten.zeros.default, _of_number(0)),
    (aten.ones.default, _of_number(1)),
    (aten.as_strided.default, _as_strided),
    (aten.tril.default, _triangle(upper=False)),
    (aten.triu.default, _triangle(upper=True)),
    (aten.sym_size.int, _size),
    (aten.scatter.src, _scatter),
    (aten.scatter.value, _scatter),
    (aten.pixel_shuffle.default, _pixel_shuffle),
]

"""Operators that sample images at other places: resizing, shuffling, padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord
from fxplug_tensorrt.converters.layers import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fxplug_tensorrt.network import Conversion, Size, Value

__all__ = ["records"]

aten = torch.ops.aten
_KEYS = -0.75  # The coefficient of PyTorch's cubic interpolation.


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def _resized(build: Conversion, x: Value, size: Sequence[int], factors: Sequence[Any]) -> Any:
    """Return a layer that resizes the last dimensions to a size."""
    for have, want, factor in zip(x.sizes[-len(size) :], size, factors, strict=True):
        if factor is not None and have * factor != want:
            raise build.fail(f"it resizes {have} by {factor}, which is no whole number")
    layer = build.add("resize", x.output)
    if all(part >= 0 for part in x.sizes[: -len(size)]):
        layer.shape = (*x.sizes[: -len(size)], *size)
    else:
        kept = [x.size(dim) for dim in range(x.rank - len(size))]
        layer.set_input(1, build.numbers([*kept, *size]).output)
    return layer


def _nearest(spatial: int, *, exact: bool) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, size: Sequence[int], *factors: Any, **named: Any) -> Value:
        layer = _resized(build, x, size, _factors(spatial, factors, named))
        trt = build.trt
        layer.resize_mode = trt.InterpolationMode.NEAREST
        if exact:
            layer.coordinate_transformation = trt.ResizeCoordinateTransformation.HALF_PIXEL
            layer.nearest_rounding = trt.ResizeRoundMode.HALF_UP
        else:
            layer.coordinate_transformation = trt.ResizeCoordinateTransformation.ASYMMETRIC
            layer.nearest_rounding = trt.ResizeRoundMode.FLOOR
        return build.value(layer, x.dtype)

    return convert


def _factors(spatial: int, factors: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[spatial]
    given = [*factors, *[None] * (spatial - len(factors))]
    return [named.get(name, factor) for name, factor in zip(names, given, strict=True)]


def _interpolated(spatial: int, mode: str) -> Callable[..., Any]:
    def convert(
        build: Conversion,
        x: Value,
        size: Sequence[int],
        align_corners: bool,  # noqa: FBT001 - ATen's signature
        *factors: Any,
        **named: Any,
    ) -> Value:
        layer = _resized(build, x, size, _factors(spatial, factors, named))
        kinds = build.trt.ResizeCoordinateTransformation
        layer.resize_mode = getattr(build.trt.InterpolationMode, mode)
        layer.coordinate_transformation = kinds.ALIGN_CORNERS if align_corners else kinds.HALF_PIXEL
        if mode == "CUBIC":
            layer.cubic_coeff = _KEYS
        return build.value(layer, x.dtype)

    return convert


def _grid_sample(
    build: Conversion,
    x: Value,
    grid: Value,
    interpolation: int,
    padding: int,
    align_corners: bool,  # noqa: FBT001 - ATen's signature
) -> Value:
    layer = build.add("grid_sample", x.output, grid.output)
    layer.interpolation_mode = getattr(
        build.trt.InterpolationMode, ("LINEAR", "NEAREST", "CUBIC")[interpolation]
    )
    layer.sample_mode = getattr(build.trt.SampleMode, ("FILL", "CLAMP", "REFLECT")[padding])
    layer.align_corners = align_corners
    return build.value(layer, x.dtype)


# -- padding


def _padded(build: Conversion, x: Value, pad: Sequence[int], mode: str, fill: float | None = None) -> Value:
    starts: list[Size] = [0] * x.rank
    sizes: list[Size] = [x.size(dim) for dim in range(x.rank)]
    for number in range(len(pad) // 2):
        axis = x.rank - 1 - number
        before, after = pad[2 * number], pad[2 * number + 1]
        starts[axis] = -before
        sizes[axis] = sizes[axis] + (before + after) if before + after else sizes[axis]
    return build.slice(x, starts, sizes, [1] * x.rank, mode, fill)


def _constant_pad(build: Conversion, x: Value, pad: Sequence[int], value: Any = 0) -> Value:
    if x.dtype is torch.bool:
        return _padded(build, x.to(torch.int32), pad, "FILL", int(value)).to(torch.bool)
    return _padded(build, x, pad, "FILL", value)


def _pad_by(mode: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, pad: Sequence[int]) -> Value:
        return _padded(build, x, pad, mode)

    return convert


# -- channels and places


def _pixel_shuffle(build: Conversion, x: Value, factor: int) -> Value:
    *front, _, height, width = (x.size(dim) for dim in range(x.rank))
    rank = len(front)
    deep = x.known_size(-3) // factor**2
    split = x.reshape([*front, deep, factor, factor, height, width])
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    return split.permute(order).reshape([*front, deep, height * factor, width * factor])


def _pixel_unshuffle(build: Conversion, x: Value, factor: int) -> Value:
    front = [x.size(dim) for dim in range(x.rank - 3)]
    channels, height, width = (x.known_size(dim) for dim in (-3, -2, -1))
    rank = len(front)
    split = x.reshape([*front, channels, height // factor, factor, width // factor, factor])
    order = [*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3]
    return split.permute(order).reshape([*front, channels * factor**2, height // factor, width // factor])


def _channel_shuffle(build: Conversion, x: Value, groups: int) -> Value:
    sizes = [x.size(dim) for dim in range(x.rank)]
    channels = x.known_size(1)
    split = x.reshape([sizes[0], groups, channels // groups, *sizes[2:]])
    return split.permute([0, 2, 1, *range(3, x.rank + 1)]).reshape(sizes)


def _unfolded(build: Conversion, x: Value, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Value:
    """Return the patches of an image, one column each."""
    if x.rank == 3:
        return _unfolded(build, x.unsqueeze(0), kernel, dilation, padding, stride).squeeze(0)
    (high, wide), (apart_y, apart_x) = each(kernel, 2), each(dilation, 2)
    (pad_y, pad_x), (step_y, step_x) = each(padding, 2), each(stride, 2)
    if pad_y or pad_x:
        x = _padded(build, x, [pad_x, pad_x, pad_y, pad_y], "FILL", 0.0)
    rows = (x.known_size(2) - apart_y * (high - 1) - 1) // step_y + 1
    columns = (x.known_size(3) - apart_x * (wide - 1) - 1) // step_x + 1
    parts = [
        build.part(build.part(x, 2, row * apart_y, rows, step_y), 3, column * apart_x, columns, step_x)
        for row in range(high)
        for column in range(wide)
    ]
    joined = build.concat([part.unsqueeze(2) for part in parts], 2)
    return joined.reshape([x.size(0), x.known_size(1) * high * wide, rows * columns])


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.upsample_nearest1d.default, _nearest(1, exact=False)),
    (aten.upsample_nearest2d.default, _nearest(2, exact=False)),
    (aten.upsample_nearest3d.default, _nearest(3, exact=False)),
    (aten._upsample_nearest_exact1d.default, _nearest(1, exact=True)),
    (aten._upsample_nearest_exact2d.default, _nearest(2, exact=True)),
    (aten._upsample_nearest_exact3d.default, _nearest(3, exact=True)),
    (aten.upsample_linear1d.default, _interpolated(1, "LINEAR")),
    (aten.upsample_bilinear2d.default, _interpolated(2, "LINEAR")),
    (aten.upsample_trilinear3d.default, _interpolated(3, "LINEAR")),
    (aten.upsample_bicubic2d.default, _interpolated(2, "CUBIC")),
    (aten.grid_sampler_2d.default, _grid_sample),
    (aten.constant_pad_nd.default, _constant_pad),
    (aten.reflection_pad1d.default, _pad_by("REFLECT")),
    (aten.reflection_pad2d.default, _pad_by("REFLECT")),
    (aten.reflection_pad3d.default, _pad_by("REFLECT")),
    (aten.replication_pad1d.default, _pad_by("CLAMP")),
    (aten.replication_pad2d.default, _pad_by("CLAMP")),
    (aten.replication_pad3d.default, _pad_by("CLAMP")),
    (aten.pixel_shuffle.default, _pixel_shuffle),
    (aten.pixel_unshuffle.default, _pixel_unshuffle),
    (aten.channel_shuffle.default, _channel_shuffle),
    (aten.im2col.default, _unfolded),
]

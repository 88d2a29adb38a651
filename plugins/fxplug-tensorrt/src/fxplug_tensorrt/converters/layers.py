"""Convolutions, norms and pools."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord
from fxplug_tensorrt.network import Conversion, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fxplug_tensorrt.network import Size

__all__ = ["each", "layer_norm", "records", "with_batch"]

aten = torch.ops.aten


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def each(values: Any, count: int) -> list[int]:
    """Return one number for each dimension."""
    given = [values] if isinstance(values, int) else list(values)
    return given * count if len(given) == 1 else given


# -- convolutions


def _convolution(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    spatial = weight.rank - 2
    if x.rank != weight.rank:
        made = _convolution(
            build, x.unsqueeze(0), weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )
        return made.squeeze(0)
    steps, pads, apart, extra = (each(part, spatial) for part in (stride, padding, dilation, output_padding))
    if spatial == 1:  # TensorRT convolves in two or three dimensions.
        x, weight = x.unsqueeze(3), _one_more(weight)
        steps, pads, apart, extra = [*steps, 1], [*pads, 0], [*apart, 1], [*extra, 0]
    layer = _kernel_layer(build, x, weight, bias, groups if transposed else 0)
    layer.stride_nd, layer.dilation_nd, layer.num_groups = tuple(steps), tuple(apart), groups
    layer.pre_padding = tuple(pads)
    if transposed:
        if layer.get_output(0).dtype == build.trt.DataType.BF16:
            raise build.fail("TensorRT has no transposed convolutions in bfloat16")
        if any(more > pad for more, pad in zip(extra, pads, strict=True)):
            raise build.fail("it adds more rows to its result than it takes away")
        layer.post_padding = tuple(pad - more for pad, more in zip(pads, extra, strict=True))
    else:
        layer.post_padding = tuple(pads)
    made = build.value(layer, x.dtype)
    return made.squeeze(3) if spatial == 1 else made


def _one_more(weight: Value) -> Value:
    """Return a kernel with one more dimension; known ones stay known."""
    if weight.data is None:
        return weight.unsqueeze(3)
    return Value(weight.build, weight.output, weight.dtype, weight.data.unsqueeze(-1))


def _kernel_layer(build: Conversion, x: Value, weight: Value, bias: Value | None, groups: int) -> Any:
    """Return a convolution; a transposed one where there is a number of groups."""
    sizes = tuple(weight.data.shape) if weight.data is not None else weight.sizes
    maps, kind = (sizes[1] * groups, "deconvolution_nd") if groups else (sizes[0], "convolution_nd")
    known = [value is None or value.data is not None for value in (weight, bias)]
    name = f"{kind}_{len(build.kept)}"
    kernel = build.weights(weight.data, f"{name} kernel") if weight.data is not None else _none(build, weight)
    arguments = [x.output, maps, sizes[2:], kernel]
    if bias is not None and bias.data is not None:
        arguments.append(build.weights(bias.data, f"{name} bias"))
    layer = build.add(kind, *arguments)
    layer.name = name
    if not known[0]:
        layer.set_input(1, weight.output)
    if bias is not None and not known[1]:
        layer.set_input(2, bias.output)
    return layer


def _none(build: Conversion, value: Value) -> Any:
    """Return weights that are given as a tensor of the network instead."""
    return build.trt.Weights(build.type_of(value.dtype))


# -- norms


def _along_channels(value: Value, rank: int) -> Value:
    return value.reshape([1, -1, *[1] * (rank - 2)])


def _batch_norm(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    if all(part is None or part.data is not None for part in (weight, bias, mean, variance)):
        return _known_batch_norm(build, x, weight, bias, mean, variance, eps), None, None
    factor = (variance + eps).unary("SQRT").unary("RECIP")
    if weight is not None:
        factor = factor * weight.to(factor.dtype)
    shift = -mean * factor
    if bias is not None:
        shift = shift + bias.to(factor.dtype)
    made = x * _along_channels(factor.to(x.dtype), x.rank) + _along_channels(shift.to(x.dtype), x.rank)
    return made, None, None


def _known_batch_norm(
    build: Conversion,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    eps: float,
) -> Value:
    """Return one multiplication and one addition, whose numbers are computed now."""
    known = [None if part is None else part.data for part in (weight, bias, mean, variance)]
    gamma, beta, center, spread = (None if part is None else part.detach().double() for part in known)
    factor = (spread + eps).rsqrt()  # pyright: ignore[reportOptionalOperand]
    factor = factor if gamma is None else factor * gamma
    shift = -center * factor  # pyright: ignore[reportOptionalOperand]
    shift = shift if beta is None else shift + beta
    sizes = (1, -1, *[1] * (x.rank - 2))
    scaled = x * build.tensor(factor.to(x.dtype).reshape(sizes))
    return scaled + build.tensor(shift.to(x.dtype).reshape(sizes))


def _batch_norm_of_batch(
    build: Conversion,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,  # noqa: FBT001
    momentum: float,
    eps: float,
) -> tuple[Value, None, None]:
    made = _standardised(x, [0, *range(2, x.rank)], eps)
    made = made if weight is None else made * _along_channels(weight, x.rank)
    return made if bias is None else made + _along_channels(bias, x.rank), None, None


def _standardised(x: Value, axes: Sequence[int], eps: float) -> Value:
    apart = x - x.reduce("AVG", axes, keep=True)
    variance = (apart * apart).reduce("AVG", axes, keep=True)
    return apart / (variance + eps).unary("SQRT")


def layer_norm(
    build: Conversion, x: Value, count: int, weight: Value | None, bias: Value | None, eps: float
) -> Value:
    """Return the values standardised over the last `count` dimensions, scaled and shifted."""
    axes = range(x.rank - count, x.rank)
    sizes = [x.known_size(axis) for axis in axes]
    scale = build.tensor(torch.ones(sizes, dtype=x.dtype)) if weight is None else weight
    shift = build.tensor(torch.zeros(sizes, dtype=x.dtype)) if bias is None else bias
    _, scale, shift = build.aligned(x, scale, shift)
    return _normalised(build, x, scale, shift, axes, eps)


def _normalised(
    build: Conversion, x: Value, scale: Value, shift: Value, axes: Sequence[int], eps: float
) -> Value:
    mask = sum(1 << axis for axis in axes)
    kind = "normalization_v2" if hasattr(build.net, "add_normalization_v2") else "normalization"
    layer = build.add(kind, x.output, scale.output, shift.output, mask)
    layer.epsilon = eps
    return build.value(layer, x.dtype)


def _layer_norm(
    build: Conversion, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, None, None]:
    return layer_norm(build, x, len(shape), weight, bias, eps), None, None


def _rms_norm(
    build: Conversion, x: Value, shape: Sequence[int], weight: Value | None, eps: float | None
) -> tuple[Value, None]:
    axes = range(x.rank - len(shape), x.rank)
    least = torch.finfo(x.dtype).eps if eps is None else eps
    made = x / ((x * x).reduce("AVG", axes, keep=True) + least).unary("SQRT")
    return (made if weight is None else made * weight), None


def _group_norm(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: Any,
    channels: int,
    area: Any,
    groups: int,
    eps: float,
) -> tuple[Value, None, None]:
    sizes = [x.size(dim) for dim in range(x.rank)]
    split = x.reshape([sizes[0], groups, channels // groups, -1])
    made = _standardised(split, [2, 3], eps).reshape(sizes)
    made = made if weight is None else made * _along_channels(weight, x.rank)
    return made if bias is None else made + _along_channels(bias, x.rank), None, None


# -- pools


def with_batch(function: Callable[..., Any], spatial: int) -> Callable[..., Any]:
    """Return a converter that also takes values without a batch."""

    def convert(build: Conversion, x: Value, *args: Any, **kwargs: Any) -> Any:
        if x.rank == spatial + 2:
            return function(build, x, spatial, *args, **kwargs)
        made = function(build, x.unsqueeze(0), spatial, *args, **kwargs)
        if isinstance(made, tuple):
            return tuple(None if part is None else part.squeeze(0) for part in made)
        return made.squeeze(0)

    return convert


def _pooled(  # noqa: PLR0913 - what a pool is made of
    build: Conversion,
    x: Value,
    kind: str,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    ceil_mode: bool,
    counts_padding: bool = True,
) -> Value:
    spatial = len(kernel)
    sizes, steps, pads = list(kernel), list(stride), list(padding)
    if spatial == 1:
        x, sizes, steps, pads = x.unsqueeze(3), [*sizes, 1], [*steps, 1], [*pads, 0]
    layer = build.add("pooling_nd", x.output, getattr(build.trt.PoolingType, kind), tuple(sizes))
    layer.stride_nd, layer.padding_nd = tuple(steps), tuple(pads)
    if ceil_mode:
        layer.padding_mode = build.trt.PaddingMode.EXPLICIT_ROUND_UP
    if kind == "AVERAGE":
        layer.average_count_excludes_padding = not counts_padding
    made = build.value(layer, x.dtype)
    return made.squeeze(3) if spatial == 1 else made


def _max_pool(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    spatial: int,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002
) -> tuple[Value, None]:
    sizes = each(kernel, spatial)
    steps = each(stride, spatial) if stride else sizes
    pads, apart = each(padding, spatial), each(dilation, spatial)
    if apart == [1] * spatial:
        return _pooled(build, x, "MAX", sizes, steps, pads, ceil_mode=ceil_mode), None
    # TensorRT pools neighbours only. The largest of a window is the largest of the largest of its rows.
    for dim, window in enumerate(zip(sizes, steps, pads, apart, strict=True)):
        x = _largest_along(build, x, 2 + dim, window, ceil_mode=ceil_mode)
    return x, None


def _largest_along(
    build: Conversion, x: Value, axis: int, window: tuple[int, int, int, int], *, ceil_mode: bool
) -> Value:
    """Return the largest elements of the windows of one dimension.

    Args:
        build: The network.
        x: What is pooled.
        axis: The dimension.
        window: Its size, the step to the next one, what is added before and behind, and how far its elements are apart.
        ceil_mode: Whether the last window may reach over the end.
    """
    size, step, pad, apart = window
    starts, more = _starts((x.known_size(axis), pad, (size - 1) * apart + 1, step), ceil_mode=ceil_mode)
    lowest = -math.inf if x.is_floating else torch.iinfo(x.dtype).min
    wide = _with_more(build, x, axis, pad, more, lowest) if pad or more else x
    parts = [build.part(wide, axis, number * apart, len(starts), step) for number in range(size)]
    return functools.reduce(Value.maximum, parts)


def _avg_pool(  # noqa: PLR0913, PLR0917 - ATen's signature
    build: Conversion,
    x: Value,
    spatial: int,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002
    count_include_pad: bool = True,  # noqa: FBT001, FBT002
    divisor_override: int | None = None,
) -> Value:
    sizes, pads = each(kernel, spatial), each(padding, spatial)
    steps = each(stride, spatial) if stride else sizes
    if divisor_override is None and not ceil_mode:
        return _pooled(
            build, x, "AVERAGE", sizes, steps, pads, ceil_mode=False, counts_padding=count_include_pad
        )
    # What TensorRT divides by differs where a window is cut off: sums are made, and divided by numbers known now.
    wide, counts = x, torch.ones(())
    for dim in range(spatial):
        whole = x.known_size(2 + dim)
        window = (whole, pads[dim], sizes[dim], steps[dim])
        starts, more = _starts(window, ceil_mode=ceil_mode)
        wide = _with_more(build, wide, 2 + dim, pads[dim], more, 0.0)
        counts = counts[..., None] * torch.tensor(_counts(window, starts, all_count=count_include_pad))
    share = math.prod(sizes) / (
        counts if divisor_override is None else torch.full_like(counts, divisor_override)
    )
    made = _pooled(build, wide, "AVERAGE", sizes, steps, [0] * spatial, ceil_mode=False)
    return made * build.tensor(share.to(x.dtype)[None, None])


def _starts(window: tuple[int, int, int, int], *, ceil_mode: bool) -> tuple[range, int]:
    """Return where the windows of a dimension start, and how many zeros are needed behind it."""
    whole, pad, size, step = window
    room = whole + 2 * pad - size
    count = (-(-room // step) if ceil_mode else room // step) + 1
    if ceil_mode and (count - 1) * step >= whole + pad:  # The last one would start in the padding behind.
        count -= 1
    return range(-pad, -pad + count * step, step), max((count - 1) * step + size - whole - pad, 0)


def _counts(window: tuple[int, int, int, int], starts: range, *, all_count: bool) -> list[float]:
    """Return by how much each window is divided."""
    whole, pad, size, _ = window
    first, last = (-pad, whole + pad) if all_count else (0, whole)
    return [float(min(start + size, last) - max(start, first)) for start in starts]


def _with_more(build: Conversion, x: Value, axis: int, before: int, after: int, fill: float) -> Value:
    """Return a value with more elements of one kind before and behind those of a dimension."""
    starts: list[Size] = [0] * x.rank
    sizes: list[Size] = [x.size(dim) for dim in range(x.rank)]
    starts[axis], sizes[axis] = -before, x.known_size(axis) + before + after
    return build.slice(x, starts, sizes, [1] * x.rank, "FILL", fill)


def _adaptive_avg_pool(build: Conversion, x: Value, spatial: int, size: Any) -> Value:
    wanted = each(size, spatial)
    if all(part == 1 for part in wanted):
        return x.reduce("AVG", list(range(2, x.rank)), keep=True)
    given = [x.known_size(2 + dim) for dim in range(spatial)]
    if all(have % want == 0 for have, want in zip(given, wanted, strict=True)):
        sizes = [have // want for have, want in zip(given, wanted, strict=True)]
        return _pooled(build, x, "AVERAGE", sizes, sizes, [0] * spatial, ceil_mode=False)
    for dim, (have, want) in enumerate(zip(given, wanted, strict=True)):
        weights = torch.zeros(want, have)
        for row, (start, end) in enumerate(_windows(have, want)):
            weights[row, start:end] = 1 / (end - start)
        x = _mixed(build, x, 2 + dim, weights.to(x.dtype))
    return x


def _windows(have: int, want: int) -> list[tuple[int, int]]:
    """Return where the windows of an adaptive pool start and end."""
    return [(row * have // want, -(-(row + 1) * have // want)) for row in range(want)]


def _mixed(build: Conversion, x: Value, axis: int, weights: torch.Tensor) -> Value:
    """Return sums of the elements of a dimension, with weights."""
    order = [dim for dim in range(x.rank) if dim != axis] + [axis]
    made = build.matmul(x.permute(order), build.tensor(weights), transposed=True)
    return made.permute([order.index(dim) for dim in range(x.rank)])


def _adaptive_max_pool(build: Conversion, x: Value, spatial: int, size: Any) -> tuple[Value, None]:
    for dim, want in enumerate(each(size, spatial)):
        axis = 2 + dim
        parts = [
            build.part(x, axis, start, end - start).reduce("MAX", [axis], keep=True)
            for start, end in _windows(x.known_size(axis), want)
        ]
        x = build.concat(parts, axis)
    return x, None


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.convolution.default, _convolution),
    (aten._native_batch_norm_legit_no_training.default, _batch_norm),
    (aten._native_batch_norm_legit.no_stats, _batch_norm_of_batch),
    (aten.native_layer_norm.default, _layer_norm),
    (aten._fused_rms_norm.default, _rms_norm),
    (aten.native_group_norm.default, _group_norm),
    (aten.max_pool2d_with_indices.default, with_batch(_max_pool, 2)),
    (aten.max_pool3d_with_indices.default, with_batch(_max_pool, 3)),
    (aten.avg_pool1d.default, with_batch(_avg_pool, 1)),
    (aten.avg_pool2d.default, with_batch(_avg_pool, 2)),
    (aten.avg_pool3d.default, with_batch(_avg_pool, 3)),
    (aten._adaptive_avg_pool2d.default, with_batch(_adaptive_avg_pool, 2)),
    (aten._adaptive_avg_pool3d.default, with_batch(_adaptive_avg_pool, 3)),
    (aten.adaptive_avg_pool1d.default, with_batch(_adaptive_avg_pool, 1)),
    (aten.adaptive_max_pool2d.default, with_batch(_adaptive_max_pool, 2)),
    (aten.adaptive_max_pool3d.default, with_batch(_adaptive_max_pool, 3)),
]

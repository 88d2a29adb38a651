"""Shape functions of what the layers of networks compute."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fxplug.semantics.shapes.abstract import AbstractTensor
from fxplug.semantics.shapes.operands import (
    broadcast,
    each_of,
    is_number,
    is_positive,
    new_tensor,
    order_like,
    require,
    sizes_of,
    tensor_of,
)
from fxplug.semantics.shapes.pointwise import sizes_of_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "Kernel",
    "adaptive_pooling",
    "adaptively_pooled",
    "attended",
    "average_pooling",
    "convolution",
    "convolved",
    "folded",
    "group_normed",
    "interpolated",
    "layer_normed",
    "linearly_mapped",
    "max_pooling",
    "multiplied",
    "multiplied_in_batches",
    "normed",
    "normed_by_squares",
    "normed_with_statistics",
    "padded",
    "pooled",
    "transposed_convolved",
    "unfolded",
]


def multiplied(x: Any, y: Any, /) -> AbstractTensor:
    """Return what a product of matrices gives, of which there may be several in each operand."""
    first, second = tensor_of(x).sizes, tensor_of(y).sizes
    require(min(len(first), len(second)) > 1 and first[-1] == second[-2])
    return new_tensor((*broadcast(first[:-2], second[:-2]), first[-2], second[-1]))


def multiplied_in_batches(x: Any, y: Any, /) -> AbstractTensor:
    """Return what `torch.bmm` gives."""
    batches = 3
    require(len(x.sizes) == len(y.sizes) == batches and x.sizes[0] == y.sizes[0])
    return multiplied(x, y)


def attended(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Any = 0.0,
    is_causal: Any = False,
    scale: Any = None,
) -> AbstractTensor:
    """Return what attention gives.

    Args:
        query: ``(*, L, E)``.
        key: ``(*, S, E)``.
        value: ``(*, S, V)``.
        attn_mask: Flags or numbers, broadcast to ``(*, L, S)``.
        dropout_p: 0.
        is_causal: Whether each query has those keys alone that come before.
        scale: What products are multiplied by.
    """
    *batch, length, width = tensor_of(query).sizes
    require(is_number(dropout_p) and dropout_p == 0 and type(is_causal) is bool and batch)
    require(scale is None or is_number(scale))
    if attn_mask is not None:
        whole = (*batch, length, tensor_of(key).sizes[-2])
        is_float = attn_mask.__class__ is AbstractTensor
        given = attn_mask.sizes if is_float else sizes_of_flags(attn_mask)
        matrix = 2
        require(not is_causal and len(given) >= matrix and broadcast(whole, given) == whole)
    require(tensor_of(key).sizes[:-2] == tuple(batch) == tensor_of(value).sizes[:-2])
    require(key.sizes[-1] == width and key.sizes[-2] == value.sizes[-2])
    return new_tensor((*batch, length, value.sizes[-1]))


def linearly_mapped(x: Any, /, weight: Any, bias: Any = None) -> AbstractTensor:
    """Return what a linear layer gives; of its weights there are the sizes alone, or abstract tensors."""
    x, (count, width) = tensor_of(x), sizes_of(weight)
    require(x.sizes and x.sizes[-1] == width and (bias is None or sizes_of(bias) == (count,)))
    return AbstractTensor((*x.sizes[:-1], count), "contiguous", "own")


def _steps(size: int, kernel: int, stride: int, *, padding: int, dilation: int) -> int:
    """Return at how many places a kernel is applied along a dimension."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    require(room >= 0 <= padding and min(kernel, stride, dilation) > 0)
    return room // stride + 1


class Kernel(NamedTuple):
    """What a convolution is, transposed or not."""

    weight: Sequence[int]
    """The sizes of its weight."""
    bias: Sequence[int] | None
    """Those of its bias."""
    stride: Any
    padding: Any
    dilation: Any
    groups: Any


def convolved(x: Any, kernel: Kernel, *, is_contiguous: bool) -> AbstractTensor:
    """Return what a convolution gives.

    Args:
        x: ``(N, C, *)``.
        kernel: Its weights and settings.
        is_contiguous: Whether its weight is.
    """
    weight, bias, stride, padding, dilation, groups = kernel
    sizes, widths, count = tensor_of(x).sizes, weight[2:], weight[0]
    dims = len(widths)
    require(groups.__class__ is int and groups > 0 and sizes[1] == weight[1] * groups and count % groups == 0)
    require(dims > 0 and len(sizes) == dims + 2 and (bias is None or bias == (count,)))
    found = [sizes[0], count]
    # Written out: most of the layers of a network are convolutions.
    for size, width, step, edge, spread in zip(
        sizes[2:], widths, each_of(stride, dims), each_of(padding, dims), each_of(dilation, dims), strict=True
    ):
        room = size + 2 * edge - spread * (width - 1) - 1
        require(room >= 0 <= edge and width > 0 < step and spread > 0)
        found.append(room // step + 1)
    # Of one channel, or of kernels of one place, strides do not say which dimension comes last.
    is_kept = is_contiguous and math.prod(weight[1:]) > 1 and sizes[1] > 1
    return AbstractTensor(tuple(found), order_like(x) if is_kept else "unknown", "own")


def transposed_convolved(x: Any, kernel: Kernel, output_padding: Any) -> AbstractTensor:
    """Return what a transposed convolution gives, with ``output_padding`` more places at one side."""
    batch, channels, *places = tensor_of(x).sizes
    width, count, *widths = kernel.weight
    groups, dims = kernel.groups, len(places)
    settings = kernel.stride, kernel.padding, kernel.dilation, output_padding
    stride, padding, dilation, added = (each_of(one, dims) for one in settings)
    require(type(groups) is int and groups > 0 and channels == width and channels % groups == 0)
    require(dims > 0 and len(widths) == dims and kernel.bias in (None, (count * groups,)))
    for dim, size in enumerate(places):
        step, edge, spread = stride[dim], padding[dim], dilation[dim]
        require(0 <= added[dim] < max(step, spread) and edge >= 0 and min(step, spread, widths[dim]) > 0)
        places[dim] = (size - 1) * step - 2 * edge + spread * (widths[dim] - 1) + added[dim] + 1
        require(places[dim] > 0)
    return new_tensor((batch, count * groups, *places))


def convolution(dims: int) -> Callable[..., AbstractTensor]:
    """Return the shape function of a convolution as a function."""

    def apply(
        x: Any,
        /,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
    ) -> AbstractTensor:
        require(len(tensor_of(x).sizes) == dims + 2)
        offset = None if bias is None else tensor_of(bias).sizes
        kernel = Kernel(tensor_of(weight).sizes, offset, stride, padding, dilation, groups)
        return convolved(x, kernel, is_contiguous=weight.order == "contiguous")

    return apply


def unfolded(
    x: Any, /, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> AbstractTensor:
    """Return what `torch.nn.functional.unfold` gives of ``(N, C, H, W)``: a column for each place of a window."""
    batch, channels, *places = tensor_of(x).sizes
    planes = 2
    require(len(places) == planes)
    counts, window = _windows(places, (kernel_size, dilation, padding, stride))
    return new_tensor((batch, channels * window, math.prod(counts)))


def folded(
    x: Any,
    /,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> AbstractTensor:
    """Return what `torch.nn.functional.fold` gives of ``(N, C * window, L)``: the sum of the windows at each place."""
    batch, width, count = tensor_of(x).sizes
    places = each_of(output_size, 2)
    counts, window = _windows(places, (kernel_size, dilation, padding, stride))
    require(min(places) > 0 and width % window == 0 and math.prod(counts) == count)
    return new_tensor((batch, width // window, *places))


def _windows(places: Sequence[int], settings: tuple[Any, Any, Any, Any]) -> tuple[list[int], int]:
    """Return at how many places a window stands along each dimension, and how many elements it has.

    Args:
        places: The sizes of what it goes over.
        settings: Its kernel size, dilation, padding and stride.
    """
    kernel, dilation, padding, stride = (each_of(one, len(places)) for one in settings)
    steps = zip(places, kernel, stride, padding, dilation, strict=True)
    counts = [
        _steps(size, width, step, padding=edge, dilation=spread) for size, width, step, edge, spread in steps
    ]
    return counts, math.prod(kernel)


def pooled(
    x: Any,
    settings: tuple[Any, Any, Any, Any],
    dims: int,
    *,
    ceil_mode: Any,
) -> AbstractTensor:
    """Return what a pooling layer gives that takes the largest or the mean of the values in a window.

    Args:
        x: ``(N, C, *)``.
        settings: Its kernel size, stride, padding and dilation.
        dims: How many dimensions are pooled.
        ceil_mode: Whether a window may begin that does not end.
    """
    sizes = tensor_of(x).sizes
    require(len(sizes) == dims + 2 and type(ceil_mode) is bool)
    kernel, stride, padding, dilation = (each_of(one, dims) for one in settings)
    places = list(sizes[2:])
    for dim, size in enumerate(places):
        width, step, edge, spread = kernel[dim], stride[dim], padding[dim], dilation[dim]
        require(2 * edge <= width and step > 0)
        count = _steps(size + (step - 1 if ceil_mode else 0), width, step, padding=edge, dilation=spread)
        if ceil_mode and (count - 1) * step >= size + edge:
            count -= 1
        require(count > 0 and size + 2 * edge >= spread * (width - 1) + 1)
        places[dim] = count
    return AbstractTensor((*sizes[:2], *places), order_like(x), "own")


def adaptively_pooled(x: Any, output_size: Any, dims: int) -> AbstractTensor:
    """Return what a pooling layer gives that is told the sizes of its result.

    Args:
        x: ``(N, C, *)``.
        output_size: These sizes; None for one that stays.
        dims: How many dimensions are pooled.
    """
    sizes = tensor_of(x).sizes
    require(len(sizes) == dims + 2)
    wanted = (output_size,) * dims if output_size.__class__ is int else tuple(output_size)
    require(dims > 1 or None not in wanted)
    places = [size if one is None else one for size, one in zip(sizes[2:], wanted, strict=True)]
    require(all(type(one) is int and one > 0 for one in places))
    is_one = math.prod(places) == 1 and order_like(x) == "contiguous"
    return AbstractTensor((*sizes[:2], *places), "contiguous" if is_one else "unknown", "own")


def adaptive_pooling(dims: int) -> Callable[..., AbstractTensor]:
    """Return the shape function of a function that is told the sizes of its result."""

    def apply(x: Any, /, output_size: Any) -> AbstractTensor:
        return adaptively_pooled(x, output_size, dims)

    return apply


def normed_with_statistics(
    x: Any, statistics: tuple[Any, Any], weight: Any, bias: Any, *, is_trained: Any = False
) -> AbstractTensor:
    """Return what a batch norm gives that knows its statistics; of weights there are sizes, or abstract tensors."""
    x = tensor_of(x)
    count = (x.sizes[1],)
    if is_trained is True:  # Without statistics that it would write to; those of one value say nothing.
        require(statistics == (None, None) and math.prod(x.sizes) > x.sizes[1])
    else:
        require(is_trained is False and sizes_of(statistics[0]) == count and sizes_of(statistics[1]) == count)
        for one in statistics:  # Torch computes no gradients for them. Layers look at theirs themselves.
            is_known = one.__class__ is not AbstractTensor or one.memory == "given"
            require(is_known and not getattr(one, "requires_gradient", False))
    require(weight is None or sizes_of(weight) == count)
    require(bias is None or sizes_of(bias) == count)
    return AbstractTensor(x.sizes, order_like(x), "own")


def _normalized_by(x: AbstractTensor, sizes: Any) -> tuple[int, ...]:
    """Return the sizes of the last dimensions, over which a norm goes."""
    require(isinstance(sizes, (list, tuple)))
    found = tuple(cast("Sequence[Any]", sizes))
    require(found and x.sizes[-len(found) :] == found and all(type(one) is int for one in found))
    return found


def layer_normed(
    x: Any, /, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> AbstractTensor:
    """Return what a layer norm gives; of weights there are sizes, or abstract tensors."""
    x = tensor_of(x)
    normalized = _normalized_by(x, normalized_shape)
    require(is_positive(eps))
    require(weight is None or sizes_of(weight) == normalized)
    require(bias is None or sizes_of(bias) == normalized)
    return AbstractTensor(x.sizes, "contiguous", "own")


def normed_by_squares(
    x: Any, /, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> AbstractTensor:
    """Return what `torch.nn.functional.rms_norm` gives; of a weight there are sizes, or an abstract tensor."""
    x = tensor_of(x)
    normalized = _normalized_by(x, normalized_shape)
    require(eps is None or is_positive(eps))
    require(weight is None or sizes_of(weight) == normalized)
    return AbstractTensor(x.sizes, "unknown", "own")


def group_normed(
    x: Any, /, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> AbstractTensor:
    """Return what a group norm gives; of weights there are sizes, or abstract tensors."""
    sizes = tensor_of(x).sizes
    channels = sizes[1]
    require(type(num_groups) is int and num_groups > 0 and channels % num_groups == 0)
    require(math.prod(sizes) // num_groups > 1 and is_positive(eps))
    require(all(one is None or sizes_of(one) == (channels,) for one in (weight, bias)))
    return AbstractTensor(sizes, order_like(x), "own")


def normed(
    x: Any,
    /,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> AbstractTensor:
    """Return what `torch.nn.functional.batch_norm` gives."""
    require(is_number(momentum) and is_positive(eps) and len(tensor_of(x).sizes) > 1)
    return normed_with_statistics(x, (running_mean, running_var), weight, bias, is_trained=training)


def max_pooling(dims: int) -> Callable[..., AbstractTensor]:
    """Return the shape function of a function that takes the largest of the values in each window."""

    def apply(
        x: Any,
        /,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: Any = False,
        return_indices: Any = False,
    ) -> AbstractTensor:
        require(return_indices is False)
        settings = kernel_size, kernel_size if stride is None else stride, padding, dilation
        return pooled(x, settings, dims, ceil_mode=ceil_mode)

    return apply


def average_pooling(dims: int) -> Callable[..., AbstractTensor]:
    """Return the shape function of a function that takes the mean of the values in each window."""

    def apply(
        x: Any,
        /,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: Any = False,
        count_include_pad: Any = True,
    ) -> AbstractTensor:
        require(type(count_include_pad) is bool)
        settings = kernel_size, kernel_size if stride is None else stride, padding, 1
        return pooled(x, settings, dims, ceil_mode=ceil_mode)

    return apply


def interpolated(
    x: Any,
    /,
    size: Any = None,
    scale_factor: Any = None,
    mode: Any = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: Any = False,
) -> AbstractTensor:
    """Return what an interpolation of ``(N, C, H, W)`` gives."""
    planes = 2
    batch, channels, *places = tensor_of(x).sizes
    require(len(places) == planes and mode in {"nearest", "bilinear"} and recompute_scale_factor is None)
    require(
        antialias is False
        and (
            (align_corners is None or align_corners is False) if mode == "bilinear" else align_corners is None
        )
    )
    if scale_factor is None:
        wanted = each_of(size, planes)
    else:
        factors = tuple(scale_factor) if isinstance(scale_factor, (list, tuple)) else (scale_factor,) * planes
        require(size is None and all(map(is_number, factors)))
        wanted = tuple(math.floor(one * factor) for one, factor in zip(places, factors, strict=True))
    require(min(wanted) > 0)
    return new_tensor((batch, channels, *wanted), order_like(x))


def padded(x: Any, /, pad: Any, mode: Any = "constant", value: Any = None) -> AbstractTensor:
    """Return what padding with a number gives."""
    sizes = list(tensor_of(x).sizes)
    amounts: tuple[Any, ...] = tuple(pad)
    require(mode == "constant" and (value is None or is_number(value)))
    require(len(amounts) % 2 == 0 < len(amounts) <= 2 * len(sizes))
    require(all(type(one) is int and one >= 0 for one in amounts))
    for number, amount in enumerate(amounts):
        sizes[-1 - number // 2] += amount
    return new_tensor(sizes, order_like(x))

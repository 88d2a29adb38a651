"""What layers of TensorRT compute, as its documentation says, in PyTorch. Part of the test tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812 - the name everybody knows it by

from fxplug_tensorrt.testing.sampling import resized, sampled, sliced

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMULAS"]

_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "EXP": torch.exp, "LOG": torch.log, "SQRT": torch.sqrt, "RECIP": torch.reciprocal, "ABS": torch.abs,
    "NEG": torch.neg, "SIN": torch.sin, "COS": torch.cos, "TAN": torch.tan, "SINH": torch.sinh, "COSH": torch.cosh,
    "ASIN": torch.asin, "ACOS": torch.acos, "ATAN": torch.atan, "ASINH": torch.asinh, "ACOSH": torch.acosh,
    "ATANH": torch.atanh, "CEIL": torch.ceil, "FLOOR": torch.floor, "ERF": torch.erf, "NOT": torch.logical_not,
    "SIGN": torch.sign, "ROUND": torch.round, "ISINF": torch.isinf, "ISNAN": torch.isnan,
}  # fmt: skip
_BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add, "PROD": torch.mul, "MAX": torch.maximum, "MIN": torch.minimum, "SUB": torch.sub,
    "POW": torch.pow, "FLOOR_DIV": torch.floor_divide, "AND": torch.logical_and, "OR": torch.logical_or,
    "XOR": torch.logical_xor, "EQUAL": torch.eq, "GREATER": torch.gt, "LESS": torch.lt,
    "DIV": lambda x, y: torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc"),
}  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    "RELU": lambda x, a, b: F.relu(x),
    "SIGMOID": lambda x, a, b: torch.sigmoid(x),
    "TANH": lambda x, a, b: torch.tanh(x),
    "LEAKY_RELU": lambda x, a, b: F.leaky_relu(x, a),
    "ELU": lambda x, a, b: F.elu(x, a),
    "CLIP": lambda x, a, b: x.clamp(a, b),
    "HARD_SIGMOID": lambda x, a, b: (x * a + b).clamp(0, 1),
    "GELU_ERF": lambda x, a, b: F.gelu(x),
    "GELU_TANH": lambda x, a, b: F.gelu(x, approximate="tanh"),
}


def _activation(layer: Any) -> torch.Tensor:
    return _ACTIVATIONS[layer.type](layer.inputs[0], layer.alpha, layer.beta)


def _concatenation(layer: Any) -> torch.Tensor:
    return torch.cat(layer.inputs, layer.axis)


def _constant(layer: Any) -> torch.Tensor:
    found = layer.weights("weights", tuple(layer.shape))
    return found.to(layer.dtype())


def _convolution(layer: Any) -> torch.Tensor:
    x = layer.inputs[0]
    sizes = (layer.num_output_maps, x.shape[1] // layer.num_groups, *layer.kernel_size_nd)
    kernel, bias = layer.given(1), layer.given(2)
    kernel = layer.weights("kernel", sizes) if kernel is None else kernel
    bias = layer.weights("bias", (-1,)) if bias is None else bias
    if tuple(layer.pre_padding) != tuple(layer.post_padding):
        raise NotImplementedError("padding differs before and after")
    function = (F.conv2d, F.conv3d)[len(sizes) - 4]
    return function(
        x,
        kernel,
        bias,
        tuple(layer.stride_nd),
        tuple(layer.pre_padding),
        tuple(layer.dilation_nd),
        layer.num_groups,
    )


def _deconvolution(layer: Any) -> torch.Tensor:
    x = layer.inputs[0]
    sizes = (x.shape[1], layer.num_output_maps // layer.num_groups, *layer.kernel_size_nd)
    kernel, bias = layer.given(1), layer.given(2)
    kernel = layer.weights("kernel", sizes) if kernel is None else kernel
    bias = layer.weights("bias", (-1,)) if bias is None else bias
    function = (F.conv_transpose2d, F.conv_transpose3d)[len(sizes) - 4]
    whole = function(
        x, kernel, bias, tuple(layer.stride_nd), 0, 0, layer.num_groups, tuple(layer.dilation_nd)
    )
    for dim, (before, after) in enumerate(zip(layer.pre_padding, layer.post_padding, strict=True)):
        whole = whole.narrow(2 + dim, before, whole.shape[2 + dim] - before - after)
    return whole


def _cumulative(layer: Any) -> torch.Tensor:
    axis = int(layer.inputs[1])
    x = layer.inputs[0]
    if layer.op != "SUM" or layer.reverse:
        raise NotImplementedError("it accumulates otherwise")
    found = x.cumsum(axis).to(x.dtype)
    return found - x if layer.exclusive else found


def _gather(layer: Any) -> torch.Tensor:
    x, index = layer.inputs
    if int(index.min()) < 0:
        raise AssertionError("TensorRT gathers from places counted from the front")
    index = index.long()
    if layer.mode == "ELEMENT":
        return x.gather(layer.axis, index)
    if layer.mode == "ND":
        return x[tuple(index.unbind(-1))]
    sizes = x.shape[: layer.axis] + index.shape + x.shape[layer.axis + 1 :]
    return x.index_select(layer.axis, index.reshape(-1)).reshape(sizes)


def _matrix_multiply(layer: Any) -> torch.Tensor:
    first, second = layer.inputs
    turned = [layer.op0, layer.op1]
    first, second = (
        value.transpose(-1, -2) if operation == "TRANSPOSE" else value
        for value, operation in zip((first, second), turned, strict=True)
    )
    return first @ second


def _axes(mask: int, rank: int) -> tuple[int, ...]:
    return tuple(dim for dim in range(rank) if mask >> dim & 1)


def _normalization(layer: Any) -> torch.Tensor:
    x, scale, bias = layer.inputs
    axes = _axes(layer.axes, x.dim())
    mean = x.mean(axes, keepdim=True)
    variance = (x - mean).square().mean(axes, keepdim=True)
    return (x - mean) / (variance + layer.epsilon).sqrt() * scale + bias


def _pooling(layer: Any) -> torch.Tensor:
    x = layer.inputs[0]
    kernel, stride, pad = (tuple(part) for part in (layer.window_size_nd, layer.stride_nd, layer.padding_nd))
    ceil = layer.padding_mode == "EXPLICIT_ROUND_UP"
    if layer.type == "MAX":
        return (F.max_pool2d, F.max_pool3d)[len(kernel) - 2](x, kernel, stride, pad, ceil_mode=ceil)
    counts = not layer.average_count_excludes_padding
    return (F.avg_pool2d, F.avg_pool3d)[len(kernel) - 2](x, kernel, stride, pad, ceil, counts)


def _reduce(layer: Any) -> torch.Tensor:
    x = layer.inputs[0]
    axes = _axes(layer.axes, x.dim())
    if layer.op == "PROD":
        for axis in reversed(axes):
            x = x.prod(axis, keepdim=layer.keep_dims, dtype=x.dtype)
        return x
    if layer.op == "SUM":
        return x.sum(axes, keepdim=layer.keep_dims, dtype=x.dtype)
    return {"MAX": torch.amax, "MIN": torch.amin, "AVG": torch.mean}[layer.op](
        x, axes, keepdim=layer.keep_dims
    )


def _scatter(layer: Any) -> torch.Tensor:
    data, index, updates = layer.inputs
    if layer.mode == "ELEMENT":
        return data.scatter(layer.axis, index.long(), updates)
    made = data.clone()
    made[tuple(index.long().unbind(-1))] = updates
    return made


def _shuffle(layer: Any) -> torch.Tensor:
    x = layer.inputs[0]
    order = list(layer.first_transpose)[: x.dim()]
    x = x.permute(order) if order else x
    sizes = layer.given(1)
    wanted = layer.reshape_dims if sizes is None else sizes.tolist()
    return x if wanted is None else x.reshape(tuple(wanted))


def _slice(layer: Any) -> torch.Tensor:
    x = layer.inputs[0]
    start, sizes, steps = (
        list(part) if layer.given(number) is None else layer.given(number).tolist()
        for number, part in ((1, layer.start), (2, layer.shape), (3, layer.stride))
    )
    return sliced(x, start, sizes, steps, layer.mode, layer.given(4))


def _resize(layer: Any) -> torch.Tensor:
    sizes = layer.given(1)
    wanted = list(layer.shape) if sizes is None else sizes.tolist()
    return resized(layer.inputs[0], wanted, layer)


def _grid_sample(layer: Any) -> torch.Tensor:
    x, grid = layer.inputs
    return sampled(x, grid, layer.interpolation_mode, layer.sample_mode, align=layer.align_corners)


def _topk(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    (axis,) = _axes(layer.axes, layer.inputs[0].dim())
    values, places = layer.inputs[0].topk(layer.k, axis, largest=layer.op == "MAX")
    return values, places.to(layer.dtype(1))


def _softmax(layer: Any) -> torch.Tensor:
    (axis,) = _axes(layer.axes, layer.inputs[0].dim())
    return layer.inputs[0].softmax(axis)


def _select(layer: Any) -> torch.Tensor:
    return torch.where(*layer.inputs)


def _same(layer: Any) -> torch.Tensor:
    return layer.inputs[0].to(layer.dtype())


def _quantize(layer: Any) -> torch.Tensor:
    values = layer.inputs[0].to(torch.float32) / _scales(layer)
    if layer.dtype().is_floating_point:
        limits = torch.finfo(layer.dtype())
        return values.clamp(limits.min, limits.max).to(layer.dtype())
    return values.round().clamp(-128, 127).to(layer.dtype())


def _dequantize(layer: Any) -> torch.Tensor:
    return (layer.inputs[0].to(torch.float32) * _scales(layer)).to(layer.dtype())


def _scales(layer: Any) -> torch.Tensor:
    if layer.given(2) is not None:
        raise NotImplementedError("it has a zero point")
    x, scale = layer.inputs[:2]
    return scale.reshape([-1 if dim == layer.axis else 1 for dim in range(x.dim())]) if scale.dim() else scale


def _elementwise(layer: Any) -> torch.Tensor:
    first, second = layer.inputs
    if first.dtype is not second.dtype or first.dim() != second.dim():
        raise AssertionError(f"layer {layer.name!r} mixes {first.dtype} and {second.dtype}")
    return _BINARY[layer.op](first, second)


FORMULAS: dict[str, Callable[[Any], Any]] = {
    "ACTIVATION": _activation,
    "CAST": _same,
    "CONCATENATION": _concatenation,
    "CONSTANT": _constant,
    "CONVOLUTION": _convolution,
    "CUMULATIVE": _cumulative,
    "DECONVOLUTION": _deconvolution,
    "DEQUANTIZE": _dequantize,
    "ELEMENTWISE": _elementwise,
    "GATHER": _gather,
    "GRID_SAMPLE": _grid_sample,
    "IDENTITY": _same,
    "MATRIX_MULTIPLY": _matrix_multiply,
    "NORMALIZATION": _normalization,
    "POOLING": _pooling,
    "QUANTIZE": _quantize,
    "REDUCE": _reduce,
    "RESIZE": _resize,
    "SCATTER": _scatter,
    "SELECT": _select,
    "SHAPE": lambda layer: torch.tensor(tuple(layer.inputs[0].shape)),
    "SHUFFLE": _shuffle,
    "SLICE": _slice,
    "SOFTMAX": _softmax,
    "TOPK": _topk,
    "UNARY": lambda layer: _UNARY[layer.op](layer.inputs[0]),
}
"""Kind of a layer -> what it computes."""

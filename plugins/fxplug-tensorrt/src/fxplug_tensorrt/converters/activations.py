"""Activations, softmax among them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug_tensorrt.network import Conversion, Value

__all__ = ["records"]

aten = torch.ops.aten


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def _relu(build: Conversion, x: Value) -> Value:
    return build.activation("RELU", x) if x.is_floating else x.maximum(0)


def _plain(kind: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value) -> Value:
        return build.activation(kind, x.to(build.like.dtype))

    return convert


def _sigmoid(x: Value) -> Value:
    return x.build.activation("SIGMOID", x)


def _silu(build: Conversion, x: Value) -> Value:
    return x * _sigmoid(x)


def _softplus_of(x: Value) -> Value:
    """Return log(1 + exp(x)), without exp of what is large."""
    return x.maximum(0.0) + ((-x.unary("ABS")).unary("EXP") + 1.0).unary("LOG")


def _mish(build: Conversion, x: Value) -> Value:
    return x * build.activation("TANH", _softplus_of(x))


def _softplus(build: Conversion, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = x * beta
    return build.select(scaled > threshold, x, _softplus_of(scaled) / beta)


def _log_sigmoid(build: Conversion, x: Value) -> tuple[Value, None]:
    return -_softplus_of(-x), None


def _hard_sigmoid(x: Value) -> Value:
    return x.build.activation("HARD_SIGMOID", x, 1 / 6, 0.5)


def _hardsigmoid(build: Conversion, x: Value) -> Value:
    return _hard_sigmoid(x)


def _hardswish(build: Conversion, x: Value) -> Value:
    return x * _hard_sigmoid(x)


def _hardtanh(build: Conversion, x: Value, low: Any = -1, high: Any = 1) -> Value:
    if not x.is_floating:
        return x.maximum(low).minimum(high)
    return build.activation("CLIP", x, float(low), float(high))


def _gelu(build: Conversion, x: Value, approximate: str = "none") -> Value:
    return build.activation("GELU_TANH" if approximate == "tanh" else "GELU_ERF", x)


def _leaky_relu(build: Conversion, x: Value, slope: float = 0.01) -> Value:
    return build.activation("LEAKY_RELU", x, float(slope))


def _elu(
    build: Conversion, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Value:
    if input_scale == 1:
        made = build.activation("ELU", x, float(alpha))
    else:
        below = ((x * input_scale).minimum(0.0).unary("EXP") - 1.0) * alpha
        made = build.select(x > 0, x, below)
    return made if scale == 1 else made * scale


def _celu(build: Conversion, x: Value, alpha: float = 1.0) -> Value:
    return _elu(build, x, alpha, 1.0, 1 / alpha)


def _prelu(build: Conversion, x: Value, weight: Value) -> Value:
    return build.select(x > 0, x, x * weight)


def _glu(build: Conversion, x: Value, dim: int = -1) -> Value:
    axis = x.axis(dim)
    half = x.known_size(axis) // 2
    return build.part(x, axis, 0, half) * _sigmoid(build.part(x, axis, half, half))


def _threshold(build: Conversion, x: Value, threshold: Any, value: Any) -> Value:
    return build.select(x > threshold, x, value)


def _hardshrink(build: Conversion, x: Value, width: float = 0.5) -> Value:
    return build.select((x > width) | (x < -width), x, 0.0)


def _softshrink(build: Conversion, x: Value, width: float = 0.5) -> Value:
    return (x - width).maximum(0.0) + (x + width).minimum(0.0)


def _softmax(build: Conversion, x: Value, dim: int, half_to_float: bool = False) -> Value:  # noqa: FBT001, FBT002
    return build.softmax(x.to(build.like.dtype), dim)


def _log_softmax(build: Conversion, x: Value, dim: int, half_to_float: bool = False) -> Value:  # noqa: FBT001, FBT002
    value = x.to(build.like.dtype)
    apart = value - value.reduce("MAX", [dim], keep=True)
    return apart - apart.unary("EXP").reduce("SUM", [dim], keep=True).unary("LOG")


def _safe_softmax(build: Conversion, x: Value, dim: int, dtype: Any = None) -> Value:
    """Return the softmax, and zeros where everything is masked."""
    value = x.to(build.like.dtype)
    hidden = value.reduce("MAX", [dim], keep=True).equals(-math.inf)
    return build.select(hidden, 0.0, build.softmax(build.select(hidden, 0.0, value), dim))


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.relu.default, _relu),
    (aten.sigmoid.default, _plain("SIGMOID")),
    (aten.tanh.default, _plain("TANH")),
    (aten.silu.default, _silu),
    (aten.mish.default, _mish),
    (aten.softplus.default, _softplus),
    (aten.log_sigmoid_forward.default, _log_sigmoid),
    (aten.hardsigmoid.default, _hardsigmoid),
    (aten.hardswish.default, _hardswish),
    (aten.hardtanh.default, _hardtanh),
    (aten.gelu.default, _gelu),
    (aten.leaky_relu.default, _leaky_relu),
    (aten.elu.default, _elu),
    (aten.celu.default, _celu),
    (aten._prelu_kernel.default, _prelu),
    (aten.glu.default, _glu),
    (aten.threshold.default, _threshold),
    (aten.hardshrink.default, _hardshrink),
    (aten.softshrink.default, _softshrink),
    (aten._softmax.default, _softmax),
    (aten._log_softmax.default, _log_softmax),
    (aten._safe_softmax.default, _safe_softmax),
]

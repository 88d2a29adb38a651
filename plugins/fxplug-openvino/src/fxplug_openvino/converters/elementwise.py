"""Operators that compute every element by itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_openvino.conversion import Conversion, ConverterRecord, Value
from fxplug_openvino.converters.special import divided_whole, wrapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["records"]

aten = torch.ops.aten

_SAME_NAME = (
    *("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh"),
    *("cosh", "asinh", "acosh", "atanh", "erf", "floor", "abs", "sign", "mish"),
)
_OTHER_NAME = {
    "ceil": "ceiling",
    "neg": "negative",
    "hardswish": "hswish",
    "hardsigmoid": "hsigmoid",
}
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for name in _SAME_NAME:
        yield ConverterRecord(getattr(aten, name).default, _unary(name))
    for name, operation in _OTHER_NAME.items():
        function = _unary(operation)
        yield ConverterRecord(getattr(aten, name).default, wrapping(function) if name == "neg" else function)
    for name, function in _FORMULAS.items():
        target = getattr(aten, name).default
        yield ConverterRecord(target, wrapping(function) if function in _WRAPPING else function)
    for name, operation in _COMPARISONS.items():
        for overload in ("Tensor", "Scalar"):
            yield ConverterRecord(getattr(getattr(aten, name), overload), _comparison(operation))
    for target, function in _OTHERS:
        yield ConverterRecord(target, wrapping(function) if function in _WRAPPING else function)


def _unary(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value) -> Any:
        return getattr(build.ops, operation)(build.cast(x, build.like.dtype))

    return convert


def _comparison(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, other: Any) -> Any:
        first, second = _promoted(build, x, other)
        return getattr(build.ops, operation)(first, second)

    return convert


def _promoted(build: Conversion, x: Any, other: Any) -> tuple[Any, Any]:
    """Return two operands in the dtype that PyTorch compares them in."""
    dtype = torch.result_type(getattr(x, "like", x), getattr(other, "like", other))
    return build.cast(x, dtype), build.cast(other, dtype)


def _both(build: Conversion, x: Any, other: Any) -> tuple[Any, Any]:
    """Return two operands in the dtype of the result."""
    return build.cast(x, build.like.dtype), build.cast(other, build.like.dtype)


def _scaled(build: Conversion, value: Any, alpha: Any) -> Any:
    return value if alpha == 1 else build.ops.multiply(value, build.constant(alpha, build.like.dtype))


def _add(build: Conversion, x: Any, other: Any, alpha: Any = 1) -> Any:
    first, second = _both(build, x, other)
    if build.like.dtype is torch.bool:
        return build.ops.logical_or(first, second)
    return build.ops.add(first, _scaled(build, second, alpha))


def _sub(build: Conversion, x: Any, other: Any, alpha: Any = 1) -> Any:
    first, second = _both(build, x, other)
    return build.ops.subtract(first, _scaled(build, second, alpha))


def _rsub(build: Conversion, x: Any, other: Any, alpha: Any = 1) -> Any:
    first, second = _both(build, x, other)
    return build.ops.subtract(second, _scaled(build, first, alpha))


def _mul(build: Conversion, x: Any, other: Any) -> Any:
    first, second = _both(build, x, other)
    return (
        build.ops.logical_and(first, second)
        if build.like.dtype is torch.bool
        else build.ops.multiply(first, second)
    )


def _div(build: Conversion, x: Any, other: Any, rounding_mode: str | None = None) -> Any:
    first, second = _both(build, x, other)
    if rounding_mode is None:
        return build.ops.divide(first, second)
    if not build.like.dtype.is_floating_point:
        return divided_whole(build, first, second, rounding_mode)
    divided = build.ops.divide(first, second)
    return build.ops.floor(divided) if rounding_mode == "floor" else _truncated(build, divided)


def _truncated(build: Conversion, value: Any) -> Any:
    zero = build.constant(0, build.like.dtype)
    return build.ops.select(build.ops.less(value, zero), build.ops.ceiling(value), build.ops.floor(value))


def _remainder(build: Conversion, x: Any, other: Any) -> Any:
    return build.ops.floor_mod(*_both(build, x, other))


def _fmod(build: Conversion, x: Any, other: Any) -> Any:
    return build.ops.mod(*_both(build, x, other))


def _pow(build: Conversion, x: Any, exponent: Any) -> Any:
    first, second = _both(build, x, exponent)
    return build.ops.power(first, second)


def _maximum(build: Conversion, x: Any, other: Any) -> Any:
    operation = build.ops.logical_or if build.like.dtype is torch.bool else build.ops.maximum
    return operation(*_both(build, x, other))


def _minimum(build: Conversion, x: Any, other: Any) -> Any:
    operation = build.ops.logical_and if build.like.dtype is torch.bool else build.ops.minimum
    return operation(*_both(build, x, other))


def _logical(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, other: Value) -> Any:
        return getattr(build.ops, operation)(build.cast(x, torch.bool), build.cast(other, torch.bool))

    return convert


def _bitwise(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, other: Any) -> Any:
        first, second = _both(build, x, other)
        kind = "logical" if build.like.dtype is torch.bool else "bitwise"
        return getattr(build.ops, f"{kind}_{operation}")(first, second)

    return convert


def _clamp(build: Conversion, x: Value, low: Any = None, high: Any = None) -> Any:
    dtype = build.like.dtype
    value = build.cast(x, dtype)
    if low is not None:
        value = build.ops.maximum(value, build.cast(low, dtype))
    return value if high is None else build.ops.minimum(value, build.cast(high, dtype))


def _clamp_max(build: Conversion, x: Value, high: Any) -> Any:
    return _clamp(build, x, None, high)


def _hardtanh(build: Conversion, x: Value, low: Any = -1, high: Any = 1) -> Any:
    return _clamp(build, x, low, high)


def _gelu(build: Conversion, x: Value, approximate: str = "none") -> Any:
    return build.ops.gelu(x.output, "tanh" if approximate == "tanh" else "erf")


def _leaky_relu(build: Conversion, x: Value, slope: float = 0.01) -> Any:
    return build.ops.prelu(x.output, build.constant([slope], x.dtype))


def _prelu(build: Conversion, x: Value, weight: Value) -> Any:
    zero = build.constant(0, x.dtype)
    below = build.ops.multiply(weight.output, build.ops.minimum(x.output, zero))
    return build.ops.add(build.ops.maximum(x.output, zero), below)


def _elu(
    build: Conversion, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Any:
    if input_scale != 1:
        zero = build.constant(0, x.dtype)
        inner = build.ops.multiply(x.output, build.constant(input_scale, x.dtype))
        below = build.ops.multiply(
            build.ops.subtract(build.ops.exp(build.ops.minimum(inner, zero)), build.constant(1, x.dtype)),
            build.constant(alpha, x.dtype),
        )
        made = build.ops.add(build.ops.maximum(x.output, zero), below)
    else:
        made = build.ops.elu(x.output, float(alpha))
    return made if scale == 1 else build.ops.multiply(made, build.constant(scale, x.dtype))


def _celu(build: Conversion, x: Value, alpha: float = 1.0) -> Any:
    return _elu(build, x, alpha, 1.0, 1 / alpha)


def _glu(build: Conversion, x: Value, dim: int = -1) -> Any:
    halves = build.ops.split(x.output, build.constant(x.axis(dim)), 2)
    return build.ops.multiply(halves.output(0), build.ops.sigmoid(halves.output(1)))


def _floor_divide(build: Conversion, x: Any, other: Any) -> Any:
    return _div(build, x, other, "floor")


def _softplus(build: Conversion, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Any:
    scaled = build.ops.multiply(x.output, build.constant(beta, x.dtype))
    made = build.ops.divide(build.ops.softplus(scaled), build.constant(beta, x.dtype))
    return build.ops.select(build.ops.greater(scaled, build.constant(threshold, x.dtype)), x.output, made)


def _round(build: Conversion, x: Value) -> Any:
    return x.output if not x.dtype.is_floating_point else build.ops.round(x.output, "half_to_even")


def _trunc(build: Conversion, x: Value) -> Any:
    return _truncated(build, x.output) if x.dtype.is_floating_point else x.output


def _rsqrt(build: Conversion, x: Value) -> Any:
    value = build.cast(x, build.like.dtype)
    return build.ops.divide(build.constant(1, build.like.dtype), build.ops.sqrt(value))


def _reciprocal(build: Conversion, x: Value) -> Any:
    return build.ops.divide(build.constant(1, build.like.dtype), build.cast(x, build.like.dtype))


def _log_of(base: float) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value) -> Any:
        value = build.ops.log(build.cast(x, build.like.dtype))
        return build.ops.multiply(value, build.constant(1 / math.log(base), build.like.dtype))

    return convert


def _exp2(build: Conversion, x: Value) -> Any:
    return build.ops.power(build.constant(2, build.like.dtype), build.cast(x, build.like.dtype))


def _logical_not(build: Conversion, x: Value) -> Any:
    return build.ops.logical_not(build.cast(x, torch.bool))


def _bitwise_not(build: Conversion, x: Value) -> Any:
    return build.ops.logical_not(x.output) if x.dtype is torch.bool else build.ops.bitwise_not(x.output)


def _isnan(build: Conversion, x: Value) -> Any:
    return build.ops.is_nan(x.output) if x.dtype.is_floating_point else _nowhere(build, x)


def _isinf(build: Conversion, x: Value) -> Any:
    return build.ops.is_inf(x.output) if x.dtype.is_floating_point else _nowhere(build, x)


def _nowhere(build: Conversion, x: Value) -> Any:
    return build.ops.not_equal(x.output, x.output)


def _log_sigmoid(build: Conversion, x: Value) -> tuple[Any, None]:
    zero = build.constant(0, x.dtype)
    return build.ops.subtract(zero, build.ops.softplus(build.ops.subtract(zero, x.output))), None


def _where(build: Conversion, condition: Value, x: Any, other: Any) -> Any:
    first, second = _both(build, x, other)
    return build.ops.select(build.cast(condition, torch.bool), first, second)


def _masked_fill(build: Conversion, x: Value, mask: Value, value: Any) -> Any:
    return build.ops.select(mask.output, build.cast(value, x.dtype), x.output)


def _addcmul(build: Conversion, x: Value, first: Value, second: Value, value: Any = 1) -> Any:
    dtype = build.like.dtype
    product = build.ops.multiply(build.cast(first, dtype), build.cast(second, dtype))
    return build.ops.add(build.cast(x, dtype), _scaled(build, product, value))


def _addcdiv(build: Conversion, x: Value, first: Value, second: Value, value: Any = 1) -> Any:
    dtype = build.like.dtype
    ratio = build.ops.divide(build.cast(first, dtype), build.cast(second, dtype))
    return build.ops.add(build.cast(x, dtype), _scaled(build, ratio, value))


def _lerp(build: Conversion, x: Value, end: Value, weight: Any) -> Any:
    moved = build.ops.multiply(build.cast(weight, x.dtype), build.ops.subtract(end.output, x.output))
    return build.ops.add(x.output, moved)


def _square(build: Conversion, x: Value) -> Any:
    return build.ops.multiply(x.output, x.output)


def _to_copy(build: Conversion, x: Value, **_: Any) -> Any:
    if build.like.device.type != "cpu":
        raise build.fail(f"it moves a tensor to {build.like.device}")
    return build.cast(x, build.like.dtype)


def _same(build: Conversion, x: Value, **_: Any) -> Any:
    return x.output


def _dropout(build: Conversion, x: Value, p: float, train: bool) -> Any:  # noqa: FBT001 - ATen's signature
    if train and p:
        raise build.fail("it draws random numbers; call eval() on the model before it is captured")
    return x.output


def _silu(build: Conversion, x: Value) -> Any:
    return build.ops.swish(x.output, build.constant(1.0, x.dtype))


_FORMULAS: dict[str, Callable[..., Any]] = {
    "silu": _silu,
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "_prelu_kernel": _prelu,
    "elu": _elu,
    "celu": _celu,
    "glu": _glu,
    "floor_divide": _floor_divide,
    "softplus": _softplus,
    "round": _round,
    "trunc": _trunc,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "log2": _log_of(2),
    "log10": _log_of(10),
    "exp2": _exp2,
    "logical_not": _logical_not,
    "bitwise_not": _bitwise_not,
    "isnan": _isnan,
    "isinf": _isinf,
    "log_sigmoid_forward": _log_sigmoid,
    "hardtanh": _hardtanh,
    "square": _square,
    "clone": _same,
    "alias": _same,
    "detach": _same,
    "lift_fresh_copy": _same,
    "contiguous": _same,
    "dropout": _dropout,
    "maximum": _maximum,
    "minimum": _minimum,
    "logical_and": _logical("logical_and"),
    "logical_or": _logical("logical_or"),
    "logical_xor": _logical("logical_xor"),
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp_max,
    "_to_copy": _to_copy,
}

_WRAPPING = {_add, _sub, _rsub, _mul, _pow, _addcmul, _square}
"""What may leave the range of narrow integers."""

_OTHERS: list[tuple[Any, Callable[..., Any]]] = [
    (aten.add.Tensor, _add),
    (aten.add.Scalar, _add),
    (aten.sub.Tensor, _sub),
    (aten.sub.Scalar, _sub),
    (aten.rsub.Tensor, _rsub),
    (aten.rsub.Scalar, _rsub),
    (aten.mul.Tensor, _mul),
    (aten.mul.Scalar, _mul),
    (aten.div.Tensor, _div),
    (aten.div.Scalar, _div),
    (aten.div.Tensor_mode, _div),
    (aten.div.Scalar_mode, _div),
    (aten.remainder.Tensor, _remainder),
    (aten.remainder.Scalar, _remainder),
    (aten.fmod.Tensor, _fmod),
    (aten.fmod.Scalar, _fmod),
    (aten.pow.Tensor_Tensor, _pow),
    (aten.pow.Tensor_Scalar, _pow),
    (aten.pow.Scalar, _pow),
    (aten.clamp.Tensor, _clamp),
    (aten.clamp_min.Tensor, _clamp),
    (aten.clamp_max.Tensor, _clamp_max),
    (aten.bitwise_and.Tensor, _bitwise("and")),
    (aten.bitwise_or.Tensor, _bitwise("or")),
    (aten.bitwise_xor.Tensor, _bitwise("xor")),
    (aten.bitwise_and.Scalar, _bitwise("and")),
    (aten.bitwise_or.Scalar, _bitwise("or")),
    (aten.bitwise_xor.Scalar, _bitwise("xor")),
    (aten.where.self, _where),
    (aten.where.ScalarOther, _where),
    (aten.where.ScalarSelf, _where),
    (aten.masked_fill.Scalar, _masked_fill),
    (aten.masked_fill.Tensor, _masked_fill),
    (aten.lerp.Tensor, _lerp),
    (aten.lerp.Scalar, _lerp),
    (aten.floor_divide.Scalar, _floor_divide),
]

"""Operators that compute every element by itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_tensorrt.conversion import ConverterRecord
from fxplug_tensorrt.network import Conversion, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["both", "records"]

aten = torch.ops.aten


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for name in _FLOATING:
        yield ConverterRecord(getattr(aten, name).default, _floating(name.upper()))
    for name, function in _FORMULAS.items():
        yield ConverterRecord(getattr(aten, name).default, _formula(function))
    for name, function in _COMPARISONS.items():
        for overload in ("Tensor", "Scalar"):
            yield ConverterRecord(getattr(getattr(aten, name), overload), _comparison(function))
    for target, function in _OTHERS:
        yield ConverterRecord(target, function)


# -- one operand


def _floating(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value) -> Value:
        return x.to(build.like.dtype).unary(operation)

    return convert


def _formula(function: Callable[[Value], Value]) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value) -> Value:
        return function(x.to(build.like.dtype))

    return convert


def _truncated(x: Value) -> Value:
    return x.build.select(x < 0, x.unary("CEIL"), x.unary("FLOOR"))


def _rounding(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value) -> Value:
        return x.unary(operation) if x.is_floating else x

    return convert


def _trunc(build: Conversion, x: Value) -> Value:
    return _truncated(x) if x.is_floating else x


def _round_decimals(build: Conversion, x: Value, decimals: int) -> Value:
    factor = 10.0**decimals
    return (x * factor).unary("ROUND") / factor


def _unsigned(operation: str) -> Callable[..., Any]:
    """Return a converter for what leaves truth values as they are."""

    def convert(build: Conversion, x: Value) -> Value:
        return x if x.dtype is torch.bool else x.unary(operation)

    return convert


def _sinc(x: Value) -> Value:
    turned = x * math.pi
    safe = x.build.select(turned.equals(0), 1.0, turned)
    return x.build.select(turned.equals(0), 1.0, safe.unary("SIN") / safe)


def _logit(build: Conversion, x: Value, eps: float | None = None) -> Value:
    value = x.to(build.like.dtype)
    if eps is not None:
        value = value.maximum(eps).minimum(1 - eps)
    return (value / (1 - value)).unary("LOG")


def _logical_not(build: Conversion, x: Value) -> Value:
    return ~x.to(torch.bool)


def _bitwise_not(build: Conversion, x: Value) -> Value:
    return ~x if x.dtype is torch.bool else -x - 1


def _is_nan(build: Conversion, x: Value) -> Value:
    return x.unary("ISNAN") if x.is_floating else _nowhere(x)


def _is_inf(build: Conversion, x: Value) -> Value:
    return x.unary("ISINF") if x.is_floating else _nowhere(x)


def _is_signed_inf(*, positive: bool) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value) -> Value:
        if not x.is_floating:
            return _nowhere(x)
        return x.unary("ISINF") & (x > 0 if positive else x < 0)

    return convert


def _nowhere(x: Value) -> Value:
    return ~x.equals(x)


def _signbit(build: Conversion, x: Value) -> Value:
    if x.dtype is torch.bool:
        return _nowhere(x)
    return _is_negative(x) if x.is_floating else x < 0


def _is_negative(x: Value) -> Value:
    """Return where there is a sign; that of a zero shows in what one divides by it."""
    return (x < 0) | (1.0 / x < 0)


def _nan_to_num(
    build: Conversion, x: Value, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Value:
    if not x.is_floating:
        return x
    limits = torch.finfo(x.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    infinite = build.select(x > 0, build.constant(high, x.dtype), low)
    value = build.select(x.unary("ISINF"), infinite, x)
    return build.select(x.unary("ISNAN"), 0.0 if nan is None else nan, value)


# -- two operands


def both(build: Conversion, *values: Any) -> list[Value]:
    """Return operands, which may be numbers, in the dtype of the result."""
    return [build.cast(value, build.like.dtype) for value in values]


def _promoted(build: Conversion, x: Any, other: Any) -> tuple[Value, Value]:
    """Return two operands in the dtype that PyTorch compares them in."""
    if isinstance(other, Value):
        # Sizes of one keep the difference between tensors of no dimension and others, which counts here.
        dtype = torch.result_type(*(torch.empty([1] * value.rank, dtype=value.dtype) for value in (x, other)))
    else:
        dtype = torch.result_type(torch.empty([1] * x.rank, dtype=x.dtype), other)
    return build.cast(x, dtype), build.cast(other, dtype)


def _comparison(function: Callable[[Value, Value], Value]) -> Callable[..., Any]:
    def convert(build: Conversion, x: Any, other: Any) -> Value:
        first, second = _promoted(build, x, other)
        if first.dtype is torch.bool:  # Only numbers have an order.
            first, second = first.to(torch.int32), second.to(torch.int32)
        return function(first, second)

    return convert


def _scaled(value: Value, alpha: Any) -> Value:
    return value if alpha == 1 else value * alpha


def _add(build: Conversion, x: Any, other: Any, alpha: Any = 1) -> Value:
    first, second = both(build, x, other)
    if build.like.dtype is torch.bool:
        return first | (second if alpha else _nowhere(second))
    return first + _scaled(second, alpha)


def _sub(build: Conversion, x: Any, other: Any, alpha: Any = 1) -> Value:
    first, second = both(build, x, other)
    return first - _scaled(second, alpha)


def _rsub(build: Conversion, x: Any, other: Any, alpha: Any = 1) -> Value:
    return _sub(build, other, x, alpha)


def _mul(build: Conversion, x: Any, other: Any) -> Value:
    first, second = both(build, x, other)
    return first & second if build.like.dtype is torch.bool else first * second


def _div(build: Conversion, x: Any, other: Any, rounding_mode: str | None = None) -> Value:
    first, second = both(build, x, other)
    if rounding_mode is None:
        return first / second
    if rounding_mode == "floor":
        return build.binary("FLOOR_DIV", first, second)
    if first.is_floating:
        return _truncated(first / second)
    whole = build.binary("FLOOR_DIV", first.unary("ABS"), second.unary("ABS"))
    return whole * first.unary("SIGN") * second.unary("SIGN")


def _floor_divide(build: Conversion, x: Any, other: Any) -> Value:
    return _div(build, x, other, "floor")


def _remainder(build: Conversion, x: Any, other: Any) -> Value:
    first, second = both(build, x, other)
    return first - build.binary("FLOOR_DIV", first, second) * second


def _fmod(build: Conversion, x: Any, other: Any) -> Value:
    first, second = both(build, x, other)
    return first - _div(build, first, second, "trunc") * second


def _pow(build: Conversion, x: Any, exponent: Any) -> Value:
    if isinstance(exponent, (int, float)) and isinstance(x, Value):
        value = x.to(build.like.dtype)
        if (known := _known_power(build, value, float(exponent))) is not None:
            return known
    first, second = both(build, x, exponent)
    if not first.is_floating:
        raise build.fail("TensorRT raises floating-point numbers to a power only")
    return build.binary("POW", first, second)


def _known_power(build: Conversion, value: Value, exponent: float) -> Value | None:
    if exponent in (1.0, 2.0, 3.0, 4.0):
        square = value * value
        return [value, square, square * value, square * square][int(exponent) - 1]
    if exponent == 0.5 and value.is_floating:
        return value.unary("SQRT")
    if exponent == -1.0 and value.is_floating:
        return value.unary("RECIP")
    return None


def _two(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Any, other: Any) -> Value:
        if build.like.dtype is torch.bool:
            first, second = (build.cast(value, torch.int32) for value in (x, other))
            return build.binary(operation, first, second).to(torch.bool)
        return build.binary(operation, *both(build, x, other))

    return convert


def _without_nan(operation: str) -> Callable[..., Any]:
    """Return a converter for the larger or smaller, where a number prevails over NaN."""

    def convert(build: Conversion, x: Any, other: Any) -> Value:
        first, second = both(build, x, other)
        if not first.is_floating:
            return build.binary(operation, first, second)
        found = build.binary(operation, first, second)
        found = build.select(first.unary("ISNAN"), second, found)
        return build.select(second.unary("ISNAN"), first, found)

    return convert


def _logical(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, other: Value) -> Value:
        return build.binary(operation, x.to(torch.bool), other.to(torch.bool))

    return convert


def _bitwise(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Any, other: Any) -> Value:
        first, second = both(build, x, other)
        if build.like.dtype is torch.bool:
            return build.binary(operation, first, second)
        signs = build.binary(operation, first < 0, second < 0)
        bits = build.binary(operation, _bits(first), _bits(second)).to(build.like.dtype)
        found = (bits * _powers(build, build.like.dtype, bits.rank)).reduce("SUM", [-1])
        return build.select(signs, found + torch.iinfo(build.like.dtype).min, found)

    return convert


def _bits(x: Value) -> Value:
    """Return the bits of whole numbers but their signs, along a new last dimension; TensorRT has no layers for them."""
    wide = x.unsqueeze(x.rank)
    shifted = x.build.binary("FLOOR_DIV", wide, _powers(x.build, x.dtype, wide.rank))
    return ~(shifted - x.build.binary("FLOOR_DIV", shifted, 2) * 2).equals(0)


def _powers(build: Conversion, dtype: torch.dtype, rank: int) -> Value:
    """Return the powers of two in a dtype of whole numbers, along the last of so many dimensions."""
    powers = torch.tensor([2**bit for bit in range(torch.iinfo(dtype).bits - 1)], dtype=dtype)
    return build.tensor(powers.reshape([1] * (rank - 1) + [-1]))


def _xlogy(build: Conversion, x: Any, other: Any) -> Value:
    first, second = both(build, x, other)
    zero = first.equals(0)
    product = build.select(zero, 0.0, first * build.select(zero, 1.0, second).unary("LOG"))
    return build.select(second.unary("ISNAN"), second, product)


def _hypot(build: Conversion, x: Value, other: Value) -> Value:
    first, second = (value.unary("ABS") for value in both(build, x, other))
    large, small = first.maximum(second), first.minimum(second)
    ratio = small / build.select(large.equals(0), 1.0, large)
    return large * (ratio * ratio + 1.0).unary("SQRT")


def _atan2(build: Conversion, y: Value, x: Value) -> Value:
    first, second = both(build, y, x)
    nowhere = second.equals(0)
    found = (first / build.select(nowhere, 1.0, second)).unary("ATAN")
    turned = build.select(_is_negative(first), found - math.pi, found + math.pi)
    found = build.select(second < 0, turned, found)
    along = build.select(
        first.equals(0),
        build.select(_is_negative(second), turned, first),
        first.unary("SIGN") * (math.pi / 2),
    )
    return build.select(nowhere, along, found)


def _copysign(build: Conversion, x: Any, other: Any) -> Value:
    first, second = both(build, x, other)
    size = first.unary("ABS")
    return build.select(_is_negative(second), -size, size)


def _heaviside(build: Conversion, x: Value, values: Value) -> Value:
    zeros, _ = build.aligned(build.constant(0, x.dtype), x)
    return build.select(x.equals(0), values, build.select(x > 0, zeros + 1, zeros))


def _logaddexp(base: float) -> Callable[..., Any]:
    factor = math.log(base)

    def convert(build: Conversion, x: Value, other: Value) -> Value:
        first, second = both(build, x, other)
        apart = (first - second).unary("ABS") * -factor
        return first.maximum(second) + (apart.unary("EXP") + 1.0).unary("LOG") / factor

    return convert


def _shift(*, left: bool) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, count: Any) -> Value:
        if not isinstance(count, int) or count < 0 or x.is_floating:
            raise build.fail("TensorRT shifts whole numbers by a number that is known")
        return x * 2**count if left else build.binary("FLOOR_DIV", x, 2**count)

    return convert


# -- three operands


def _where(build: Conversion, condition: Value, x: Any, other: Any) -> Value:
    first, second = both(build, x, other)
    if build.like.dtype is torch.bool:
        wanted = condition.to(torch.bool)
        return (wanted & first) | (~wanted & second)
    return build.select(condition.to(torch.bool), first, second)


def _masked_fill(build: Conversion, x: Value, mask: Value, value: Any) -> Value:
    return _where(build, mask, value, x)


def _clamp(build: Conversion, x: Value, low: Any = None, high: Any = None) -> Value:
    dtype = build.like.dtype
    value = x.to(dtype)
    if low is not None:
        value = value.maximum(build.cast(low, dtype))
    return value if high is None else value.minimum(build.cast(high, dtype))


def _clamp_max(build: Conversion, x: Value, high: Any) -> Value:
    return _clamp(build, x, None, high)


def _addcmul(build: Conversion, x: Value, first: Value, second: Value, value: Any = 1) -> Value:
    addend, one, other = both(build, x, first, second)
    return addend + _scaled(one * other, value)


def _addcdiv(build: Conversion, x: Value, first: Value, second: Value, value: Any = 1) -> Value:
    addend, one, other = both(build, x, first, second)
    return addend + _scaled(one / other, value)


def _lerp(build: Conversion, x: Value, end: Value, weight: Any) -> Value:
    return x + build.cast(weight, x.dtype) * (end - x)


# -- dtypes


def _to_copy(build: Conversion, x: Value, **options: Any) -> Value:
    device = options.get("device")
    if device is not None and torch.device(device).type == "meta":
        raise build.fail("it moves a tensor to where it has no data")
    return x.to(build.like.dtype)


def _same(build: Conversion, x: Value, **_: Any) -> Value:
    return x


_FLOATING = (
    *("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh"),
    *("atanh", "erf"),
)
_FORMULAS: dict[str, Callable[[Value], Value]] = {
    "reciprocal": lambda x: x.unary("RECIP"),
    "rsqrt": lambda x: x.unary("SQRT").unary("RECIP"),
    "log2": lambda x: x.unary("LOG") * (1 / math.log(2)),
    "log10": lambda x: x.unary("LOG") * (1 / math.log(10)),
    "log1p": lambda x: (x + 1.0).unary("LOG"),
    "exp2": lambda x: (x * math.log(2)).unary("EXP"),
    "expm1": lambda x: x.unary("EXP") - 1.0,
    "erfc": lambda x: 1.0 - x.unary("ERF"),
    "frac": lambda x: x - _truncated(x),
    "deg2rad": lambda x: x * (math.pi / 180),
    "rad2deg": lambda x: x * (180 / math.pi),
    "sinc": _sinc,
}
_COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {
    "eq": lambda x, other: x.equals(other),
    "ne": lambda x, other: ~x.equals(other),
    "lt": lambda x, other: x < other,
    "gt": lambda x, other: x > other,
    "le": lambda x, other: (x < other) | x.equals(other),
    "ge": lambda x, other: (x > other) | x.equals(other),
}

_OTHERS: list[tuple[Any, Callable[..., Any]]] = [
    (aten.abs.default, _unsigned("ABS")),
    (aten.neg.default, _unsigned("NEG")),
    (aten.sign.default, _unsigned("SIGN")),
    (aten.sgn.default, _unsigned("SIGN")),
    (aten.floor.default, _rounding("FLOOR")),
    (aten.ceil.default, _rounding("CEIL")),
    (aten.round.default, _rounding("ROUND")),
    (aten.round.decimals, _round_decimals),
    (aten.trunc.default, _trunc),
    (aten.logit.default, _logit),
    (aten.logical_not.default, _logical_not),
    (aten.bitwise_not.default, _bitwise_not),
    (aten.isnan.default, _is_nan),
    (aten.isinf.default, _is_inf),
    (aten.isposinf.default, _is_signed_inf(positive=True)),
    (aten.isneginf.default, _is_signed_inf(positive=False)),
    (aten.signbit.default, _signbit),
    (aten.nan_to_num.default, _nan_to_num),
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
    (aten.floor_divide.default, _floor_divide),
    (aten.floor_divide.Scalar, _floor_divide),
    (aten.remainder.Tensor, _remainder),
    (aten.remainder.Scalar, _remainder),
    (aten.fmod.Tensor, _fmod),
    (aten.fmod.Scalar, _fmod),
    (aten.pow.Tensor_Tensor, _pow),
    (aten.pow.Tensor_Scalar, _pow),
    (aten.pow.Scalar, _pow),
    (aten.maximum.default, _two("MAX")),
    (aten.minimum.default, _two("MIN")),
    (aten.fmax.default, _without_nan("MAX")),
    (aten.fmin.default, _without_nan("MIN")),
    (aten.logical_and.default, _logical("AND")),
    (aten.logical_or.default, _logical("OR")),
    (aten.logical_xor.default, _logical("XOR")),
    (aten.bitwise_and.Tensor, _bitwise("AND")),
    (aten.bitwise_or.Tensor, _bitwise("OR")),
    (aten.bitwise_xor.Tensor, _bitwise("XOR")),
    (aten.bitwise_and.Scalar, _bitwise("AND")),
    (aten.bitwise_or.Scalar, _bitwise("OR")),
    (aten.bitwise_xor.Scalar, _bitwise("XOR")),
    (aten.bitwise_and.Scalar_Tensor, _bitwise("AND")),
    (aten.bitwise_or.Scalar_Tensor, _bitwise("OR")),
    (aten.bitwise_xor.Scalar_Tensor, _bitwise("XOR")),
    (aten.bitwise_left_shift.Tensor_Scalar, _shift(left=True)),
    (aten.bitwise_right_shift.Tensor_Scalar, _shift(left=False)),
    (aten.__lshift__.Scalar, _shift(left=True)),
    (aten.__rshift__.Scalar, _shift(left=False)),
    (aten.xlogy.Tensor, _xlogy),
    (aten.hypot.default, _hypot),
    (aten.atan2.default, _atan2),
    (aten.copysign.Tensor, _copysign),
    (aten.heaviside.default, _heaviside),
    (aten.logaddexp.default, _logaddexp(math.e)),
    (aten.logaddexp2.default, _logaddexp(2.0)),
    (aten.where.self, _where),
    (aten.masked_fill.Scalar, _masked_fill),
    (aten.masked_fill.Tensor, _masked_fill),
    (aten.clamp.default, _clamp),
    (aten.clamp.Tensor, _clamp),
    (aten.clamp_min.default, _clamp),
    (aten.clamp_min.Tensor, _clamp),
    (aten.clamp_max.default, _clamp_max),
    (aten.clamp_max.Tensor, _clamp_max),
    (aten.addcmul.default, _addcmul),
    (aten.addcdiv.default, _addcdiv),
    (aten.lerp.Tensor, _lerp),
    (aten.lerp.Scalar, _lerp),
    (aten._to_copy.default, _to_copy),
    (aten.clone.default, _same),
    (aten.alias.default, _same),
    (aten.detach.default, _same),
    (aten.lift_fresh_copy.default, _same),
    (aten.lift_fresh.default, _same),
]

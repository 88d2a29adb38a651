"""Functions of single elements that OpenVINO has no operation for, written with those that it has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug_openvino.conversion import Conversion, ConverterRecord, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["divided_whole", "records", "wrapping"]

aten = torch.ops.aten
_NARROW = {torch.uint8: 8, torch.int8: 8, torch.int16: 16}
"""Dtype -> bits, of those in which OpenVINO keeps to the largest number where PyTorch starts again at the smallest."""


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    for target, function in _ALL:
        yield ConverterRecord(target, function)


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a converter that computes narrow integers as PyTorch does: what is too large starts again below."""

    def convert(build: Conversion, *args: Any, **kwargs: Any) -> Any:
        like = build.like
        if like.dtype not in _NARROW:
            return function(build, *args, **kwargs)
        wide = [_widened(build, value) for value in args]
        build.like = like.to(torch.int32)
        try:
            made = build.out(function(build, *wide, **kwargs))
        finally:
            build.like = like
        count = 1 << _NARROW[like.dtype]
        start = build.constant(0 if like.dtype is torch.uint8 else -count // 2, torch.int32)
        above = build.ops.bitwise_and(build.ops.subtract(made, start), build.constant(count - 1, torch.int32))
        return build.ops.convert(build.ops.add(above, start), build.type_of(like.dtype))

    return convert


def _widened(build: Conversion, value: Any) -> Any:
    if not isinstance(value, Value):
        return value
    return Value(build.cast(value, torch.int32), value.like.to(torch.int32))


def divided_whole(build: Conversion, x: Any, other: Any, rounding_mode: str) -> Any:
    """Return the quotient of whole numbers, whichever way OpenVINO itself rounds.

    It divides as floating-point numbers, so large ones are off by some; what is left over is divided again.
    """
    ops, zero = build.ops, build.constant(0, build.like.dtype)
    one = build.constant(1, build.like.dtype)
    quotient = ops.divide(x, other)
    for _ in range(2):
        rest = ops.subtract(x, ops.multiply(quotient, other))
        quotient = ops.add(quotient, ops.divide(rest, other))
    rest = ops.subtract(x, ops.multiply(quotient, other))
    is_rest = ops.not_equal(rest, zero)
    is_negative, by_negative = ops.less(x, zero), ops.less(other, zero)
    below, above = ops.subtract(quotient, one), ops.add(quotient, one)
    if rounding_mode == "floor":
        sign, better = by_negative, below
    else:
        sign, better = is_negative, ops.select(ops.equal(is_negative, by_negative), below, above)
    is_off = ops.logical_and(is_rest, ops.not_equal(ops.less(rest, zero), sign))
    return ops.select(is_off, better, quotient)


def _number(build: Conversion, value: float) -> Any:
    return build.constant(value, build.like.dtype)


def _value(build: Conversion, x: Any) -> Any:
    return build.cast(x, build.like.dtype)


def _expm1(build: Conversion, x: Value) -> Any:
    ops, value = build.ops, _value(build, x)
    half = ops.tanh(ops.multiply(value, _number(build, 0.5)))
    near = ops.divide(ops.multiply(half, _number(build, 2)), ops.subtract(_number(build, 1), half))
    is_near = ops.less(ops.abs(value), _number(build, 0.5))
    return ops.select(is_near, near, ops.subtract(ops.exp(value), _number(build, 1)))


def _log1p(build: Conversion, x: Value) -> Any:
    """Return the logarithm of what is close to one: the error of adding is taken out again."""
    ops, value, one = build.ops, _value(build, x), _number(build, 1)
    moved = ops.add(value, one)
    apart = ops.subtract(moved, one)
    is_plain = ops.logical_or(ops.equal(apart, _number(build, 0)), ops.is_inf(moved))
    exact = ops.multiply(ops.log(moved), ops.divide(value, ops.select(is_plain, one, apart)))
    return ops.select(ops.equal(apart, _number(build, 0)), value, ops.select(ops.is_inf(moved), moved, exact))


def _erfc(build: Conversion, x: Value) -> Any:
    return build.ops.subtract(_number(build, 1), build.ops.erf(_value(build, x)))


def _whole_part(build: Conversion, value: Any) -> Any:
    below = build.ops.less(value, _number(build, 0))
    return build.ops.select(below, build.ops.ceiling(value), build.ops.floor(value))


def _frac(build: Conversion, x: Value) -> Any:
    return build.ops.subtract(x.output, _whole_part(build, x.output))


def _round_decimals(build: Conversion, x: Value, decimals: int = 0) -> Any:
    if not x.dtype.is_floating_point:
        raise build.fail("whole numbers are not rounded to a decimal")
    # As PyTorch does: the power of ten is whole, so that it is exact.
    scale = _number(build, 10.0 ** abs(decimals))
    there, back = (
        (build.ops.multiply, build.ops.divide) if decimals >= 0 else (build.ops.divide, build.ops.multiply)
    )
    return back(build.ops.round(there(x.output, scale), "half_to_even"), scale)


def _logit(build: Conversion, x: Value, eps: float | None = None) -> Any:
    ops, value, one = build.ops, _value(build, x), _number(build, 1)
    if eps is not None:
        value = ops.minimum(ops.maximum(value, _number(build, eps)), _number(build, 1 - eps))
    return ops.log(ops.divide(value, ops.subtract(one, value)))


def _nan_to_num(
    build: Conversion,
    x: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Any:
    if not x.dtype.is_floating_point:
        return x.output
    limits, ops, zero = torch.finfo(x.dtype), build.ops, _number(build, 0)
    infinite = ops.is_inf(x.output)
    high = _number(build, limits.max if posinf is None else posinf)
    low = _number(build, limits.min if neginf is None else neginf)
    finite = ops.select(infinite, ops.select(ops.greater(x.output, zero), high, low), x.output)
    return ops.select(ops.is_nan(x.output), _number(build, nan or 0.0), finite)


def _is_finite(build: Conversion, x: Value) -> Any:
    ops = build.ops
    return ops.logical_not(ops.logical_or(ops.is_nan(x.output), ops.is_inf(x.output)))


def _threshold(build: Conversion, x: Value, threshold: float, value: float) -> Any:
    return build.ops.select(
        build.ops.less_equal(x.output, _number(build, threshold)), _number(build, value), x.output
    )


def _known(operation: str) -> Callable[..., Any]:
    """Return the converter of a larger or smaller number, where one that is none does not count."""

    def convert(build: Conversion, x: Value, other: Value) -> Any:
        first, second = _value(build, x), _value(build, other)
        ops, made = build.ops, getattr(build.ops, operation)
        if not build.like.dtype.is_floating_point:
            return made(first, second)
        inner = ops.select(ops.is_nan(second), first, made(first, second))
        return ops.select(ops.is_nan(first), second, inner)

    return convert


def _hypot(build: Conversion, x: Value, other: Value) -> Any:
    first, second = _value(build, x), _value(build, other)
    ops = build.ops
    return ops.sqrt(ops.add(ops.multiply(first, first), ops.multiply(second, second)))


def _logaddexp(build: Conversion, x: Value, other: Value) -> Any:
    ops, first, second = build.ops, _value(build, x), _value(build, other)
    apart = ops.abs(ops.subtract(first, second))
    return ops.add(ops.maximum(first, second), ops.softplus(ops.negative(apart)))


def _xlogy(build: Conversion, x: Value, other: Value) -> Any:
    ops, first, second = build.ops, _value(build, x), _value(build, other)
    made = ops.multiply(first, ops.log(second))
    zero = _number(build, 0)
    plain = ops.select(ops.equal(first, zero), zero, made)
    return ops.select(ops.is_nan(second), second, plain)


def _heaviside(build: Conversion, x: Value, other: Value) -> Any:
    ops, zero, one = build.ops, _number(build, 0), _number(build, 1)
    sides = ops.select(ops.greater(x.output, zero), one, zero)
    return ops.select(ops.equal(x.output, zero), other.output, sides)


def _is_negative(build: Conversion, value: Any) -> Any:
    """Return where floating-point numbers have a sign; that of a zero shows in what one divides by it."""
    ops, zero, one = build.ops, build.constant(0.0, torch.float32), build.constant(1.0, torch.float32)
    wide = ops.convert(value, "f32")
    return ops.logical_or(ops.less(wide, zero), ops.less(ops.divide(one, wide), zero))


def _signbit(build: Conversion, x: Value) -> Any:
    if x.dtype.is_floating_point:
        return _is_negative(build, x.output)
    if x.dtype is torch.bool:
        return build.ops.logical_and(x.output, build.ops.logical_not(x.output))
    return build.ops.less(x.output, build.constant(0, x.dtype))


def _copysign(build: Conversion, x: Any, other: Any) -> Any:
    first, second = _value(build, x), _value(build, other)
    size = build.ops.abs(first)
    return build.ops.select(_is_negative(build, second), build.ops.negative(size), size)


def _atan2(build: Conversion, x: Any, other: Any) -> Any:
    ops, zero, one, half = build.ops, *(_number(build, value) for value in (0, 1, math.pi / 2))
    first, second = _value(build, x), _value(build, other)
    whole = ops.multiply(half, _number(build, 2))
    are_infinite = ops.logical_and(ops.is_inf(first), ops.is_inf(second))
    height = ops.select(are_infinite, ops.sign(first), first)
    width = ops.select(are_infinite, ops.sign(second), second)
    is_upright = ops.equal(width, zero)
    angle = ops.atan(ops.divide(height, ops.select(is_upright, one, width)))
    is_below = _is_negative(build, first)
    turned = ops.select(is_below, ops.subtract(angle, whole), ops.add(angle, whole))
    sloped = ops.select(ops.less(width, zero), turned, angle)
    at_zero = ops.select(_is_negative(build, second), turned, first)
    upright = ops.select(ops.equal(height, zero), at_zero, ops.select(is_below, ops.negative(half), half))
    found = ops.select(is_upright, upright, sloped)
    return ops.select(ops.is_nan(first), first, found)


def _shifted(operation: str) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, count: Any) -> Any:
        return getattr(build.ops, operation)(x.output, build.cast(count, x.dtype))

    return convert


def _fill(build: Conversion, x: Value, value: Any) -> Any:
    return build.ops.broadcast(_value(build, value), build.shape_of(x))


def _filled(value: float | None) -> Callable[..., Any]:
    def convert(build: Conversion, x: Value, size: Any, *given: Any, **_: Any) -> Any:
        number = given[0] if value is None else value
        return build.ops.broadcast(_number(build, number), build.ints(list(size)))

    return convert


_ALL: list[tuple[Any, Callable[..., Any]]] = [
    (aten.expm1.default, _expm1),
    (aten.log1p.default, _log1p),
    (aten.erfc.default, _erfc),
    (aten.frac.default, _frac),
    (aten.round.decimals, _round_decimals),
    (aten.logit.default, _logit),
    (aten.nan_to_num.default, _nan_to_num),
    (aten.isfinite.default, _is_finite),
    (aten.threshold.default, _threshold),
    (aten.fmax.default, _known("maximum")),
    (aten.fmin.default, _known("minimum")),
    (aten.hypot.default, _hypot),
    (aten.logaddexp.default, _logaddexp),
    (aten.xlogy.Tensor, _xlogy),
    (aten.heaviside.default, _heaviside),
    (aten.signbit.default, _signbit),
    (aten.copysign.Tensor, _copysign),
    (aten.copysign.Scalar, _copysign),
    (aten.atan2.default, _atan2),
    (aten.__lshift__.Scalar, _shifted("bitwise_left_shift")),
    (aten.__rshift__.Scalar, _shifted("bitwise_right_shift")),
    (aten.fill.Scalar, _fill),
    (aten.fill.Tensor, _fill),
    (aten.new_zeros.default, _filled(0)),
    (aten.new_ones.default, _filled(1)),
    (aten.new_full.default, _filled(None)),
]

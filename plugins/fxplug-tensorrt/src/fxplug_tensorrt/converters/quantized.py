"""Quantized values: the operators by which plugins write them, as layers that TensorRT joins with what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import fxplug.semantics as _  # noqa: F401 - it registers the operators
from fxplug_tensorrt.conversion import ConverterRecord
from fxplug_tensorrt.eight_bits import EIGHT_BITS, FLOAT8, LOWERED_BY, dequantized, quantized
from fxplug_tensorrt.network import Conversion, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["records"]


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    ops = torch.ops.fxplug
    for target, function in (
        (ops.quantize_per_tensor.default, _for_all(_quantize)),
        (ops.quantize_per_tensor.tensor, _for_all(_quantize)),
        (ops.quantize_per_channel.default, _for_channels(_quantize)),
        (ops.dequantize_per_tensor.default, _for_all(_dequantize)),
        (ops.dequantize_per_tensor.tensor, _for_all(_dequantize)),
        (ops.dequantize_per_channel.default, _for_channels(_dequantize)),
    ):
        yield ConverterRecord(target, function)


def _for_all(function: Callable[..., Value]) -> Callable[..., Value]:
    """Return a converter for one scale and zero point."""

    def convert(
        build: Conversion, x: Value, scale: Any, zero_point: Any, *rest: Any, out_dtype: Any = None
    ) -> Value:
        steps, zeros = (_known(build, value).reshape([]) for value in (scale, zero_point))
        return function(build, x, steps, zeros, None, *rest)

    return convert


def _for_channels(function: Callable[..., Value]) -> Callable[..., Value]:
    """Return a converter for a scale and a zero point of each channel."""

    def convert(
        build: Conversion,
        x: Value,
        scales: Value,
        zero_points: Value,
        axis: int,
        *rest: Any,
        out_dtype: Any = None,
    ) -> Value:
        return function(build, x, _known(build, scales), _known(build, zero_points), x.axis(axis), *rest)

    return convert


def _known(build: Conversion, value: Any) -> torch.Tensor:
    """Return a scale or a zero point; TensorRT takes numbers that stand in the network."""
    if not isinstance(value, Value):
        return torch.tensor(float(value), dtype=torch.float64)  # PyTorch takes its reciprocal in these.
    if value.data is None:
        raise build.fail("its scale or zero point is computed by the program")
    return value.data.detach().to("cpu", torch.float32)


def _quantize(  # noqa: PLR0913, PLR0917 - the operator's signature
    build: Conversion,
    x: Value,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int | None,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Value:
    _check(build, x, scale, dtype)
    if dtype is FLOAT8:
        _check_origin(build, zero_point)
        return quantized(build, _within(build, x, scale, (low, high), axis), scale, dtype, axis)
    least, zero = low - LOWERED_BY[dtype], zero_point - LOWERED_BY[dtype]
    most = high - LOWERED_BY[dtype]
    is_whole = (least, most) == (-128, 127)
    if not zero.any():
        if not is_whole:
            x = _between(build, x, scale, (least, most), axis)
        return quantized(build, x, scale, dtype, axis)
    # TensorRT's layer knows no zero point: the numbers are made by others, and stored by it.
    steps = build.cast(x, torch.float32) * build.tensor(_along(1.0 / scale, axis, x))
    numbers = steps.unary("ROUND") + build.tensor(_along(zero, axis, x))
    if not is_whole:  # Otherwise what stores them does it.
        numbers = numbers.maximum(float(least)).minimum(float(most))
    return quantized(build, numbers, torch.ones(()), dtype)


def _within(
    build: Conversion, x: Value, scale: torch.Tensor, bounds: tuple[int, int], axis: int | None
) -> Value:
    """Return a value that is not larger than the bounds of floating-point numbers of eight bits.

    TensorRT's layer saturates at the largest of them, so that other bounds alone need layers of their own.
    """
    limits = torch.finfo(FLOAT8)
    return x if bounds == (limits.min, limits.max) else _between(build, x, scale, bounds, axis)


def _between(
    build: Conversion, x: Value, scale: torch.Tensor, bounds: tuple[int, int], axis: int | None
) -> Value:
    """Return a value that is not below and not above so many steps of its scale."""
    least, most = (build.tensor(_along(scale * bound, axis, x)) for bound in bounds)
    return build.cast(x, torch.float32).maximum(least).minimum(most)


def _check_origin(build: Conversion, zero_point: torch.Tensor) -> None:
    if zero_point.any():
        raise build.fail("it has a zero point, which TensorRT does not know for float8_e4m3fn")


def _dequantize(  # noqa: PLR0913, PLR0917 - the operator's signature
    build: Conversion,
    x: Value,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int | None,
    low: int,
    high: int,
    dtype: torch.dtype,
) -> Value:
    _check(build, x, scale, dtype)
    if dtype is FLOAT8:
        _check_origin(build, zero_point)
        return dequantized(build, x, scale, build.like.dtype, axis)
    zero = zero_point - LOWERED_BY[dtype]
    if not zero.any():
        return dequantized(build, x, scale, build.like.dtype, axis)
    numbers = dequantized(build, x, torch.ones(()), torch.float32)
    apart = numbers - build.tensor(_along(zero, axis, x))
    return (apart * build.tensor(_along(scale, axis, x))).to(build.like.dtype)


def _check(build: Conversion, x: Value, scale: torch.Tensor, dtype: torch.dtype) -> None:
    """Check what TensorRT does not take.

    Raises:
        NotConvertibleError: It is asked for.
    """
    if dtype not in EIGHT_BITS and dtype is not FLOAT8:
        raise build.fail(
            f"values are stored as {str(dtype).removeprefix('torch.')}; TensorRT quantizes to eight bits"
        )
    if not x.rank:
        raise build.fail("TensorRT quantizes no single numbers")
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise build.fail("its scale is not above zero, or not finite")


def _along(values: torch.Tensor, axis: int | None, x: Value) -> torch.Tensor:
    """Return one value for each channel, so that they broadcast along the axis."""
    values = values.to(torch.float32)
    if axis is None:
        return values
    return values.reshape([-1 if dim == axis else 1 for dim in range(x.rank)])

"""Quantized values: the operators by which plugins write them, as what OpenVINO runs in eight bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import fxplug.semantics as _  # noqa: F401 - it registers the operators
from fxplug_openvino.conversion import Conversion, ConverterRecord, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["records"]

_STORED = (torch.int8, torch.uint8)


def records() -> Iterator[ConverterRecord]:
    """Yield the converters."""
    ops = torch.ops.fxplug
    for target, function in (
        (ops.quantize_per_tensor.default, _quantize),
        (ops.quantize_per_tensor.tensor, _quantize),
        (ops.quantize_per_channel.default, _of_channels(_quantize)),
        (ops.dequantize_per_tensor.default, _dequantize),
        (ops.dequantize_per_tensor.tensor, _dequantize),
        (ops.dequantize_per_channel.default, _of_channels(_dequantize)),
    ):
        yield ConverterRecord(target, function)


def _of_channels(function: Callable[..., Any]) -> Callable[..., Any]:
    def convert(
        build: Conversion, x: Value, scales: Value, zero_points: Value, axis: int, *rest: Any, **named: Any
    ) -> Any:
        shape = [-1 if number == x.axis(axis) else 1 for number in range(x.rank)]
        spread = (_known(build, value).reshape(shape) for value in (scales, zero_points))
        return function(build, x, *spread, *rest, **named)

    return convert


def _known(build: Conversion, value: Any) -> torch.Tensor:
    """Return a scale or a zero point; OpenVINO knows a quantized value only by numbers that stand in the model."""
    if not isinstance(value, Value):
        return torch.tensor(float(value))
    if value.output.get_node().get_type_name() != "Constant" or value.like.is_meta:
        raise build.fail("its scale or zero point is computed by the program")
    return value.like.detach().to(torch.float32)


def _single(build: Conversion, value: Any) -> torch.Tensor:
    """Return a number, or the one element of a tensor; of many, as they are."""
    known = value if isinstance(value, torch.Tensor) else _known(build, value)
    return known.reshape([]) if known.numel() == 1 else known


def _quantize(
    build: Conversion,
    x: Value,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Any:
    """Write a `FakeQuantize` whose results are the stored integers; OpenVINO joins it with what follows.

    Where sums of 8-bit products saturate, the steps are written one by one instead. OpenVINO does not look for them,
    and computes in float32 what takes the integers.
    """
    if dtype not in _STORED:
        raise build.fail(
            f"values are stored as {str(dtype).removeprefix('torch.')}; OpenVINO quantizes to eight bits"
        )
    step, origin = _single(build, scale), _single(build, zero_point)
    values = build.cast(x, torch.float32)
    if not build.eight_bits():
        ops = build.ops
        steps = ops.round(ops.divide(values, build.tensor(step)), "half_to_even")
        kept = ops.clamp(ops.add(steps, build.tensor(origin)), float(quant_min), float(quant_max))
        return ops.convert(kept, build.type_of(dtype))
    made = build.ops.fake_quantize(
        values,
        build.tensor((quant_min - origin) * step),
        build.tensor((quant_max - origin) * step),
        build.constant(float(quant_min), torch.float32),
        build.constant(float(quant_max), torch.float32),
        quant_max - quant_min + 1,
    )
    return build.ops.convert(made, build.type_of(dtype))


def _dequantize(  # noqa: PLR0913 - the operator's signature
    build: Conversion,
    x: Value,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Any:
    if dtype not in _STORED:
        # PyTorch computes wider ones in double precision.
        raise build.fail(
            f"values are stored as {str(dtype).removeprefix('torch.')}; OpenVINO quantizes to eight bits"
        )
    ops, made, origin = build.ops, build.cast(x, torch.float32), _single(build, zero_point)
    if origin.any():
        made = ops.subtract(made, build.tensor(origin))
    made = ops.multiply(made, build.tensor(_single(build, scale)))
    wanted = build.like.dtype
    return made if wanted is torch.float32 else ops.convert(made, build.type_of(wanted))

"""Numbers of eight bits in a network: integers, and floating-point numbers.

TensorRT makes and reads them by layers that quantize and dequantize, whose zero point is 0. It has signed integers
only: unsigned ones are therefore held 128 lower inside of a network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fxplug_tensorrt.network import Conversion, Value

__all__ = [
    "EIGHT_BITS",
    "FLOAT8",
    "LOWERED_BY",
    "dequantized",
    "from_outside",
    "quantized",
    "stored",
    "to_outside",
]

LOWERED_BY = {torch.int8: 0, torch.uint8: 128}
"""Dtype -> by how much its values are lower inside of a network."""
EIGHT_BITS = tuple(LOWERED_BY)
FLOAT8 = torch.float8_e4m3fn
"""The floating-point numbers of eight bits that TensorRT has."""


def stored(data: torch.Tensor) -> torch.Tensor:
    """Return integers of eight bits as a network holds them."""
    return (data.to(torch.int16) - LOWERED_BY[data.dtype]).to(torch.int8)


def quantized(
    build: Conversion, x: Value, scale: torch.Tensor, dtype: torch.dtype, axis: int | None = None
) -> Value:
    """Return what a value is in steps of a scale, rounded, as the network holds numbers of eight bits.

    Args:
        build: The network.
        x: Of a floating-point dtype.
        scale: One number, or with `axis` one for each channel.
        dtype: Of PyTorch.
        axis: The dimension of the channels.
    """
    layer = build.add("quantize", x.output, _scale(build, scale), build.type_of(dtype))
    if axis is not None:
        layer.axis = axis
    return build.value(layer, dtype)


def dequantized(
    build: Conversion, x: Value, scale: torch.Tensor, dtype: torch.dtype, axis: int | None = None
) -> Value:
    """Return the products of numbers of eight bits, as the network holds them, and a scale.

    Args:
        build: The network.
        x: Of eight bits.
        scale: One number, or with `axis` one for each channel.
        dtype: Of the result.
        axis: The dimension of the channels.
    """
    layer = build.add("dequantize", x.output, _scale(build, scale), build.type_of(dtype))
    if axis is not None:
        layer.axis = axis
    return build.value(layer, dtype)


def from_outside(build: Conversion, given: Any) -> Value:
    """Return an input of unsigned integers, lowered."""
    wide = build.value(build.add("cast", given, build.type_of(torch.float32)), torch.float32)
    return quantized(build, wide - LOWERED_BY[torch.uint8], torch.ones(()), torch.uint8)


def to_outside(build: Conversion, value: Value) -> Any:
    """Return TensorRT's tensor of unsigned integers, no longer lowered, in floating-point numbers."""
    return (dequantized(build, value, torch.ones(()), torch.float32) + LOWERED_BY[torch.uint8]).output


def _scale(build: Conversion, scale: torch.Tensor) -> Any:
    """Return a scale as TensorRT's tensor; in float32 also where the network computes in fewer bits."""
    name = f"scale_{len(build.kept)}"
    data = scale.detach().to("cpu", torch.float32).contiguous()
    layer = build.add("constant", tuple(data.shape), build.keep(name, data, build.trt.DataType.FLOAT))
    layer.name = name
    return layer.get_output(0)

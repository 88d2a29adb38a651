"""How numbers are told by steps of one size: scale and zero point, and the way there and back."""

from __future__ import annotations

import ctypes
import functools
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "SMALLEST_SCALE",
    "Affine",
    "affine_of",
    "as_integers",
    "as_quantized",
    "dequantize",
    "expect_quantized_tensors",
    "quantize",
    "weight_scale",
]

SMALLEST_SCALE = 1e-30


class Affine(NamedTuple):
    """A number is ``(step - zero_point) * scale``."""

    scale: float
    zero_point: int


def affine_of(low: float, high: float, levels: int) -> Affine:
    """Return the steps from 0 to `levels` that reach from `low` to `high`, and hit 0 exactly.

    Paddings and ReLU need the 0, so the range is widened until it holds it.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    # As float32 keeps it: that is what the state of a module holds.
    scale = ctypes.c_float(max((high - low) / levels, SMALLEST_SCALE)).value
    return Affine(scale, min(max(round(-low / scale), 0), levels))


def quantize(values: Tensor, affine: Affine, levels: int) -> Tensor:
    """Return float32 values as uint8 steps, at most `levels`; halves are rounded to the even neighbour."""
    expect_quantized_tensors()
    steps = as_integers(torch.quantize_per_tensor(values, affine.scale, affine.zero_point, torch.quint8))
    return steps if levels == 255 else steps.clamp_(max=levels)


def dequantize(steps: Tensor, affine: Affine) -> Tensor:
    """Return the float32 values that uint8 steps stand for."""
    return as_quantized(steps, affine).dequantize()


def as_quantized(steps: Tensor, affine: Affine) -> Tensor:
    """Return uint8 steps as a tensor of the type ``torch.quint8``, in the same memory."""
    expect_quantized_tensors()
    empty = torch.ops.aten._empty_affine_quantized.default(
        [0], dtype=torch.quint8, scale=affine.scale, zero_point=affine.zero_point
    )
    return empty.set_(steps.untyped_storage(), steps.storage_offset(), steps.shape, steps.stride())


def as_integers(quantized: Tensor) -> Tensor:
    """Return the steps of a tensor of the type ``torch.quint8``, in the same memory."""
    empty = torch.empty(0, dtype=torch.uint8, device="cpu")
    return empty.set_(
        quantized.untyped_storage(), quantized.storage_offset(), quantized.shape, quantized.stride()
    )


@functools.cache
def expect_quantized_tensors() -> None:
    """Make one quantized tensor, so that torch says here, and to nobody, that the type is deprecated.

    The type is used inside of functions alone: torch's fastest conversion and its pooling know no other.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.quantize_per_tensor(torch.zeros(1, dtype=torch.float32, device="cpu"), 1.0, 0, torch.quint8)


def weight_scale(weight: Tensor, *, per_channel: bool = True) -> Tensor:
    """Return the scale of symmetric int8 weights, one for each output channel; all are equal where one does for all."""
    largest = weight.abs().flatten(1).amax(dim=1)
    if not per_channel:
        largest = largest.amax().expand_as(largest)
    return (largest / 127).clamp_min(SMALLEST_SCALE).contiguous()

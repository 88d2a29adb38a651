"""Whether the processor sums up 8-bit products without losing anything."""

from __future__ import annotations

import functools
from typing import Any

import torch

from fxplug_openvino._engine import core, load_engine, load_operations

__all__ = ["is_exact_in_eight_bits"]

_CHANNELS = 64
_LARGEST_STEP = 255.0
_LARGEST_WEIGHT = 127


@functools.cache
def is_exact_in_eight_bits(device: str) -> bool:
    """Return whether a convolution in eight bits gives the sums that integers give.

    CPUs without VNNI add two products in 16 bits, where 2 * 255 * 127 does not fit, and OpenVINO lets them. A
    convolution of the largest numbers is run to find out, which takes some milliseconds once. Devices that are no CPU
    are believed.

    Args:
        device: OpenVINO's name of it.
    """
    if device.partition(".")[0] != "CPU":
        return True
    values = torch.full((1, _CHANNELS, 4, 4), _LARGEST_STEP).numpy()
    try:
        found = core().compile_model(_largest_sum(), device, {"INFERENCE_PRECISION_HINT": "f32"})([values])[0]
    except RuntimeError:
        return True  # It refuses what is built next, too, and that is reported.
    return bool((found == _CHANNELS * _LARGEST_STEP * _LARGEST_WEIGHT).all())


def _largest_sum() -> Any:
    """Return a model of one convolution that OpenVINO runs in eight bits."""
    engine, ops = load_engine(), load_operations()
    values = ops.parameter([1, _CHANNELS, 4, 4], engine.Type.f32)
    low, high = ops.constant(0.0, engine.Type.f32), ops.constant(_LARGEST_STEP, engine.Type.f32)
    steps = ops.fake_quantize(values, low, high, low, high, 256)
    weight = torch.full((_CHANNELS, _CHANNELS, 1, 1), _LARGEST_WEIGHT, dtype=torch.int8)
    stored = engine.op.Constant(engine.Tensor(weight.numpy()))
    scaled = ops.multiply(ops.convert(stored, engine.Type.f32), ops.constant(1.0, engine.Type.f32))
    made = ops.convolution(steps, scaled, [1, 1], [0, 0], [0, 0], [1, 1])
    return engine.Model([ops.result(made)], [values], "saturation")

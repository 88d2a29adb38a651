"""The int8 matrix product of PyTorch: the only module that knows by which operators it is done.

These are oneDNN's operators, the ones that PyTorch's own compiler emits for x86 CPUs. They take plain int8 and uint8
tensors; the older ``torch.ops.quantized`` ones need tensors of the type ``torch.qint8``, whose making is deprecated.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from fxplug_quant.errors import QuantizationError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["activation_levels", "pack_weight", "run_linear"]


def pack_weight(int_weight: Tensor) -> Tensor:
    """Return int8 weights, (out, in), in the layout that `run_linear` reads.

    The result is opaque: it can neither be copied nor compared nor saved.
    """
    return torch.ops.onednn.qlinear_prepack(int_weight, None)


def run_linear(
    activations: Tensor,
    scale: float,
    zero_point: int,
    packed: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return ``(activations - zero_point) * scale @ weight.T + bias`` in float32, the product taken in integers.

    Args:
        activations: uint8, at most `activation_levels`.
        scale: What one step of the activations is worth.
        zero_point: The step that stands for 0.
        packed: From `pack_weight`.
        weight_scale: float32, one per output feature.
        weight_zero_point: int32 zeros, one per output feature.
        bias: float32.
    """
    return torch.ops.onednn.qlinear_pointwise(
        activations,
        scale,
        zero_point,
        packed,
        weight_scale,
        weight_zero_point,
        bias,
        1.0,  # Scale and zero point of the output, which mean nothing for float32.
        0,
        torch.float32,
        "none",
        [],
        "",
    )


@functools.cache
def activation_levels() -> int:
    """Return the largest activation for which this CPU computes exactly: 255, or 127 where sums of pairs saturate.

    CPUs without VNNI add two products in 16 bits. A product of 255 and 127, twice, does not fit; of 127 and
    127 it does.

    Raises:
        QuantizationError: There is no int8 matrix product here.
    """
    try:
        for levels in (255, 127):
            if all(_is_exact(rows, levels) for rows in (1, 16)):
                return levels
        found = "its results are wrong"
    except (AttributeError, RuntimeError) as error:
        found = str(error).partition("\n")[0]
    raise QuantizationError(
        f"Cannot compute in int8: PyTorch {torch.__version__} has no working int8 linear operator of oneDNN on this "
        f"machine ({found}). Use a PyTorch build with oneDNN, such as the ones for x86-64 CPUs, or leave the pass out.",
        code="FXP-Q001",
    )


def _is_exact(rows: int, levels: int) -> bool:
    features, outputs = 64, 32
    packed = pack_weight(torch.full((outputs, features), 127, dtype=torch.int8))
    result = run_linear(
        torch.full((rows, features), levels, dtype=torch.uint8),
        1.0,
        0,
        packed,
        torch.ones(outputs),
        torch.zeros(outputs, dtype=torch.int32),
        None,
    )
    return bool((result == features * 127 * levels).all())

"""Modules that stand between float32 values and steps, and what computes on steps alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fxplug_quant.affine import Affine, as_integers, as_quantized, dequantize, quantize
from fxplug_quant.engine import activation_levels
from fxplug_quant.errors import QuantizationError
from fxplug_quant.inference import expect_finite, without_backward
from fxplug_quant.packing import PackingModule

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "AsIntegers",
    "AsQuantized",
    "Dequantize",
    "Int8Add",
    "Int8Cat",
    "Int8Mul",
    "Quantize",
    "ReluOfSteps",
]


def affine_text(module: PackingModule, name: str) -> str:
    """Return what steps mean, for ``repr``."""
    affine = module.affine(name)
    return "float32" if affine is None else f"scale={affine.scale:.4g}, zero_point={affine.zero_point}"


class Quantize(PackingModule):
    """Rounds float32 values to uint8 steps."""

    def __init__(self, affine: Affine) -> None:
        super().__init__()
        self.register_affine("output", affine)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the steps.

        Raises:
            QuantizationError: The input is not float32 on the CPU, or has a value that is not finite.
        """
        if input.dtype is not torch.float32 or input.device.type != "cpu":
            raise QuantizationError(
                f"Cannot quantize a value that is {str(input.dtype).removeprefix('torch.')} on {input.device}. Give "
                f"float32 on the CPU.",
                code="FXP-Q002",
            )
        return without_backward(self, self.compute, input)

    def compute(self, values: Tensor) -> Tensor:
        """Return the steps, without a gradient."""
        expect_finite(self, values)
        return quantize(values, self.packing().affine["output"], activation_levels())

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return affine_text(self, "output")


class _OfSteps(PackingModule):
    def __init__(self, affine: Affine) -> None:
        super().__init__()
        self.register_affine("input", affine)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return affine_text(self, "input")


class Dequantize(_OfSteps):
    """Gives the float32 values that uint8 steps stand for."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the values."""
        return dequantize(input, self.packing().affine["input"])


class ReluOfSteps(_OfSteps):
    """Makes steps below the one for 0 that one."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the steps."""
        return input.clamp(min=self.packing().affine["input"].zero_point)


class AsQuantized(_OfSteps):
    """Gives uint8 steps as a tensor of the type ``torch.quint8``, for torch's pooling of such; see `AsIntegers`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the same memory under another type."""
        return as_quantized(input, self.packing().affine["input"])


class AsIntegers(torch.nn.Module):
    """Gives a tensor of the type ``torch.quint8`` as uint8 steps."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the same memory under another type."""
        return as_integers(input)


class _Combines(PackingModule):
    """Makes steps of one kind from two values, each with steps of its own kind.

    Args:
        input_affine: What the steps of the first input mean.
        other_affine: What those of the second mean.
        output_affine: What those of the result mean.
        relu: Whether a negative result becomes 0.
    """

    def __init__(
        self, input_affine: Affine, other_affine: Affine, output_affine: Affine, *, relu: bool = False
    ) -> None:
        super().__init__()
        self.register_affine("input", input_affine)
        self.register_affine("other", other_affine)
        self.register_affine("output", output_affine)
        self.relu = relu

    def combine(self, operator: Any, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the steps that one of ``torch.ops.quantized`` makes of both inputs."""
        affine = self.packing().affine
        left, right = torch.broadcast_tensors(input, other)
        result = operator(
            as_quantized(left.contiguous(), affine["input"]),
            as_quantized(right.contiguous(), affine["other"]),
            affine["output"].scale,
            affine["output"].zero_point,
        )
        return _limited(as_integers(result))

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return f"{affine_text(self, 'output')}, relu={self.relu}"


class Int8Add(_Combines):
    """Adds steps of two kinds.

    Args:
        input_affine: What the steps of the first input mean.
        other_affine: What those of the second mean.
        output_affine: What those of the sum mean.
        relu: Whether a negative sum becomes 0.
    """

    def forward(self, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the steps of the sum."""
        operators = torch.ops.quantized
        return self.combine(operators.add_relu if self.relu else operators.add, input, other)


class Int8Mul(_Combines):
    """Multiplies steps of two kinds.

    Args:
        input_affine: What the steps of the first input mean.
        other_affine: What those of the second mean.
        output_affine: What those of the product mean.
        relu: Whether a negative product becomes 0.
    """

    def forward(self, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the steps of the product."""
        # The overload is named: there is one for a tensor and a number, too.
        operators = torch.ops.quantized
        operator = operators.mul_relu.default if self.relu else operators.mul.default
        return self.combine(operator, input, other)


class Int8Cat(PackingModule):
    """Joins steps of several kinds.

    Args:
        input_affines: What the steps of each input mean.
        output_affine: What those of the result mean.
        relu: Whether negative values become 0.
    """

    def __init__(self, input_affines: Sequence[Affine], output_affine: Affine, *, relu: bool = False) -> None:
        super().__init__()
        for number, affine in enumerate(input_affines):
            self.register_affine(f"input_{number}", affine)
        self.register_affine("output", output_affine)
        self.relu = relu

    def forward(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Return the steps of all."""
        affine = self.packing().affine
        output = affine["output"]
        result = (torch.ops.quantized.cat_relu if self.relu else torch.ops.quantized.cat)(
            [
                as_quantized(values.contiguous(), affine[f"input_{number}"])
                for number, values in enumerate(tensors)
            ],
            dim,
            output.scale,
            output.zero_point,
        )
        return _limited(as_integers(result))

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return f"{affine_text(self, 'output')}, relu={self.relu}"


def _limited(steps: Tensor) -> Tensor:
    levels = activation_levels()
    return steps if levels == 255 else steps.clamp_(max=levels)

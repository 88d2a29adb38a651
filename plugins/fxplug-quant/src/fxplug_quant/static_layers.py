"""Layers with int8 weights whose inputs and outputs have steps that were chosen while the model was calibrated."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from fxplug_quant.activations import POST_OPERATIONS
from fxplug_quant.affine import Affine, quantize
from fxplug_quant.engine import (
    Geometry,
    Weights,
    activation_levels,
    pack_conv,
    pack_conv_transpose,
    run_conv,
    run_conv_transpose,
    run_linear_into,
)
from fxplug_quant.errors import QuantizationError
from fxplug_quant.inference import expect_finite, without_backward
from fxplug_quant.linear import FloatToFloat
from fxplug_quant.packing import PackingModule

__all__ = ["Int8Conv", "Int8ConvTranspose", "Int8Linear"]


class _Int8Layer(PackingModule):
    """What linear layers and convolutions have in common.

    Args:
        int_weight: Symmetric int8 weights, output features or channels first.
        weight_scale: float32, one per output feature or channel.
        bias: float32.
        input_affine: What steps of the input mean; a float32 input is rounded to them.
        output_affine: What steps of the output mean; None for a float32 output.
        other_affine: What steps of a second input mean, which is added before the post-operation.
        post: A key of `fxplug_quant.activations.POST_OPERATIONS`.
        takes_steps: Whether the input is uint8 steps, and not float32.
        keeps_other: Whether the memory of the second input must not be written.
        engine: One of `fxplug_quant.engine.ENGINES`.
    """

    int_weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    output_scale: Tensor | None
    other_scale: Tensor | None

    def __init__(  # noqa: PLR0913 - a state, by keyword
        self,
        int_weight: Tensor,
        weight_scale: Tensor,
        bias: Tensor | None,
        *,
        input_affine: Affine,
        output_affine: Affine | None = None,
        other_affine: Affine | None = None,
        post: str = "none",
        takes_steps: bool = False,
        keeps_other: bool = True,
        engine: str = "x86",
    ) -> None:
        super().__init__()
        self.register_buffer("int_weight", int_weight)
        self.register_buffer("weight_scale", weight_scale)
        self.register_buffer("bias", bias)
        self.register_affine("input", input_affine)
        self.register_affine("output", output_affine)
        self.register_affine("other", other_affine)
        self.post = post
        self.takes_steps = takes_steps
        self.keeps_other = keeps_other
        self.engine = engine

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the layer's output: uint8 steps, or float32 where it has no scale for its output.

        Raises:
            QuantizationError: The input is not what the layer takes, not on the CPU, or has a value that is not finite.
        """
        wanted = torch.uint8 if self.takes_steps else torch.float32
        if input.dtype is not wanted or not input.is_cpu:
            raise QuantizationError(
                f"Cannot run {self}: its input is {str(input.dtype).removeprefix('torch.')} on {input.device}. Give it "
                f"{str(wanted).removeprefix('torch.')} on the CPU.",
                code="FXP-Q002",
            )
        if self.takes_steps:
            return self.compute(input, other)
        if not math.isfinite(input.sum().item()):
            expect_finite(self, input)
        # Steps have no gradient, so that of a second input is no question.
        if not input.requires_grad:
            return self.compute(input, other)
        return without_backward(self, self.compute, input, other)

    def compute(self, values: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the output without a gradient."""
        raise NotImplementedError

    def _own(self, other: Tensor) -> Tensor:
        """Return the second input in memory that may be written."""
        return other.clone() if self.keeps_other else other

    def _finished(self, result: Tensor, *, has_relu: bool) -> Tensor:
        return result if has_relu or self.post == "none" else POST_OPERATIONS[self.post](result)

    def _details(self) -> str:
        given = self.output_scale is not None
        per = "per channel" if len(self.weight_scale) > 1 else "per tensor"
        return (
            f"bias={self.bias is not None}, weight=int8 {per}, "
            f"input={'' if self.takes_steps else 'float32 as '}{_text(self, 'input')}, "
            f"output={_text(self, 'output') if given else 'float32'}"
            + (f", plus={_text(self, 'other')}" if self.other_scale is not None else "")
            + (f", then={self.post}" if self.post != "none" else "")
        )


def _text(module: nn.Module, name: str) -> str:
    return (
        f"uint8({float(getattr(module, f'{name}_scale')):.4g}, {int(getattr(module, f'{name}_zero_point'))})"
    )


class Int8Linear(_Int8Layer):
    """Computes what ``nn.Linear`` computes, in int8, with an activation behind it where one follows."""

    def compute(self, values: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the output without a gradient."""
        packing = self._packing
        if packing is None or not packing.is_of(self):
            packing = self.packing()
        affine, output = packing.affine["input"], packing.affine.get("output")
        post = self.post
        relu = post == "relu"
        if output is None and values.dtype is torch.float32:
            fused = packing.fused
            # No other function on the way to the operator: see `FusedLinear`.
            if fused is not None and values.numel() <= fused.elements and values.dim() > 1:
                result = fused.operator(values.contiguous(), affine.scale, affine.zero_point, fused.packed)
            else:
                result = FloatToFloat.run(self, packing, values, affine, self.engine, relu=relu)
            return result if relu or post == "none" else POST_OPERATIONS[post](result)
        if values.dtype is torch.float32:
            values = quantize(values.contiguous(), affine, activation_levels())
        result = run_linear_into(
            values.contiguous(),
            affine,
            FloatToFloat.weights(self, packing),
            output=output,
            relu=relu,
            other=None if other is None else self._own(other),
            other_affine=packing.affine.get("other"),
        )
        return self._finished(result, has_relu=relu or output is not None)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        outputs, inputs = self.int_weight.shape
        return f"in_features={inputs}, out_features={outputs}, {self._details()}"


class Int8Conv(_Int8Layer):
    """Computes what ``nn.Conv1d``, ``nn.Conv2d`` or ``nn.Conv3d`` computes, in int8.

    Two-dimensional ones compute with channels last, and so are their outputs.
    """

    def __init__(self, *state: Any, geometry: Geometry, **options: Any) -> None:
        super().__init__(*state, **options)
        self.stride, self.padding = geometry.stride, geometry.padding
        self.dilation, self.groups = geometry.dilation, geometry.groups

    def _geometry(self) -> Geometry:
        return Geometry(self.stride, self.padding, self.dilation, self.groups)

    def compute(self, values: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the output without a gradient."""
        packing = self.packing()
        affine, output = packing.affine["input"], packing.affine.get("output")
        if values.dtype is torch.float32:
            values = quantize(self._arranged(values), affine, activation_levels())
        rank = len(self.stride) + 2
        if values.dim() != rank:
            return self.compute(values[None], other if other is None else other[None])[0]
        if other is not None:
            other = self._own(other).contiguous(memory_format=torch.channels_last)
        post = self.post
        result = run_conv(
            self._arranged(values),
            affine,
            packing.get(values.shape, lambda: self._pack(affine, values.shape)),
            packing.get("geometry", self._geometry),
            output=output,
            relu=post == "relu",
            other=other,
            other_affine=packing.affine.get("other"),
        )
        return result if output is not None or post in {"none", "relu"} else POST_OPERATIONS[post](result)

    @staticmethod
    def _arranged(values: Tensor) -> Tensor:
        if values.dim() == 4:
            return values.contiguous(memory_format=torch.channels_last)
        return values.contiguous()

    def _pack(self, affine: Affine, shape: torch.Size) -> Weights:
        scale = self.weight_scale.float()
        return Weights(
            pack_conv(self.int_weight, scale, affine, self._geometry(), shape),
            scale,
            torch.zeros(len(scale), dtype=torch.int32),
            None if self.bias is None else self.bias.float(),
        )

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        outputs, inputs, *kernel = self.int_weight.shape
        return (
            f"{inputs * self.groups}, {outputs}, kernel_size={tuple(kernel)}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, {self._details()}"
        )


class Int8ConvTranspose(Int8Conv):
    """Computes what ``nn.ConvTranspose1d``, ``nn.ConvTranspose2d`` or ``nn.ConvTranspose3d`` computes, in int8.

    FBGEMM does it, whatever the engine: weights have one scale, and the output is steps.
    """

    def __init__(self, *state: Any, geometry: Geometry, **options: Any) -> None:
        super().__init__(*state, geometry=geometry, **options)
        self.output_padding = geometry.output_padding

    def _geometry(self) -> Geometry:
        return Geometry(self.stride, self.padding, self.dilation, self.groups, self.output_padding)

    def compute(self, values: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the output without a gradient."""
        packing = self.packing()
        affine, output = packing.affine["input"], packing.affine["output"]
        if values.dtype is torch.float32:
            values = quantize(self._arranged(values), affine, activation_levels())
        if values.dim() != len(self.stride) + 2:
            return self.compute(values[None], other)[0]
        packed = packing.get(
            "fbgemm",
            lambda: pack_conv_transpose(self.int_weight, self.weight_scale, self.bias, self._geometry()),
        )
        steps = run_conv_transpose(self._arranged(values), affine, packed, output)
        relu = self.post == "relu"
        levels = activation_levels()
        return (
            steps.clamp_(min=output.zero_point if relu else 0, max=levels) if relu or levels < 255 else steps
        )

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        inputs, outputs, *kernel = self.int_weight.shape
        return (
            f"{inputs}, {outputs * self.groups}, kernel_size={tuple(kernel)}, stride={self.stride}, "
            f"padding={self.padding}, output_padding={self.output_padding}, dilation={self.dilation}, "
            f"groups={self.groups}, {self._details()}"
        )

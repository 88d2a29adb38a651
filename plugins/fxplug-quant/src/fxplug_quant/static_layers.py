"""Layers with int8 weights whose inputs and outputs have steps that were chosen while the model was calibrated."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from fxplug_quant.activations import POST_OPERATIONS
from fxplug_quant.affine import Affine, dequantize, quantize
from fxplug_quant.engine import (
    Geometry,
    Weights,
    activation_levels,
    fits_qnnpack,
    has_one_scale,
    pack_conv,
    pack_conv_transpose,
    run_conv,
    run_conv_transpose,
    run_linear_into,
    run_qnnpack_linear,
)
from fxplug_quant.errors import QuantizationError
from fxplug_quant.inference import expect_finite, without_backward
from fxplug_quant.linear import FloatToFloat
from fxplug_quant.packing import Packing, PackingModule, Shortcut, version_of

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

    def _added_apart(self, result: Tensor, other: Tensor) -> Tensor:
        """Return the output for a second input of another shape, which is broadcast.

        Operators that add a second input take it to have the shape of their output, and read and write beyond it.

        Args:
            result: What the layer makes of its first input, in float32.
            other: Steps.
        """
        affine = self.packing().affine
        total = POST_OPERATIONS[self.post](result + dequantize(other, affine["other"]))
        output = affine.get("output")
        return total if output is None else quantize(total, output, activation_levels())

    def _finished(self, result: Tensor, *, has_relu: bool) -> Tensor:
        return result if has_relu or self.post == "none" else POST_OPERATIONS[self.post](result)

    def _details(self) -> str:
        given = self.output_scale is not None
        per = "per tensor" if has_one_scale(self.weight_scale) else "per channel"
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


class _InputSteps(NamedTuple):
    """What steps of a float32 input mean, as long as the tensors that say it are what they were."""

    scale: Tensor
    scale_version: int
    zero_point: Tensor
    zero_point_version: int
    affine: Affine


class Int8Linear(_Int8Layer):
    """Computes what ``nn.Linear`` computes, in int8, with an activation behind it where one follows."""

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the layer's output: uint8 steps, or float32 where it has no scale for its output.

        Raises:
            QuantizationError: The input is not what the layer takes, not on the CPU, or has a value that is not finite.
        """
        found = self._shortcut
        if found is not None and not input.requires_grad:
            steps, shortcut = found
            step, of_step, zero, of_zero, affine = steps
            (
                weight,
                of_weight,
                scales,
                of_scales,
                bias,
                of_bias,
                post,
                engine,
                finish,
                operator,
                packed,
                elements,
            ) = shortcut
            buffers = self._buffers
            if (
                buffers["int_weight"] is weight
                and buffers["weight_scale"] is scales
                and buffers["bias"] is bias
                and buffers["input_scale"] is step
                and buffers["input_zero_point"] is zero
                and buffers["output_zero_point"] is None
                and weight._version == of_weight
                and scales._version == of_scales
                and (bias is None or bias._version == of_bias)
                and step._version == of_step
                and zero._version == of_zero
                and post == self.post
                and engine == self.engine
                and other is None
                and input.numel() <= elements
            ):
                try:
                    if math.isfinite(input.sum().item()):
                        scale, zero_point = affine
                        result = operator(input, scale, zero_point, packed)
                        return result if finish is None else finish(result)
                except (RuntimeError, TypeError):
                    pass  # The usual way takes what this one does not, or says what is wrong.
        return super().forward(input, other)

    def compute(self, values: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the output without a gradient."""
        packing = self.packing()
        affine, output = packing.affine["input"], packing.affine.get("output")
        relu = self.post == "relu"
        if output is None and values.dtype is torch.float32:
            return self._float_to_float(packing, values, affine)
        if values.dtype is torch.float32:
            values = quantize(values.contiguous(), affine, activation_levels())
        values = values.contiguous()
        if other is not None and other.shape != (*values.shape[:-1], len(self.int_weight)):
            result = run_linear_into(values, affine, FloatToFloat.weights(self, packing))
            return self._added_apart(result, other)
        if self.engine == "qnnpack" and output is not None and other is None:
            packed = FloatToFloat.for_qnnpack(self, packing)
            buffers = self._buffers
            scale, bias = cast("Tensor", buffers["weight_scale"]), buffers["bias"]
            if packed is not None and packing.get("fits", lambda: fits_qnnpack(scale, bias, affine, output)):
                rows = values if values.dim() > 1 else values[None]
                steps = run_qnnpack_linear(rows, affine, packed, output, relu=relu)
                return steps if values.dim() > 1 else steps[0]
        result = run_linear_into(
            values,
            affine,
            FloatToFloat.weights(self, packing),
            output=output,
            relu=relu,
            other=None if other is None else self._own(other),
            other_affine=packing.affine.get("other"),
        )
        return self._finished(result, has_relu=relu or output is not None)

    def _float_to_float(self, packing: Packing, values: Tensor, affine: Affine) -> Tensor:
        """Return the float32 output for a float32 input, and keep the way there for the next one."""
        post = self.post
        result = FloatToFloat.run(self, packing, values, affine, self.engine, relu=post == "relu")
        finish = None if post in {"none", "relu"} else POST_OPERATIONS[post]
        buffers = self._buffers
        scale, zero_point = (
            cast("Tensor", buffers["input_scale"]),
            cast("Tensor", buffers["input_zero_point"]),
        )
        versions = version_of(scale), version_of(zero_point)
        shortcut = Shortcut.of(self, packing, post, finish)
        if shortcut is not None and min(versions) >= 0:
            self._shortcut = _InputSteps(scale, versions[0], zero_point, versions[1], affine), shortcut
        return result if finish is None else finish(result)

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

    def expect_state(self) -> None:
        """As in `PackingModule.expect_state`; oneDNN and FBGEMM divide by a stride of 0."""
        super().expect_state()
        self._expect_geometry()

    def _expect_geometry(self) -> None:
        rank = self.int_weight.dim() - 2
        for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            numbers: Any = getattr(self, name)
            if len(numbers) != rank or min(numbers) < least:
                raise self.misfit(
                    f"{name} is {numbers}, and each of {rank} numbers has to be at least {least}"
                )
        if self.groups < 1 or len(self.int_weight) % self.groups:
            raise self.misfit(
                f"groups is {self.groups}, with weights of the shape {tuple(self.int_weight.shape)}"
            )

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
        values = self._arranged(values)
        weights = packing.get(values.shape, lambda: self._pack(affine, values.shape))
        geometry = packing.get("geometry", self._geometry)
        if other is not None and other.shape != self._shape_for(values.shape):
            return self._added_apart(run_conv(values, affine, weights, geometry), other)
        if other is not None:
            other = self._own(other).contiguous(memory_format=torch.channels_last)
        post = self.post
        result = run_conv(
            values,
            affine,
            weights,
            geometry,
            output=output,
            relu=post == "relu",
            other=other,
            other_affine=packing.affine.get("other"),
        )
        return result if output is not None or post in {"none", "relu"} else POST_OPERATIONS[post](result)

    def _shape_for(self, shape: torch.Size) -> tuple[int, ...]:
        """Return the shape of the output for an input of one shape."""
        around = zip(
            shape[2:], self.int_weight.shape[2:], self.stride, self.padding, self.dilation, strict=True
        )
        sizes = [
            (size + 2 * pad - step * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, pad, step in around
        ]
        return (shape[0], len(self.int_weight), *sizes)

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

    def expect_state(self) -> None:
        """As in `PackingModule.expect_state`; FBGEMM knows one scale for all weights."""
        self.expect_shapes(weight_scale=(1,), bias=(self.int_weight.shape[1] * self.groups,))
        self._expect_geometry()
        paddings = zip(self.output_padding, self.stride, self.dilation, strict=True)
        if any(not 0 <= padding < max(stride, dilation) for padding, stride, dilation in paddings):
            raise self.misfit(f"output_padding is {self.output_padding}")

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

"""Linear layers with int8 weights: one that rounds its input while it runs, one that rounds weights alone."""

from __future__ import annotations

import math
import sys
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fxplug_quant.activations import POST_OPERATIONS
from fxplug_quant.affine import SMALLEST_SCALE, Affine, quantize, weight_scale
from fxplug_quant.engine import (
    FusedLinear,
    Weights,
    activation_levels,
    dynamic_operator,
    has_one_scale,
    pack_fused_linear,
    pack_linear_for,
    pack_weight,
    run_linear_into,
    run_qnnpack_dynamic,
)
from fxplug_quant.errors import QuantizationError
from fxplug_quant.inference import expect_floating, without_backward
from fxplug_quant.packing import Packing, PackingModule, Shortcut, tensors_of

__all__ = ["DynamicInt8Linear", "FloatToFloat", "WeightInt8Linear", "rounded_weight", "state_of"]

# Beyond it, the sum of the products times a scale could leave float32 although the result would not.
_LARGEST = 1e30
_FEW_ROWS = 32
"""Up to so many rows FBGEMM, which rounds the input itself, is faster than rounding it and calling oneDNN."""
_FEW_ROWS_OF_SMALL = 128
"""The same where the weights stay in the caches of a core."""
_SMALL = 2**21
"""Up to so many weights."""

_WIDE = 255 * 6.2e-5
"""FBGEMM takes no steps below 6.1e-5 where it finds them itself. Inputs that reach beyond this need no finer ones."""

_FINEST_OF_QNNPACK = 2**-13
"""Its dynamic operator takes no steps below 6.1e-5: where smaller ones are needed, another computes."""

_NOT_FUSED = (None, None, None)

_DONE_BY_OPERATORS = frozenset({"none", "relu"})


def rounded_weight(weight: Tensor, scale: Tensor) -> Tensor:
    """Return symmetric int8 weights with one scale per output feature or channel."""
    wide = scale.reshape(-1, *(1,) * (weight.dim() - 1))
    return (weight / wide).round().clamp(-127, 127).to(torch.int8)


def state_of(called: nn.Module, *, per_channel: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return int8 weights, scales and bias for a float layer, which is left as it is.

    The weights of transposed convolutions have one scale: FBGEMM knows no other.
    """
    # The caller may be in inference mode; tensors made there could not be loaded into later.
    with torch.inference_mode(mode=False), torch.no_grad():
        weight = cast("Tensor", called.weight).detach().float().clone()
        if isinstance(called, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
            scale = weight_scale(weight, per_channel=False)[:1]
        else:
            scale = weight_scale(weight, per_channel=per_channel)
        bias = cast("Tensor | None", called.bias)
        return rounded_weight(weight, scale), scale, None if bias is None else bias.detach().clone()


class FloatToFloat:
    """Multiplies float32 inputs by int8 weights, by the operators that are the fastest for their number of rows."""

    @staticmethod
    def weights(module: nn.Module, packing: Packing) -> Weights:
        """Return weights as oneDNN reads them."""
        buffers = tensors_of(module)
        int_weight, scale, bias = (buffers[name] for name in ("int_weight", "weight_scale", "bias"))
        return packing.get(
            "onednn",
            lambda: Weights(
                pack_weight(int_weight),
                scale.float(),
                torch.zeros(len(scale), dtype=torch.int32),
                None if bias is None else bias.float(),
            ),
        )

    @staticmethod
    def for_qnnpack(module: nn.Module, packing: Packing) -> Any:
        """Return a layer as QNNPACK reads it; None where this PyTorch lacks QNNPACK."""
        buffers = tensors_of(module)
        weight, scale, bias = (buffers[name] for name in ("int_weight", "weight_scale", "bias"))
        return packing.get("qnnpack", lambda: pack_linear_for("qnnpack", weight, scale, bias))

    @staticmethod
    def fused(module: nn.Module, packing: Packing, engine: str, values: Tensor, *, relu: bool) -> Any:
        """Return how FBGEMM computes a layer, and keep it; None where oneDNN is the faster one, or the only one."""
        buffers = tensors_of(module)
        weight = buffers["int_weight"]
        rows = _FEW_ROWS_OF_SMALL if weight.numel() <= _SMALL else _FEW_ROWS
        elements = sys.maxsize if engine == "fbgemm" else rows * weight.shape[1]
        wanted = engine == "fbgemm" or (engine == "x86" and activation_levels() == 255)
        if not wanted or values.numel() > elements:
            return None
        packed = packing.get(
            "fbgemm", lambda: pack_fused_linear(weight, buffers["weight_scale"], buffers["bias"])
        )
        if packed is None:
            return None
        fused = FusedLinear.of(packed, elements, relu=relu)
        packing.fused = engine, relu, fused
        return fused

    @staticmethod
    def run(
        module: nn.Module,
        packing: Packing,
        values: Tensor,
        affine: Affine,
        engine: str,
        *,
        relu: bool = False,
    ) -> Tensor:
        """Return the layer's float32 output for a float32 input that is rounded to the steps of `affine`."""
        of_engine, of_relu, fused = packing.fused or _NOT_FUSED
        if fused is None or of_engine != engine or of_relu is not relu or values.numel() > fused.elements:
            fused = FloatToFloat.fused(module, packing, engine, values, relu=relu)
        if fused is not None:
            operator, packed, _ = fused
            scale, zero_point = affine
            if values.dim() > 1:
                return operator(values.contiguous(), scale, zero_point, packed)
            return operator(values.contiguous()[None], scale, zero_point, packed)[0]
        steps = quantize(values.contiguous(), affine, activation_levels())
        return run_linear_into(steps, affine, FloatToFloat.weights(module, packing), relu=relu)


def _steps_between(low: float, high: float) -> tuple[float, int]:
    """Return the scale and the zero point of steps for values that are not kept, as `affine_of` does for others."""
    low, high, levels = min(low, 0.0), max(high, 0.0), activation_levels()
    scale = max((high - low) / levels, SMALLEST_SCALE)
    return scale, min(round(-low / scale), levels)


class DynamicInt8Linear(PackingModule):
    """Computes what ``nn.Linear`` computes, with weights of 8 bits and an input rounded to 8 bits.

    Weights are symmetric int8 with one scale per output feature, which may all be the same. The input is float32 on
    the CPU; its range is found anew at every call, for the whole tensor at once, so one huge value makes all others
    coarse. On CPUs without VNNI the input gets 7 bits. An input that is empty or holds infinities, NaN or values beyond
    1e30 is multiplied in float32 by the same rounded weights.

    The state is ``int_weight``, ``weight_scale`` and ``bias``; the engine's own copy of them is made at the
    first call, and again when they change. Writes that torch does not count, through ``.data`` or NumPy, are not
    seen. There is no backward.

    Args:
        in_features: Size of the input's last dimension.
        out_features: Size of the output's last dimension.
        bias: Whether something is added.
        engine: One of `fxplug_quant.engine.ENGINES`.
        post: A key of `fxplug_quant.activations.POST_OPERATIONS`.
    """

    int_weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        engine: str = "x86",
        post: str = "none",
    ) -> None:
        super().__init__()
        self.post = post
        self.in_features = in_features
        self.out_features = out_features
        self.register_buffer("int_weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.ones(out_features, dtype=torch.float32))
        self.register_buffer("bias", torch.zeros(out_features, dtype=torch.float32) if bias else None)
        self.engine = engine

    @staticmethod
    def from_float(
        linear: nn.Linear, *, engine: str = "x86", post: str = "none", per_channel: bool = True
    ) -> DynamicInt8Linear:
        """Return a layer with the rounded weights of `linear`, which is left as it is.

        Args:
            linear: Weights are float32, finite and on the CPU.
            engine: One of `fxplug_quant.engine.ENGINES`.
            post: What is done to the output: a key of `fxplug_quant.activations.POST_OPERATIONS`.
            per_channel: Whether each output feature has a scale of its own; otherwise all of them have the same.

        Raises:
            QuantizationError: There is no int8 matrix product here.
        """
        activation_levels()
        int_weight, scale, bias = state_of(linear, per_channel=per_channel)
        layer = DynamicInt8Linear(
            linear.in_features, linear.out_features, bias=bias is not None, engine=engine, post=post
        )
        layer.int_weight, layer.weight_scale, layer.bias = int_weight, scale, bias
        return layer.eval()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear calls it so
        """Return the layer's output for a float32 input.

        Raises:
            QuantizationError: The input has another dtype or device, or this machine has no int8 matrix product.
        """
        found = self._shortcut
        if found is not None and not input.requires_grad:
            dynamic, shortcut = found
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
                and weight._version == of_weight
                and scales._version == of_scales
                and (bias is None or bias._version == of_bias)
                and post == self.post
                and engine == self.engine
                and input.numel() <= elements
            ):
                try:
                    least, greatest = input.aminmax()
                    low, high = least.item(), greatest.item()
                    if low > -_LARGEST and high < _LARGEST:
                        if dynamic is not None and (high > _WIDE or low < -_WIDE):
                            # It finds the range once more, in less time than it takes to hand the steps over.
                            result = dynamic(input, packed)
                        else:
                            scale, zero_point = _steps_between(low, high)
                            result = operator(input, scale, zero_point, packed)
                        return result if finish is None else finish(result)
                except (RuntimeError, TypeError):
                    pass  # The usual way takes what this one does not, or says what is wrong.
        return self._computed(input)

    def _computed(self, values: Tensor) -> Tensor:
        """Return the output, every fact looked up."""
        if values.dtype is not torch.float32 or not values.is_cpu:
            raise QuantizationError(
                f"Cannot run {self}: its input is {str(values.dtype).removeprefix('torch.')} on {values.device}. Give "
                f"it float32 on the CPU, or leave the pass out that made the layer.",
                code="FXP-Q002",
            )
        return without_backward(self, self.compute, values)

    def compute(self, values: Tensor) -> Tensor:
        """Return the output for a float32 input on the CPU, without a gradient."""
        low = high = math.nan
        if values.numel():
            least, greatest = values.aminmax()
            low, high = least.item(), greatest.item()
        post = self.post
        if not (low > -_LARGEST and high < _LARGEST):  # NaN is neither.
            result = functional.linear(values, self.dequantized_weight(), self.bias)
            return POST_OPERATIONS[post](result)
        packing = self.packing()
        result = self._product(packing, values, Affine(*_steps_between(low, high)))
        finish = None if post in _DONE_BY_OPERATORS else POST_OPERATIONS[post]
        shortcut = Shortcut.of(self, packing, post, finish)
        dynamic = dynamic_operator(relu=post == "relu") if activation_levels() == 255 else None
        self._shortcut = None if shortcut is None else (dynamic, shortcut)
        return result if finish is None else finish(result)

    def _product(self, packing: Packing, values: Tensor, affine: Affine) -> Tensor:
        """Return the output for an input that is neither empty nor too large, up to what follows the layer."""
        relu = self.post == "relu"
        if self.engine == "qnnpack" and affine.scale >= _FINEST_OF_QNNPACK:
            packed = FloatToFloat.for_qnnpack(self, packing)
            if packed is not None:
                if values.dim() > 1:
                    return run_qnnpack_dynamic(values, packed, relu=relu)
                return run_qnnpack_dynamic(values[None], packed, relu=relu)[0]
        return FloatToFloat.run(self, packing, values, affine, self.engine, relu=relu)

    def dequantized_weight(self) -> Tensor:
        """Return the rounded weights in float32."""
        return self.int_weight * self.weight_scale.float()[:, None]

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"weight=int8 per {'tensor' if has_one_scale(self.weight_scale) else 'channel'}, input=dynamic uint8"
            + (f", then={self.post}" if self.post != "none" else "")
        )


class WeightInt8Linear(PackingModule):
    """Computes what ``nn.Linear`` computes, with weights of 8 bits and an input as it comes: float32 or bfloat16.

    Args:
        in_features: Size of the input's last dimension.
        out_features: Size of the output's last dimension.
        bias: Whether something is added.
    """

    int_weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.register_buffer("int_weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.ones(out_features, dtype=torch.float32))
        self.register_buffer("bias", torch.zeros(out_features, dtype=torch.float32) if bias else None)

    @staticmethod
    def from_float(linear: nn.Linear) -> WeightInt8Linear:
        """Return a layer with the rounded weights of `linear`, which is left as it is."""
        int_weight, scale, bias = state_of(linear)
        layer = WeightInt8Linear(linear.in_features, linear.out_features, bias=bias is not None)
        layer.int_weight, layer.weight_scale, layer.bias = int_weight, scale, bias
        return layer.eval()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear calls it so
        """Return the layer's output.

        Raises:
            QuantizationError: The input has no floating-point dtype.
        """
        expect_floating(self, input)
        return without_backward(self, self.compute, input)

    def compute(self, activations: Tensor) -> Tensor:
        """Return the output without a gradient."""
        bias = None if self.bias is None else self.bias.to(activations.dtype)
        on_cpu = activations.device.type == "cpu"
        if (
            activations.dtype is torch.bfloat16
            and on_cpu
            and self.in_features % 16 == 0
            and activations.numel()
        ):
            flat = activations.reshape(-1, self.in_features).contiguous()
            scale = self.packing().get("bfloat16", lambda: self.weight_scale.to(torch.bfloat16))
            result = torch.ops.aten._weight_int8pack_mm.default(flat, self.int_weight, scale)
            result = result.view(*activations.shape[:-1], self.out_features)
            return result if bias is None else result.add_(bias)
        # With float32 inputs PyTorch's own operator is slower than this.
        weight = self.int_weight.to(activations.dtype) * self.weight_scale.to(activations.dtype)[:, None]
        return functional.linear(activations, weight, bias)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"weight=int8 per channel"
        )

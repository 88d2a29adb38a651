"""A linear layer with int8 weights that quantizes its input while it runs."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fxplug_quant.engine import activation_levels, pack_weight, run_linear
from fxplug_quant.errors import QuantizationError

__all__ = ["DynamicInt8Linear"]

_SMALLEST_SCALE = 1e-30
# Beyond it, the sum of the products times a scale could leave float32 although the result would not.
_LARGEST = 1e30


@dataclass(frozen=True)
class _Packed:
    """What the engine reads, and the state of the layer that it was made from."""

    state: tuple[Tensor | None, ...]
    versions: tuple[int, ...]
    weight: Tensor
    scale: Tensor
    zero_point: Tensor
    bias: Tensor | None


class DynamicInt8Linear(nn.Module):
    """Computes what ``nn.Linear`` computes, with weights of 8 bits and an input rounded to 8 bits.

    Weights are symmetric int8 with one scale per output feature. The input is float32 on the CPU; its range is
    found anew at every call, for the whole tensor at once, so one huge value makes all others coarse. On CPUs
    without VNNI the input gets 7 bits. An input that is empty or holds infinities, NaN or values beyond 1e30 is
    multiplied in float32 by the same rounded weights.

    The state is ``int_weight``, ``weight_scale`` and ``bias``; the engine's own copy of them is made at the
    first call, and again when they change. There is no backward.

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
        self.register_buffer("weight_scale", torch.ones(out_features))
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)
        self._packed: _Packed | None = None

    @staticmethod
    def from_float(linear: nn.Linear) -> DynamicInt8Linear:
        """Return a layer with the rounded weights of `linear`, which is left as it is.

        Args:
            linear: Weights are float32, finite and on the CPU.

        Raises:
            QuantizationError: There is no int8 matrix product here.
        """
        activation_levels()
        # The caller may be in inference mode; tensors made there could not be loaded into later.
        with torch.inference_mode(mode=False), torch.no_grad():
            weight = linear.weight.detach().clone()
            scale = (weight.abs().amax(dim=1) / 127).clamp_min(_SMALLEST_SCALE)
            bias = cast("Tensor | None", linear.bias)
            layer = DynamicInt8Linear(linear.in_features, linear.out_features, bias=bias is not None)
            layer.int_weight = (weight / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
            layer.weight_scale = scale
            if bias is not None:
                layer.bias = bias.detach().clone()
        return layer.eval()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear calls it so
        """Return the layer's output for a float32 input.

        Raises:
            QuantizationError: The input has another dtype or device, or this machine has no int8 matrix product.
        """
        if input.dtype is not torch.float32 or input.device.type != "cpu":
            raise QuantizationError(
                f"Cannot run {self}: its input is {str(input.dtype).removeprefix('torch.')} on {input.device}. Give it "
                f"float32 on the CPU, or leave the pass out that made the layer.",
                code="FXP-Q002",
            )
        if input.requires_grad and torch.is_grad_enabled():
            return _WithoutBackward.apply(input, self)
        return self.compute(input)

    def compute(self, activations: Tensor) -> Tensor:
        """Return the output for a float32 input on the CPU, without a gradient."""
        low, high = (
            (float(bound) for bound in activations.aminmax()) if activations.numel() else (math.nan,) * 2
        )
        if not (low > -_LARGEST and high < _LARGEST):  # NaN is neither.
            return functional.linear(activations, self.dequantized_weight(), self.bias)
        levels = activation_levels()
        low, high = min(low, 0.0), max(high, 0.0)  # 0 is hit exactly, as paddings and ReLU need it.
        scale = max((high - low) / levels, _SMALLEST_SCALE)
        zero_point = min(max(round(-low / scale), 0), levels)
        steps = (activations / scale).round_().add_(zero_point).clamp_(0, levels).to(torch.uint8)
        packed = self._pack()
        return run_linear(
            steps.contiguous(), scale, zero_point, packed.weight, packed.scale, packed.zero_point, packed.bias
        )

    def dequantized_weight(self) -> Tensor:
        """Return the rounded weights in float32."""
        return self.int_weight * self.weight_scale.float()[:, None]

    def _pack(self) -> _Packed:
        state = (self.int_weight, self.weight_scale, self.bias)
        versions = tuple(_version_of(part) for part in state)
        packed = self._packed
        if packed is None or packed.versions != versions or any(map(operator.is_not, packed.state, state)):
            packed = self._packed = _Packed(
                state,
                versions,
                pack_weight(self.int_weight),
                self.weight_scale.float(),
                torch.zeros(self.out_features, dtype=torch.int32),
                None if self.bias is None else self.bias.float(),
            )
        return packed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"weight=int8 per channel, input=dynamic uint8"
        )


class _WithoutBackward(torch.autograd.Function):
    """Lets a model run without `torch.no_grad`, and refuses when a gradient is asked for instead of losing it."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor, layer: DynamicInt8Linear) -> Tensor:
        ctx.layer = layer
        return layer.compute(activations)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> NoReturn:
        raise QuantizationError(
            f"Cannot compute a gradient through {ctx.layer}: rounding has none. Train the float model and quantize it "
            f"afterwards.",
            code="FXP-Q003",
        )


def _version_of(tensor: Tensor | None) -> int:
    """Return a number that grows when the tensor is changed in place; tensors made in inference mode have none."""
    if tensor is None or tensor.is_inference():
        return 0
    return tensor._version

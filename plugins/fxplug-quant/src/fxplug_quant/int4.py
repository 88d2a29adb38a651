"""Linear layers with weights of 4 bits."""

from __future__ import annotations

import functools
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fxplug_quant.errors import ConfigError
from fxplug_quant.inference import expect_floating, without_backward
from fxplug_quant.packing import PackingModule

__all__ = ["GROUP_SIZES", "WeightInt4Linear", "check_group_size", "reason_against_int4"]

GROUP_SIZES = (32, 64, 128, 256)
"""How many weights of a row can share a scale."""
_BLOCK = 64
"""So many output features lie side by side in memory."""
_MULTIPLE = 16
"""torch's operator computes so many output features at a time."""
_FEW_ROWS = 64
"""Up to so many rows torch's operator is faster than a float product with weights made for the call."""


def check_group_size(size: int) -> None:
    """Check that so many weights can share a scale.

    Raises:
        ConfigError: They cannot.
    """
    if size not in GROUP_SIZES:
        raise ConfigError(
            f"Cannot quantize to int4 with group_size={size}: torch's operator knows groups of "
            f"{', '.join(map(str, GROUP_SIZES))}. Give one of them."
        )


def reason_against_int4(linear: nn.Linear, group_size: int) -> str:
    """Return why a layer cannot have weights of 4 bits; empty when it can."""
    if linear.in_features % group_size:
        return f"{linear.in_features} input features, which are no multiple of group_size = {group_size}"
    if linear.out_features % _MULTIPLE or not linear.out_features:
        return f"{linear.out_features} output features, which are no multiple of {_MULTIPLE}"
    return ""


class WeightInt4Linear(PackingModule):
    """Computes what ``nn.Linear`` computes, with weights of 4 bits and an input as it comes: float32 or bfloat16.

    Each group of weights in a row has a scale and a centre: a weight is ``(step - 8) * scale + centre``.

    The state is ``int_weight`` (two steps in a byte, in blocks of 64 output features), ``weight_scale_centre`` and
    ``bias``. On CPUs with AVX-512 torch's operator reads these blocks as they are, so that there is no second copy; on
    others it is given a copy in its own order, which is made at the first call.

    Args:
        in_features: Size of the input's last dimension.
        out_features: Size of the output's last dimension.
        bias: Whether something is added.
        group_size: One of `GROUP_SIZES`.
    """

    int_weight: Tensor
    weight_scale_centre: Tensor
    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = True, group_size: int = 64
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.group_size = group_size
        groups = in_features // group_size
        self.register_buffer("int_weight", torch.zeros(out_features, in_features // 2, dtype=torch.uint8))
        self.register_buffer(
            "weight_scale_centre", torch.zeros(groups, out_features, 2, dtype=torch.bfloat16)
        )
        self.register_buffer("bias", torch.zeros(out_features, dtype=torch.float32) if bias else None)

    @staticmethod
    def from_float(linear: nn.Linear, *, group_size: int = 64) -> WeightInt4Linear:
        """Return a layer with the rounded weights of `linear`, which is left as it is.

        Raises:
            ConfigError: So many weights cannot share a scale, or the layer has no such number of features.
        """
        check_group_size(group_size)
        reason = reason_against_int4(linear, group_size)
        if reason:
            raise ConfigError(f"Cannot quantize {linear} to int4: it has {reason}. Leave it in float.")
        layer = WeightInt4Linear(linear.in_features, linear.out_features, bias=False, group_size=group_size)
        with torch.inference_mode(mode=False), torch.no_grad():
            layer.int_weight, layer.weight_scale_centre = _rounded_groups(linear.weight, group_size)
            bias = cast("Tensor | None", linear.bias)
            layer.bias = None if bias is None else bias.detach().clone()
        return layer.eval()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Linear calls it so
        """Return the layer's output.

        Raises:
            QuantizationError: The input has no floating-point dtype.
        """
        expect_floating(self, input)
        return without_backward(self, self.compute, input)

    def expect_state(self) -> None:
        """As in `PackingModule.expect_state`."""
        groups = self.in_features // self.group_size
        self.expect_shapes(
            int_weight=(self.out_features, self.in_features // 2),
            weight_scale_centre=(groups, self.out_features, 2),
            bias=(self.out_features,),
        )

    def compute(self, activations: Tensor) -> Tensor:
        """Return the output without a gradient."""
        self.packing()  # It looks at the state when that is another one than before.
        bias = None if self.bias is None else self.bias.to(activations.dtype)
        few = 0 < activations.numel() <= _FEW_ROWS * self.in_features
        if activations.dtype is torch.bfloat16 and activations.device.type == "cpu" and few:
            result = torch.ops.aten._weight_int4pack_mm_for_cpu.default(
                activations.reshape(-1, self.in_features).contiguous(),
                self._packed(),
                self.group_size,
                self.weight_scale_centre.to(torch.bfloat16),
            )
            result = result.view(*activations.shape[:-1], self.out_features)
            return result if bias is None else result.add_(bias)
        # With float32 inputs torch's own operator is slower than this.
        return functional.linear(activations, self.dequantized_weight().to(activations.dtype), bias)

    def _packed(self) -> Tensor:
        if _reads_blocks():
            return self.int_weight
        return self.packing().get("int4", lambda: _pack(_steps_of(self.int_weight)))

    def dequantized_weight(self) -> Tensor:
        """Return the rounded weights in float32."""
        scale, centre = self.weight_scale_centre.float().permute(2, 1, 0)[..., None]
        grouped = _steps_of(self.int_weight).float().view(self.out_features, -1, self.group_size)
        return grouped.sub_(8).mul_(scale).add_(centre).view(self.out_features, self.in_features)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"weight=int4 in groups of {self.group_size}"
        )


def _rounded_groups(weight: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return steps in blocks, and scales and centres, groups first."""
    outputs, inputs = weight.shape
    grouped = weight.detach().float().view(outputs, inputs // size, size)
    low, high = grouped.aminmax(dim=2)
    # Rounded to what is kept before the weights are rounded with it.
    scale = ((high - low) / 15).bfloat16()
    centre = (low + 8 * scale.float()).bfloat16()
    divisor = scale.float().clamp_min(torch.finfo(torch.float32).tiny)[..., None]
    steps = ((grouped - centre.float()[..., None]) / divisor).round().add_(8).clamp_(0, 15)
    both = torch.stack((scale.t(), centre.t()), dim=2).contiguous()
    return _in_blocks(steps.view(outputs, inputs).to(torch.uint8)), both


def _in_blocks(steps: Tensor) -> Tensor:
    """Return steps of 4 bits, (out, in), as pairs in blocks of `_BLOCK` output features.

    A byte holds the steps of the output features n and n + 32 of a block, in what is left at the end n and n + 1.
    """
    outputs, inputs = steps.shape
    whole = outputs // _BLOCK * _BLOCK
    blocks = steps[:whole].view(-1, _BLOCK, inputs).transpose(1, 2)
    half = _BLOCK // 2
    rest = steps[whole:]
    parts = (
        (blocks[..., half:] << 4 | blocks[..., :half]).reshape(-1),
        (rest[1::2] << 4 | rest[::2]).t().reshape(-1),
    )
    return torch.cat(parts).view(outputs, inputs // 2)


def _steps_of(packed: Tensor) -> Tensor:
    """Return what `_in_blocks` was given."""
    outputs, inputs = packed.shape[0], 2 * packed.shape[1]
    whole = outputs // _BLOCK * _BLOCK
    blocks = packed[:whole].reshape(-1, inputs, _BLOCK // 2)
    steps = torch.cat((blocks & 15, blocks >> 4), dim=2).transpose(1, 2).reshape(whole, inputs)
    rest = packed[whole:].reshape(inputs, (outputs - whole) // 2).t()
    return torch.cat((steps, torch.stack((rest & 15, rest >> 4), dim=1).reshape(outputs - whole, inputs)))


def _pack(steps: Tensor) -> Tensor:
    """Return steps in the order that torch's operator reads on this CPU."""
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu.default(steps.int(), 1)


@functools.cache
def _reads_blocks() -> bool:
    """Return whether torch's operator reads blocks here as `_in_blocks` makes them."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randint(0, 16, (_BLOCK + 48, 32), generator=generator, dtype=torch.uint8)
    return torch.equal(_pack(steps), _in_blocks(steps))

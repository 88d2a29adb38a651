"""Running without gradients, and saying so when somebody asks for one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from fxplug_quant.errors import QuantizationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["expect_finite", "expect_floating", "without_backward"]


def expect_finite(module: nn.Module, values: Tensor) -> None:
    """Check that float values can be rounded to steps: NaN and infinities would become some step without a word.

    Raises:
        QuantizationError: One of them is not finite.
    """
    # The sum is not finite if a value is none. It may be infinite of huge values, too, so that these are looked at.
    if not math.isfinite(values.sum().item()) and not bool(values.isfinite().all()):
        raise QuantizationError(
            f"Cannot round the input of {module}: it has values that are not finite (NaN or infinity), and no step "
            f"stands for them. Leave such inputs out, or leave the call in float: a rule with mode = 'float'.",
            code="FXP-Q012",
        )


def expect_floating(module: nn.Module, values: Tensor) -> None:
    """Check that an input has a floating-point dtype.

    Raises:
        QuantizationError: It has another.
    """
    if not values.is_floating_point():
        raise QuantizationError(
            f"Cannot run {module}: its input is {str(values.dtype).removeprefix('torch.')} on {values.device}. Give it "
            f"floating-point numbers.",
            code="FXP-Q002",
        )


def without_backward(module: nn.Module, compute: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
    """Return what `compute` makes of tensors; a backward through it is an error that names the module."""
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return _WithoutBackward.apply(module, compute, *tensors)
    return compute(*tensors)


class _WithoutBackward(torch.autograd.Function):
    """Lets a model run without `torch.no_grad`, and refuses when a gradient is asked for instead of losing it."""

    @staticmethod
    def forward(
        ctx: Any, module: nn.Module, compute: Callable[..., Tensor], *tensors: Tensor | None
    ) -> Tensor:
        ctx.module = module
        return compute(*tensors)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> NoReturn:
        raise QuantizationError(
            f"Cannot compute a gradient through {ctx.module}: rounding has none. Train the float model and quantize it "
            f"afterwards.",
            code="FXP-Q003",
        )

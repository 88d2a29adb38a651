"""Running without gradients, and saying so when somebody asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from fxplug_quant.errors import QuantizationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["without_backward"]


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

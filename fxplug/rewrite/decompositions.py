"""How fxplug itself expresses some of torch's calls by simpler ones: the same value, up to rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.rewrite.decomposition import DecompositionRecord

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BUILTIN_DECOMPOSITIONS"]


def _silu(input: Any, inplace: Any = False) -> Any:  # noqa: A002, FBT002 - torch's signature
    return NotImplemented if inplace else input * torch.sigmoid(input)


def _mish(input: Any, inplace: Any = False) -> Any:  # noqa: A002, FBT002 - torch's signature
    return NotImplemented if inplace else input * torch.tanh(functional.softplus(input))


def _hardswish(input: Any, inplace: Any = False) -> Any:  # noqa: A002, FBT002 - torch's signature
    return NotImplemented if inplace else input * torch.clamp(input + 3, 0, 6) / 6


def _tanhshrink(input: Any) -> Any:  # noqa: A002 - torch's signature
    return input - torch.tanh(input)


def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, **others: Any) -> Any:  # noqa: A002
    # With a beta of 0 torch does not look at the input, which may hold no numbers. The rest is a matter of factors.
    if others or beta != 1 or alpha != 1:
        return NotImplemented
    return input + torch.matmul(mat1, mat2)


def _of_module(function: Callable[..., Any]) -> Callable[..., Any]:
    def decompose_module(module: nn.Module, input: Any) -> Any:  # noqa: A002 - torch's signature
        return function(input, getattr(module, "inplace", False))

    decompose_module.__qualname__ = function.__qualname__
    return decompose_module


BUILTIN_DECOMPOSITIONS: tuple[DecompositionRecord, ...] = (
    DecompositionRecord(functional.silu, _silu, "x * sigmoid(x)"),
    DecompositionRecord(nn.SiLU, _of_module(_silu), "x * sigmoid(x)"),
    DecompositionRecord(functional.mish, _mish, "x * tanh(softplus(x))"),
    DecompositionRecord(nn.Mish, _of_module(_mish), "x * tanh(softplus(x))"),
    DecompositionRecord(functional.hardswish, _hardswish, "x * clamp(x + 3, 0, 6) / 6"),
    DecompositionRecord(nn.Hardswish, _of_module(_hardswish), "x * clamp(x + 3, 0, 6) / 6"),
    DecompositionRecord(functional.tanhshrink, _tanhshrink, "x - tanh(x)"),
    DecompositionRecord(torch.addmm, _addmm, "input + mat1 @ mat2"),
)
"""The decompositions that fxplug itself offers."""

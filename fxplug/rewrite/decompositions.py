"""How fxplug itself expresses some of torch's calls by simpler ones.

They give the same value, up to rounding, in the same dtype and layout and with the same gradient, inside autocast and
outside of it. What they compute in between has to fit the dtype, though: the sum of a float16 ``addmm`` may, where the
product alone does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.capture import Proxy
from fxplug.rewrite.decomposition import DecompositionRecord

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BUILTIN_DECOMPOSITIONS"]


def _is(value: Any, wanted: Any) -> bool:
    """Return whether an argument is known to be what a rule needs; the program may compute it."""
    return not isinstance(value, Proxy) and bool(value == wanted)


def _silu(input: Any, inplace: Any = False) -> Any:  # noqa: A002, FBT002 - torch's signature
    return input * torch.sigmoid(input) if _is(inplace, wanted=False) else NotImplemented


def _mish(input: Any, inplace: Any = False) -> Any:  # noqa: A002, FBT002 - torch's signature
    if not _is(inplace, wanted=False):
        return NotImplemented
    # Autocast of some devices computes softplus in float32, and leaves mish in the dtype of its input.
    return input * torch.tanh(functional.softplus(input)).type_as(input)


def _hardswish(input: Any, inplace: Any = False) -> Any:  # noqa: A002, FBT002 - torch's signature
    # Divided first: the product with 6 may be beyond the dtype where the result is not. At the bounds, relu6 has the
    # gradient of hardswish, and clamp another one.
    return input * (functional.relu6(input + 3) / 6) if _is(inplace, wanted=False) else NotImplemented


def _tanhshrink(input: Any) -> Any:  # noqa: A002 - torch's signature
    return input - torch.tanh(input)


def _addmm(input: Any, mat1: Any, mat2: Any, *more: Any, beta: Any = 1, alpha: Any = 1, **others: Any) -> Any:  # noqa: A002
    # With a beta of 0 torch does not look at the input, which may hold no numbers. The rest is a matter of factors.
    if more or others or not _is(beta, 1) or not _is(alpha, 1):
        return NotImplemented
    product = torch.matmul(mat1, mat2)
    # Autocast casts all arguments of addmm, and none of an addition. The product goes first, as its layout counts.
    return product + input.type_as(product)


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
    DecompositionRecord(functional.hardswish, _hardswish, "x * (relu6(x + 3) / 6)"),
    DecompositionRecord(nn.Hardswish, _of_module(_hardswish), "x * (relu6(x + 3) / 6)"),
    DecompositionRecord(functional.tanhshrink, _tanhshrink, "x - tanh(x)"),
    DecompositionRecord(torch.addmm, _addmm, "mat1 @ mat2 + input"),
)
"""The decompositions that fxplug itself offers."""

"""The arithmetic of folding a batch norm into what comes before it.

In evaluation mode batch normalisation is y = (x - mean) / sqrt(var + eps) * gamma + beta, an affine map per
channel, and so is part of the convolution or linear layer that makes x: its weights are scaled by
gamma / sqrt(var + eps), its bias follows. See Jacob et al., "Quantization and Training of Neural Networks for
Efficient Integer-Arithmetic-Only Inference", CVPR 2018, section 3.2.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.passes.derivations import Recipe, recipe_of
from fxplug.passes.weighted_calls import new_parameter, reweighted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.passes.base import PassContext

__all__ = ["Folding", "Statistics", "fold_batch_norm"]


@dataclass(frozen=True)
class Statistics:
    """What a batch norm in evaluation mode computes with."""

    mean: torch.Tensor
    variance: torch.Tensor
    gain: torch.Tensor | None
    shift: torch.Tensor | None
    eps: float

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Those that there are."""
        return [part for part in (self.mean, self.variance, self.gain, self.shift) if part is not None]


def fold_batch_norm(conv: Any, norm: Any) -> Any:
    """Return a new module that computes ``norm(conv(x))`` for a batch norm in evaluation mode.

    The new weights are computed in float64 and rounded once, so folding itself adds no more than rounding
    error.

    Args:
        conv: A convolution or transposed convolution of any rank, or ``Linear``, for inputs of two dimensions.
        norm: Batch norm over its output channels, with running statistics.
    """
    statistics = Statistics(norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps)
    transposed = hasattr(conv, "output_padding") and getattr(conv, "transposed", False)
    folding = Folding(conv.weight, conv.bias, statistics, conv.groups if transposed else 0)
    return reweighted(conv, folding.weight, folding.bias)


class Folding:
    """New weights, and how they come from the old ones.

    Args:
        weight: Of what comes before the batch norm.
        bias: The same.
        statistics: Of the batch norm.
        groups: How many groups the input channels have, where `weight` is that of a transposed convolution; else 0.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, statistics: Statistics, groups: int
    ) -> None:
        self._fold = _Fold(
            float(statistics.eps),
            has_gain=statistics.gain is not None,
            has_shift=statistics.shift is not None,
            has_bias=bias is not None,
            rank=weight.dim(),
            dtype=weight.dtype,
            groups=groups,
        )
        mean, variance, gain, shift = (
            statistics.mean,
            statistics.variance,
            statistics.gain,
            statistics.shift,
        )
        self._of_weight = _present(weight, variance, gain)
        self._of_bias = _present(mean, variance, gain, shift, bias)
        with torch.no_grad():
            self.weight = new_parameter(self._fold.fold_weight(*self._of_weight), weight, gain)
            self.bias = new_parameter(self._fold.fold_bias(*self._of_bias), weight, bias, gain, shift)

    def explain(self, context: PassContext) -> None:
        """Tell from which tensors the new ones come, and how."""
        of_weight, of_bias = _recipes(self._fold)
        context.derive(self.weight, self._of_weight, of_weight)
        context.derive(self.bias, self._of_bias, of_bias)


def _present(*parts: torch.Tensor | None) -> list[torch.Tensor]:
    return [part for part in parts if part is not None]


@dataclass(frozen=True)
class _Fold:
    """The arithmetic of one kind of pair: operations on tensors alone, so that it can be captured."""

    eps: float
    has_gain: bool
    has_shift: bool
    has_bias: bool
    rank: int
    dtype: torch.dtype
    groups: int

    def fold_weight(self, weight: torch.Tensor, variance: torch.Tensor, *gain: torch.Tensor) -> torch.Tensor:
        scale = self._scale(variance, gain)
        if self.groups:
            # The input channels come first, in groups; each group has output channels of its own.
            scale = scale.reshape((self.groups, 1, -1) + (1,) * (self.rank - 2))
            blocks = weight.to(torch.float64).unflatten(0, (self.groups, -1))
            return (blocks * scale).flatten(0, 1).to(self.dtype)
        scale = scale.reshape((-1,) + (1,) * (self.rank - 1))
        return (weight.to(torch.float64) * scale).to(self.dtype)

    def fold_bias(self, mean: torch.Tensor, variance: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        given = iter(others)
        scale = self._scale(variance, [next(given)] if self.has_gain else [])
        shift = -mean.to(torch.float64) * scale
        if self.has_shift:
            shift = shift + next(given).to(torch.float64)
        if self.has_bias:
            shift = shift + next(given).to(torch.float64) * scale
        return shift.to(self.dtype)

    def _scale(self, variance: torch.Tensor, gain: Sequence[torch.Tensor]) -> torch.Tensor:
        scale = (variance.to(torch.float64) + self.eps).rsqrt()
        return scale * gain[0].to(torch.float64) if self.has_gain else scale


@functools.lru_cache(maxsize=64)
def _recipes(fold: _Fold) -> tuple[Recipe, Recipe]:
    """Return how weight and bias are made; captured once for all pairs of a kind."""
    weights = 2 + fold.has_gain
    return (
        recipe_of(fold.fold_weight, weights),
        recipe_of(fold.fold_bias, weights + fold.has_shift + fold.has_bias),
    )

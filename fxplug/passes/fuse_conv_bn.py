"""Folding batch normalisation into the convolution before it.

In evaluation mode batch normalisation is y = (x - mean) / sqrt(var + eps) * gamma + beta, an affine map per
channel, and so is part of the convolution that makes x: its weights are scaled by gamma / sqrt(var + eps),
its bias follows. See Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, section 3.2.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.execute import GraphModule, set_path
from fxplug.ir import Node
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.derivations import Recipe, recipe_of
from fxplug.passes.sharing import free_path, is_customised, is_shared, is_written
from fxplug.semantics.internals import BatchNormBase

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FuseConvBN", "fold_batch_norm"]

# Exact classes only: a subclass may compute something else.
_PAIRS: dict[type, type] = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}


class FuseConvBN(Pass):
    """Folds each batch norm in evaluation mode into the convolution that feeds it.

    A pair is folded when nothing else uses the convolution's value, both are plain torch.nn modules without
    hooks, and the batch norm has running statistics. Modules that are also used elsewhere keep their weights:
    the folded convolution is a new module.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Fold every pair."""
        folded = 0
        in_training = 0
        for node in module.graph.nodes:
            pair = _match(module, node)
            if pair is None:
                continue
            conv_node, conv, norm = pair
            if norm.training or conv.training:
                in_training += 1
                continue
            if not context.allows(node, "fold"):
                continue
            fused = fold_batch_norm(conv, norm)
            _say_how(context, fused, conv, norm)
            _replace(module, conv_node, node, fused)
            folded += 1
        if folded:
            module.delete_all_unused_submodules()
        summary = f"folded {folded} batch norm{'s' if folded != 1 else ''}" if folded else "no pair to fold"
        if in_training:
            summary += f"; {in_training} left alone in training mode (call eval() first)"
        return PassResult(folded > 0, summary, {"folded": folded, "in_training": in_training})


def fold_batch_norm(conv: Any, norm: Any) -> Any:
    """Return a new convolution that computes ``norm(conv(x))`` for a batch norm in evaluation mode.

    The new weights are computed in float64 and rounded once, so folding itself adds no more than rounding
    error.

    Args:
        conv: ``Conv1d``, ``Conv2d`` or ``Conv3d``.
        norm: Batch norm over the convolution's output channels, with running statistics.
    """
    fused = copy.deepcopy(conv)
    fold = _fold_of(conv, norm)
    with torch.no_grad():
        fused.weight = nn.Parameter(
            fold.fold_weight(*_sources_of_weight(conv, norm)),
            requires_grad=_any_trains(conv.weight, norm.weight),
        )
        fused.bias = nn.Parameter(
            fold.fold_bias(*_sources_of_bias(conv, norm)),
            requires_grad=_any_trains(conv.weight, conv.bias, norm.weight, norm.bias),
        )
    return fused


@dataclass(frozen=True)
class _Fold:
    """The arithmetic of one kind of pair: operations on tensors alone, so that it can be captured."""

    eps: float
    has_gain: bool
    has_shift: bool
    has_bias: bool
    rank: int
    dtype: torch.dtype

    def fold_weight(self, weight: torch.Tensor, variance: torch.Tensor, *gain: torch.Tensor) -> torch.Tensor:
        scale = self._scale(variance, gain).reshape((-1,) + (1,) * (self.rank - 1))
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


def _fold_of(conv: Any, norm: Any) -> _Fold:
    return _Fold(
        norm.eps,
        has_gain=norm.weight is not None,
        has_shift=norm.bias is not None,
        has_bias=conv.bias is not None,
        rank=conv.weight.dim(),
        dtype=conv.weight.dtype,
    )


def _sources_of_weight(conv: Any, norm: Any) -> list[torch.Tensor]:
    return [part for part in (conv.weight, norm.running_var, norm.weight) if part is not None]


def _sources_of_bias(conv: Any, norm: Any) -> list[torch.Tensor]:
    parts = (norm.running_mean, norm.running_var, norm.weight, norm.bias, conv.bias)
    return [part for part in parts if part is not None]


def _say_how(context: PassContext, fused: Any, conv: Any, norm: Any) -> None:
    """Tell from which tensors the weights of `fused` come, and how."""
    of_weight, of_bias = _recipes(_fold_of(conv, norm))
    context.derive(fused.weight, _sources_of_weight(conv, norm), of_weight)
    context.derive(fused.bias, _sources_of_bias(conv, norm), of_bias)


def _any_trains(*parameters: torch.Tensor | None) -> bool:
    return any(parameter is not None and parameter.requires_grad for parameter in parameters)


def _match(module: GraphModule, node: Node) -> tuple[Node, Any, Any] | None:
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    norm = module.get_submodule(node.target)
    source = node.args[0]
    if not isinstance(norm, BatchNormBase) or not isinstance(source, Node) or source.op != "call_module":
        return None
    conv = module.get_submodule(source.target)
    if _PAIRS.get(type(conv)) is not type(norm) or len(source.users) != 1 or source.region != node.region:
        return None
    if is_written(module, str(source.target)) or is_written(module, str(node.target)):
        return None  # The folded weights would be out of date once the program has run.
    if norm.running_mean is None or norm.running_var is None or is_customised(conv) or is_customised(norm):
        return None
    return source, conv, norm


def _replace(module: GraphModule, conv_node: Node, norm_node: Node, fused: nn.Module) -> None:
    path = str(conv_node.target)
    sharers = module.graph.find_nodes(op="call_module", target=path, sort=False)
    if len(sharers) > 1 or is_shared(module, path):
        path = free_path(module, f"{path}_folded")
        conv_node.target = path
    set_path(module, path, fused)
    conv_node.origins = (*conv_node.origins, *norm_node.origins)
    norm_node.replace_all_uses_with(conv_node)
    module.graph.erase_node(norm_node)

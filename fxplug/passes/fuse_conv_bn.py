"""Folding batch normalisation into the convolution or linear layer before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.ir import Node, effects
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.batch_norm_folding import Folding, Statistics, fold_batch_norm
from fxplug.passes.ranks import Ranks
from fxplug.passes.sharing import drop_unread, is_customised, written_memory
from fxplug.passes.weighted_calls import (
    WeightedCall,
    are_plain,
    arguments_of,
    fits_in_dtype,
    read_attribute,
    read_weighted_call,
    replace_weights,
)
from fxplug.rewrite.calls import value_at

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["FuseConvBN", "fold_batch_norm"]

# Exact classes only: a subclass may compute something else.
_MODULES: dict[type[nn.Module], frozenset[str]] = {
    nn.BatchNorm1d: frozenset({"conv1d", "conv_transpose1d", "linear"}),
    nn.BatchNorm2d: frozenset({"conv2d", "conv_transpose2d"}),
    nn.BatchNorm3d: frozenset({"conv3d", "conv_transpose3d"}),
}
_ANY_RANK = nn.SyncBatchNorm
_RANKED = (nn.BatchNorm2d, nn.BatchNorm3d)
"""Those that refuse an input without a batch dimension."""
_FUNCTIONS = (functional.batch_norm, torch.batch_norm)
_NARROW = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class _Norm:
    """A call of a batch norm with running statistics."""

    node: Node
    source: Node
    statistics: Statistics
    training: bool
    called: nn.Module | None = None
    reads: tuple[Node, ...] = ()


class FuseConvBN(Pass):
    """Folds each batch norm in evaluation mode into the convolution or linear layer that feeds it.

    A pair is folded when nothing else uses the value between them, both are plain torch.nn modules without hooks or
    functions that read their weights from the module, and the batch norm has running statistics. Modules that are also
    used elsewhere keep their weights: the folded one is new.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Fold every pair."""
        folder = _Folder(module, context)
        for node in module.graph.nodes:
            folder.look_at(node)
        if folder.folded:
            drop_unread(module, folder.unread)
            module.delete_all_unused_submodules()
        return PassResult(folder.folded > 0, folder.summary(), folder.details())


class _Folder:
    """Walks over a graph once."""

    def __init__(self, module: GraphModule, context: PassContext) -> None:
        self._module, self._context = module, context
        self._written = written_memory(module)
        self._ranks = Ranks(module, context)
        self.folded = self._in_training = self._of_unknown_rank = 0
        self.unread: list[Node] = []

    def look_at(self, node: Node) -> None:
        """Fold a node, if it is a batch norm that can be."""
        norm = _read_norm(self._module, node)
        call = None if norm is None else self._before(norm)
        if norm is None or call is None:
            return
        if norm.training or call.training:
            self._in_training += 1
        elif self._has_channels_in_place(call, norm) and self._context.allows(node, "fold"):
            self._fold(call, norm)

    def _before(self, norm: _Norm) -> WeightedCall | None:
        """Return what a batch norm can be folded into, as far as weights and users tell."""
        source, statistics = norm.source, norm.statistics
        if len(source.users) != 1 or source.region != norm.node.region:
            return None
        call = read_weighted_call(self._module, source, self._written)
        # Weights that the program writes would be out of date once it has run. In training the batch norm does so
        # itself; then this is about what to report.
        written = () if norm.training else self._written
        if call is None or not are_plain(statistics.tensors, written):
            return None
        operators = _MODULES.get(type(norm.called)) if norm.called is not None else None
        if operators is not None and call.operator not in operators:
            return None
        if any(part.shape != (call.channels,) for part in statistics.tensors):
            return None
        given, own = statistics.mean, call.weight
        fits = given.dtype is own.dtype or (given.dtype is torch.float32 and own.dtype in _NARROW)
        return call if fits and given.device == own.device else None

    def _has_channels_in_place(self, call: WeightedCall, norm: _Norm) -> bool:
        """Return whether the channels of a batch norm, those of dimension 1, are those that the call puts out."""
        if isinstance(norm.called, _RANKED):
            return True
        found = self._ranks.of(norm.source)
        if call.rank is not None:
            return found is None or found == call.rank
        self._of_unknown_rank += found is None
        return found == 2  # The channels of a linear layer come last.

    def _fold(self, call: WeightedCall, norm: _Norm) -> None:
        folding = Folding(call.weight, call.bias, norm.statistics, call.groups if call.is_transposed else 0)
        if not fits_in_dtype(folding.weight, folding.bias):
            return
        folding.explain(self._context)
        replace_weights(self._module, call, folding.weight, folding.bias, "folded")
        call.node.origins = (*call.node.origins, *norm.node.origins)
        norm.node.replace_all_uses_with(call.node)
        self._module.graph.erase_node(norm.node)
        self.unread += (*call.reads, *norm.reads)
        self.folded += 1

    def summary(self) -> str:
        """Return what was done, for people."""
        text = f"folded {self.folded} batch norm{'s' if self.folded != 1 else ''}"
        text = text if self.folded else "no pair to fold"
        if self._in_training:
            text += f"; {self._in_training} left alone in training mode (call eval() first)"
        if self._of_unknown_rank:
            text += (
                f"; {self._of_unknown_rank} behind linear layers left alone, since it is not known whether their input "
                "has two dimensions (give example inputs)"
            )
        return text

    def details(self) -> dict[str, int]:
        """Return the same in numbers."""
        found = {"folded": self.folded, "in_training": self._in_training}
        return {**found, "of_unknown_rank": self._of_unknown_rank} if self._of_unknown_rank else found


def _read_norm(module: GraphModule, node: Node) -> _Norm | None:
    if node.op == "call_module":
        return _of_module(module, node)
    is_function = node.op == "call_function" and any(node.target is function for function in _FUNCTIONS)
    return _of_function(module, node) if is_function else None


def _of_module(module: GraphModule, node: Node) -> _Norm | None:
    called: Any = value_at(module, str(node.target))
    if type(called) not in _MODULES and type(called) is not _ANY_RANK:
        return None
    source = None if is_customised(called) else (arguments_of(module, node) or {}).get("input")
    if not isinstance(source, Node):
        return None
    if called.running_mean is None or called.running_var is None:
        return None
    statistics = Statistics(called.running_mean, called.running_var, called.weight, called.bias, called.eps)
    return _Norm(node, source, statistics, called.training, called)


def _of_function(module: GraphModule, node: Node) -> _Norm | None:
    given = arguments_of(module, node)
    if given is None or not isinstance(given["input"], Node) or not isinstance(given["training"], bool):
        return None
    names = ("running_mean", "running_var", "weight", "bias")
    values = {name: read_attribute(module, given[name]) for name in names}
    unknown = any(values[name] is None and given[name] is not None for name in names)
    mean, variance = values["running_mean"], values["running_var"]
    if unknown or mean is None or variance is None or not isinstance(given["eps"], (int, float)):
        return None
    # In training mode it updates what it reads; what is left to ask is whether it does anything besides.
    if not given["training"] and effects.effect_of(node, module).must_be_kept:
        return None
    statistics = Statistics(mean, variance, values["weight"], values["bias"], given["eps"])
    reads = tuple([given[name] for name in names if given[name] is not None])
    return _Norm(node, given["input"], statistics, given["training"], reads=reads)

"""Two linear layers in a row become one.

Without anything between them, W2 (W1 x + b1) + b2 = (W2 W1) x + (W2 b1 + b2).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.derivations import Recipe, recipe_of
from fxplug.passes.sharing import drop_unread, written_memory
from fxplug.passes.weighted_calls import (
    WeightedCall,
    fits_in_dtype,
    give_argument,
    new_parameter,
    read_weighted_call,
    replace_weights,
)

if TYPE_CHECKING:
    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["MergeLinear", "MergeLinearOptions"]


@dataclass(frozen=True)
class MergeLinearOptions:
    """Options of the pass `merge-linear`."""

    allow_more_work: bool = False
    """Whether layers are merged also where the merged one takes more multiply-adds than the two, as where a narrow one
    comes before a wide one."""


class MergeLinear(Pass):
    """Merges each linear layer in evaluation mode with the linear layer that feeds it.

    A pair is merged when nothing else uses the value between them, both are plain `nn.Linear` without hooks or calls of
    `torch.nn.functional.linear` with weights of the module, and the merged layer takes no more multiply-adds than the
    two. Weights that are also used elsewhere stay.

    Args:
        allow_more_work: Whether the number of multiply-adds does not matter.
    """

    def __init__(self, *, allow_more_work: bool = False) -> None:
        self.options = MergeLinearOptions(allow_more_work)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Merge every pair, and what comes of it with the next one."""
        merger = _Merger(module, context, self.options)
        for node in list(module.graph.nodes):
            # What was merged may now fit to what comes before it.
            while merger.merge(node):
                pass
        if merger.merged:
            drop_unread(module, merger.unread)
            module.delete_all_unused_submodules()
        return PassResult(merger.merged > 0, merger.summary(), merger.details())


class _Merger:
    def __init__(self, module: GraphModule, context: PassContext, options: MergeLinearOptions) -> None:
        self._module, self._context, self._options = module, context, options
        self._written = written_memory(module)
        self._gone: set[Node] = set()
        self._in_training: set[Node] = set()
        self._dearer: set[Node] = set()
        self.merged = 0
        self.unread: list[Node] = []

    def merge(self, node: Node) -> bool:
        """Merge a node with the linear layer before it; return whether that was done."""
        second = self._read(node)
        first = None if second is None else self._read(second.source)
        if first is None or second is None or not _fit(first, second):
            return False
        if first.training or second.training:
            self._in_training.add(first.node)
            return False
        if not self._options.allow_more_work and _work_of_one(first, second) > _work_of_two(first, second):
            self._dearer.add(first.node)
            return False
        return self._context.allows(node, "merge") and self._do(first, second)

    def _read(self, node: Node) -> WeightedCall | None:
        if node in self._gone:
            return None
        call = read_weighted_call(self._module, node, self._written)
        return call if call is not None and call.operator == "linear" else None

    def _do(self, first: WeightedCall, second: WeightedCall) -> bool:
        sources = first.tensors + second.tensors
        biases = [*second.tensors[:1], *first.tensors[1:], *second.tensors[1:]]
        kind = _Merge(first.weight.dtype, first.bias is not None, second.bias is not None)
        with torch.no_grad():
            weight = new_parameter(kind.merge_weights(first.weight, second.weight), *sources)
            bias = new_parameter(kind.merge_biases(*biases), *sources) if kind.has_bias else None
        if not fits_in_dtype(weight, bias):
            return False
        of_weight, of_bias = _recipes(kind)
        self._context.derive(weight, (first.weight, second.weight), of_weight)
        if bias is not None and of_bias is not None:
            self._context.derive(bias, biases, of_bias)
        # To where the input is read now: further on it may have been written.
        node, former = second.node, first.node
        former.append(node)
        give_argument(node, 0, "input", first.source)
        replace_weights(self._module, second, weight, bias, "merged")
        node.origins = tuple(dict.fromkeys((*former.origins, *node.origins)))
        self._module.graph.erase_node(former)
        self._gone.add(former)
        self.unread += (*first.reads, *second.reads)
        self.merged += 1
        return True

    def summary(self) -> str:
        """Return what was done, for people."""
        text = f"merged {self.merged} pair{'s' if self.merged != 1 else ''} of linear layers"
        text = text if self.merged else "no pair to merge"
        if self._in_training:
            text += f"; {len(self._in_training)} left alone in training mode (call eval() first)"
        dearer = len(self._dearer - self._gone)
        if dearer:
            text += f"; {dearer} left alone that would take more multiply-adds (allow_more_work)"
        return text

    def details(self) -> dict[str, int]:
        """Return the same in numbers."""
        dearer = len(self._dearer - self._gone)
        return {"merged": self.merged, "in_training": len(self._in_training), "more_work": dearer}


def _fit(first: WeightedCall, second: WeightedCall) -> bool:
    one, other = first.weight, second.weight
    return (
        len(first.node.users) == 1
        and first.node.region == second.node.region
        and one.shape[0] == other.shape[1]
        and (one.dtype, one.device) == (other.dtype, other.device)
    )


def _work_of_one(first: WeightedCall, second: WeightedCall) -> int:
    return first.weight.shape[1] * second.weight.shape[0]


def _work_of_two(first: WeightedCall, second: WeightedCall) -> int:
    return first.weight.numel() + second.weight.numel()


@dataclass(frozen=True)
class _Merge:
    """The arithmetic of one kind of pair: operations on tensors alone, so that it can be captured."""

    dtype: torch.dtype
    first_has_bias: bool
    second_has_bias: bool

    @property
    def has_bias(self) -> bool:
        return self.first_has_bias or self.second_has_bias

    def merge_weights(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return (second.to(torch.float64) @ first.to(torch.float64)).to(self.dtype)

    def merge_biases(self, weight: torch.Tensor, *biases: torch.Tensor) -> torch.Tensor:
        """Take the weight of the second layer and the biases that there are."""
        if not self.first_has_bias:
            return biases[0].clone()  # The old one may go on being used.
        last = biases[-1].to(torch.float64)
        through = weight.to(torch.float64) @ biases[0].to(torch.float64)
        return (through + last if self.second_has_bias else through).to(self.dtype)


@functools.lru_cache(maxsize=64)
def _recipes(kind: _Merge) -> tuple[Recipe, Recipe | None]:
    """Return how weight and bias are made; captured once for all pairs of a kind."""
    count = 1 + kind.first_has_bias + kind.second_has_bias
    of_bias = recipe_of(kind.merge_biases, count) if kind.has_bias else None
    return recipe_of(kind.merge_weights, 2), of_bias

"""How many dimensions values have that a plain program computes: most layers leave that as it is.

Many forwards ask in each block whether there are as many as they expect. To run all up to there would keep every value
for as long as the program is traced.
"""

# Each node of a network may be looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from fxplug.execute.paths import module_at, weight_at
from fxplug.ir import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FUNCTIONS_OF_LAYERS", "METHODS_OF_LAYERS", "Ranks", "keeps_rank"]

_OF_MATRICES = 2
_LAYERS = frozenset(
    f"torch.nn.modules.{name}"
    for name in ("activation", "batchnorm", "conv", "dropout", "instancenorm", "normalization", "pooling")
)
_CHANGING = frozenset({nn.MultiheadAttention})
_NAMES = (
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d batch_norm "
    "conv1d conv2d conv3d dropout gelu group_norm hardsigmoid hardswish hardtanh instance_norm layer_norm leaky_relu "
    "mish relu relu6 sigmoid silu softmax tanh"
)
FUNCTIONS_OF_LAYERS = frozenset(
    value
    for home in (torch, functional)
    for name in _NAMES.split()
    if (value := getattr(home, name, None)) is not None
) | {torch.chunk, torch.split}
"""Functions of a tensor, which comes first, that leave it as many dimensions as it has."""
METHODS_OF_LAYERS = frozenset(
    {"chunk", "split", "contiguous", "relu", "relu_", "sigmoid", "sigmoid_", "softmax", "tanh", "tanh_"}
)
"""Methods of tensors that do."""
_KEEPING_NAMES = (
    "abs bfloat16 clamp clone cos detach double exp flip float half log log_softmax masked_fill neg permute roll rsqrt "
    "sin sqrt swapaxes to transpose type_as"
)
_KEEPING = frozenset(_KEEPING_NAMES.split())
_KEEPING_FUNCTIONS = frozenset(getattr(torch, name) for name in _KEEPING if hasattr(torch, name))
"""The same for what layers do not do."""
_OF_SIZES = frozenset({"expand", "reshape", "view"})
"""Methods that are told all sizes of what they return."""
_REDUCING = frozenset({"amax", "mean", "sum", torch.amax, torch.mean, torch.sum})
"""Those that leave as many if they are told to keep them."""
_SPLITTING = frozenset({"chunk", "split", torch.chunk, torch.split})
"""Those whose parts have as many; so have they themselves, here."""
_OF_TWO = frozenset(
    {
        *(operator.add, operator.iadd, operator.imul, operator.isub, operator.itruediv),
        *(operator.mul, operator.sub, operator.truediv, torch.add, torch.mul, torch.sub),
        *("add", "add_", "mul", "mul_", "sub", "sub_"),
    }
)
"""Operators, functions and methods of two tensors or numbers, the larger of which says how many there are."""


class Ranks:
    """Tells how many dimensions values have, where that is known without a run.

    What is told so is compared with what is found when the program runs (see `fxplug.api.plain_run.Checks`).

    Args:
        program: Has the layers.
        given: Placeholder -> example.
    """

    def __init__(self, program: nn.Module, given: Mapping[Node, torch.Tensor]) -> None:
        self._program = program
        self._known: dict[Node, int | None] = {node: value.dim() for node, value in given.items()}

    def of(self, node: Node) -> int | None:
        """Return the number of dimensions of a value; None where it is not known."""
        known = self._known
        passed: list[Node] = []
        current = node
        # Most values come out of one layer after the other.
        while current not in known and (source := self._source(current)) is not None:
            passed.append(current)
            current = source
        rank = self._rank_of_any(current)
        known.update(dict.fromkeys(passed, rank))
        return rank

    def _source(self, node: Node) -> Node | None:
        """Return what a layer is given that leaves it as many dimensions as it has; None for other values."""
        op, target, first = node._op, node._target, node._args[0] if node._args else None
        if not isinstance(first, Node):
            return None
        if op == "call_module":
            return first if keeps_rank(module_at(self._program, str(target))) else None
        if op == "call_method":
            return first if target in METHODS_OF_LAYERS or target in _KEEPING else None
        if target is operator.getitem and node._args[1] == 0 and self._attends(first):
            return first._args[0] if isinstance(first._args[0], Node) else None
        return first if target in FUNCTIONS_OF_LAYERS or target in _KEEPING_FUNCTIONS else None

    def _attends(self, node: Node) -> bool:
        """Return whether a node calls attention, the first result of which is as the queries are, which come first."""
        is_call = node._op == "call_module" and bool(node._args)
        return is_call and type(module_at(self._program, str(node._target))) is nn.MultiheadAttention

    def _rank_of_any(self, node: Node) -> int | None:
        """Return the number of dimensions of a value that may come from anywhere."""
        known = self._known
        passed: dict[Node, list[Node]] = {}
        waiting = [node]
        while waiting:
            current = waiting[-1]
            if current in known:
                waiting.pop()
                continue
            asked = passed.get(current)
            if asked is None:
                source = self._source(current)
                asked = passed[current] = _asked(current) if source is None else [source]
                if missing := [one for one in asked if one not in known]:
                    waiting += missing
                    continue
            waiting.pop()
            known[current] = self._rank(current, asked)
        return known[node]

    def _rank(self, node: Node, asked: list[Node]) -> int | None:
        target: Any = node._target
        if node._op == "get_attr":
            weight = weight_at(self._program, target)
            return None if weight is None else weight.dim()
        if target in _OF_SIZES and node._op == "call_method" and not node._kwargs:
            return _count_of_sizes(node._args[1:])
        ranks = [rank for one in asked if (rank := self._known.get(one)) is not None]
        if not ranks or len(ranks) < len(asked):
            return None
        if self._source(node) is not None:
            return ranks[0]
        if target in _OF_TWO or target is torch.cat:
            # Others may be given by name.
            return max(ranks) if set(node.all_input_nodes) <= set(asked) else None
        if target is operator.getitem:
            return ranks[0] if _keeps_dimensions(node) else None
        if target in _REDUCING:
            return ranks[0] if node._kwargs.get("keepdim") is True else None
        return None


def _asked(node: Node) -> list[Node]:
    """Return the values that say how many dimensions a node has."""
    if node._target is torch.cat:
        parts = node._args[0] if node._args else ()
        return [one for one in parts if isinstance(one, Node)] if isinstance(parts, (list, tuple)) else []
    return [one for one in node._args[: 2 if node._target in _OF_TWO else 1] if isinstance(one, Node)]


def _count_of_sizes(sizes: tuple[Any, ...]) -> int | None:
    """Return how many sizes a method is given; None where one value may hold all of them."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(cast("tuple[Any, ...]", sizes[0]))
    elif len(sizes) == 1 and isinstance(sizes[0], Node):
        return None
    return len(sizes) if all(type(one) is int or isinstance(one, Node) for one in sizes) else None


def _keeps_dimensions(node: Node) -> bool:
    """Return whether an index takes a part of what was split, or a range in each dimension."""
    whole, key = node._args
    if type(key) is int:
        return isinstance(whole, Node) and whole._target in _SPLITTING
    return all(type(one) is slice for one in (key if type(key) is tuple else (key,)))


def keeps_rank(layer: Any) -> bool:
    """Return whether a layer of torch returns a tensor that has as many dimensions as the one that it is given."""
    kind = type(layer)
    if kind is nn.Linear:
        return layer.weight.dim() == _OF_MATRICES
    if kind is nn.Identity:
        return True
    is_one = str(kind.__module__) in _LAYERS and kind not in _CHANGING
    return is_one and not layer.__dict__.get("return_indices", False)

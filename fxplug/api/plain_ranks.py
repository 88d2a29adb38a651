"""How many dimensions values have that a plain program computes, and what dtypes: most layers leave that as it is.

Many forwards ask in each block whether it is what they expect. To run all up to there would keep every value for as
long as the program is traced.
"""

# Each node of a network may be looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.execute.paths import fetch_path
from fxplug.ir import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Devices", "Dtypes", "Ranks"]

_OF_MATRICES = 2
_LAYERS = tuple(
    f"torch.nn.modules.{name}"
    for name in ("activation", "batchnorm", "conv", "dropout", "instancenorm", "normalization", "pooling")
)
_CHANGING = frozenset({nn.MultiheadAttention})
_NAMES = (
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d batch_norm "
    "conv1d conv2d conv3d dropout gelu group_norm hardsigmoid hardswish hardtanh instance_norm layer_norm leaky_relu "
    "mish relu relu6 sigmoid silu softmax tanh"
)
_FUNCTIONS = frozenset(
    value
    for home in (torch, functional)
    for name in _NAMES.split()
    if (value := getattr(home, name, None)) is not None
) | {torch.chunk, torch.split}
"""Functions of a tensor, which comes first, that leave it as many dimensions as it has."""
_METHODS = frozenset(
    {"chunk", "split", "contiguous", "relu", "relu_", "sigmoid", "sigmoid_", "softmax", "tanh", "tanh_"}
)
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


_LIKE_INPUT = frozenset(
    {
        *("clamp", "clone", "contiguous", "expand", "expand_as", "flatten", "masked_fill", "movedim", "narrow"),
        *("permute", "repeat", "reshape", "roll", "squeeze", "transpose", "unbind", "unflatten", "unsqueeze"),
        *("view", "matmul", "einsum", "exp", "log", "sqrt", "rsqrt", "pow", "abs", "neg", "sin", "cos"),
    }
)
"""Functions and methods that leave the dtype as it is, besides those that leave how many dimensions there are."""
_METHODS_OF_DTYPE = _METHODS | _LIKE_INPUT | {one for one in (*_REDUCING, *_OF_TWO) if isinstance(one, str)}
_FUNCTIONS_OF_DTYPE = (
    _FUNCTIONS
    | {one for one in (*_REDUCING, *_OF_TWO) if not isinstance(one, str)}
    | {getattr(torch, name) for name in _LIKE_INPUT if hasattr(torch, name)}
    | {operator.getitem, operator.matmul, operator.neg, operator.pow, torch.cat, torch.stack}
)
_MOVING = frozenset({"cpu", "cuda", "to", "type", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"})
"""Methods whose results may be elsewhere."""


class _Telling:
    """Tells something of values, where that is known without a run.

    What is told so is compared with what is found when the program runs (see `fxplug.api.plain_run.Checks`).

    Args:
        program: Has the layers.
        given: Placeholder -> example.
    """

    def __init__(self, program: nn.Module, given: Mapping[Node, torch.Tensor]) -> None:
        self._program = program
        self._known: dict[Node, Any] = {node: self._read(value) for node, value in given.items()}

    def _read(self, value: Any) -> Any:
        raise NotImplementedError

    def _told(self, node: Node) -> Any:
        """Return what is told of the value of a node whose operands are known; None where it is not known."""
        raise NotImplementedError

    def of(self, node: Node) -> Any:
        """Return what is told of a value; None where it is not known."""
        known = self._known
        waiting = [node]
        while waiting:
            current = waiting[-1]
            missing = [one for one in _asked(current) if one not in known] if current not in known else []
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if current not in known:
                known[current] = self._told(current)
        return known[node]


class Ranks(_Telling):
    """Tells how many dimensions values have."""

    def _read(self, value: Any) -> Any:
        return value.dim()

    def _told(self, node: Node) -> int | None:
        op, target = node._op, node._target
        ranks = [rank for one in _asked(node) if (rank := self._known[one]) is not None]
        if not ranks or len(ranks) < len(_asked(node)):
            return None
        if target in _OF_TWO or target is torch.cat:
            # Others may be given by name.
            return max(ranks) if set(node.all_input_nodes) <= set(_asked(node)) else None
        if target is operator.getitem:
            return ranks[0] if _keeps_dimensions(node) else None
        if op == "call_module":
            return ranks[0] if _keeps_rank(fetch_path(self._program, str(target))) else None
        if target in _REDUCING:
            return ranks[0] if node._kwargs.get("keepdim") is True else None
        return ranks[0] if target in (_FUNCTIONS if op == "call_function" else _METHODS) else None


class Dtypes(_Telling):
    """Tells of which dtype values are, where all that they are computed from is of one that is no integer."""

    def _read(self, value: Any) -> Any:
        return value.dtype

    def _told(self, node: Node) -> torch.dtype | None:
        op, target = node._op, node._target
        if op == "get_attr":
            return self._read(fetch_path(self._program, str(target)))
        found = {self._known[one] for one in _asked(node)}
        dtype = found.pop() if len(found) == 1 else None
        if dtype is None or not dtype.is_floating_point or "dtype" in node._kwargs:
            return None
        if op == "call_module":
            return dtype if _keeps_rank(fetch_path(self._program, str(target))) else None
        keeping = {"call_function": _FUNCTIONS_OF_DTYPE, "call_method": _METHODS_OF_DTYPE}.get(op, frozenset())
        return dtype if target in keeping else None


class Devices(_Telling):
    """Tells where values are: mostly all are where the inputs are."""

    def _read(self, value: Any) -> Any:
        return value.device

    def _told(self, node: Node) -> torch.device | None:
        if node._op == "get_attr":
            return self._read(fetch_path(self._program, str(node._target)))
        asked = _asked(node)
        return self._known[asked[0]] if asked and node._target not in _MOVING else None


def _asked(node: Node) -> list[Node]:
    """Return the values that say how many dimensions a node has."""
    if node._target is torch.cat:
        parts = node._args[0] if node._args else ()
        return [one for one in parts if isinstance(one, Node)] if isinstance(parts, (list, tuple)) else []
    return [one for one in node._args[: 2 if node._target in _OF_TWO else 1] if isinstance(one, Node)]


def _keeps_dimensions(node: Node) -> bool:
    """Return whether an index takes a part of what was split, or a range in each dimension."""
    whole, key = node._args
    if type(key) is int:
        return isinstance(whole, Node) and whole._target in _SPLITTING
    return all(type(one) is slice for one in (key if type(key) is tuple else (key,)))


def _keeps_rank(layer: Any) -> bool:
    """Return whether a layer of torch returns a tensor that has as many dimensions as the one that it is given."""
    kind = type(layer)
    if kind is nn.Linear:
        return layer.weight.dim() == _OF_MATRICES
    if kind is nn.Identity:
        return True
    is_one = str(kind.__module__) in _LAYERS and kind not in _CHANGING
    return is_one and not getattr(layer, "return_indices", False)

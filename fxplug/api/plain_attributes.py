"""Of which dtype and sizes values are that a plain program computes, and where: mostly as what they are computed from.

Many forwards ask for that in each block. To run all up to there would keep every value for as long as the program is
traced.
"""

# Each node of a network may be looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.api.plain_ranks import FUNCTIONS_OF_LAYERS, METHODS_OF_LAYERS, keeps_rank
from fxplug.execute.paths import fetch_path, module_at
from fxplug.ir import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Attributes"]

_NAMES = (
    "abs add clamp clone contiguous cos div einsum exp expand expand_as flatten log masked_fill matmul mean movedim "
    "mul narrow neg permute pow repeat reshape roll rsqrt sin sqrt squeeze sub sum tile transpose unbind unflatten "
    "unsqueeze view"
)
_OF_TWO = frozenset(
    {operator.add, operator.iadd, operator.mul, operator.imul, operator.sub, operator.isub, operator.truediv}
    | {torch.add, torch.mul, torch.sub, "add", "add_", "mul", "mul_", "sub", "sub_"}
)
"""Operators, functions and methods of two tensors; the first one mostly has the sizes of the result."""
_METHODS = METHODS_OF_LAYERS | set(_NAMES.split()) | {one for one in _OF_TWO if isinstance(one, str)}
_FUNCTIONS = (
    FUNCTIONS_OF_LAYERS
    | {getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)}
    | {operator.getitem, operator.matmul, operator.neg, operator.pow, torch.cat, torch.stack}
    | {one for one in _OF_TWO if not isinstance(one, str)}
)
_CHANGING_SIZES = frozenset({"chunk", "split"})
_METHODS_OF_SIZES = METHODS_OF_LAYERS - _CHANGING_SIZES
_FUNCTIONS_OF_SIZES = frozenset(
    one
    for one in FUNCTIONS_OF_LAYERS
    if not one.__name__.startswith(("adaptive", "avg", "conv", "chunk", "split"))
)
_LAYERS_OF_SIZES = tuple(
    f"torch.nn.modules.{name}" for name in ("batchnorm", "dropout", "instancenorm", "linear", "normalization")
)
_MOVING = frozenset({"cpu", "cuda", "to", "type"})
"""Methods whose results may be elsewhere."""
_LARGEST = 2
"""How many operands an operator has."""


class Attributes:
    """Tells an attribute of values, where it is most probably that of what they are computed from.

    What is told so is compared with what is found when the program runs (see `fxplug.api.plain_run.Checks`).

    Args:
        name: ``"dtype"``, ``"device"`` or ``"shape"``.
        program: Has the layers.
        given: Placeholder -> example.
    """

    def __init__(self, name: str, program: nn.Module, given: Mapping[Node, torch.Tensor]) -> None:
        self._name = name
        self._program = program
        self._known: dict[Node, Any] = {node: getattr(value, name) for node, value in given.items()}

    def of(self, node: Node) -> Any:
        """Return the attribute of a value; None where it is not known."""
        passed: list[Node] = []
        current: Node | None = node
        while current is not None and current not in self._known:
            if current._op == "get_attr":
                found = fetch_path(self._program, str(current._target))
                self._known[current] = getattr(found, self._name, None)
                break
            passed.append(current)
            current = self._source(current)
        value = None if current is None else self._known[current]
        if passed and self._name == "dtype" and value is not None and not value.is_floating_point:
            value = None  # Other classes follow from integers, and other ones again from their sums.
        self._known.update(dict.fromkeys(passed, value))
        return value

    def _source(self, node: Node) -> Node | None:
        """Return what a value has its attribute from; None where it may be another one."""
        op, target = node._op, node._target
        operands = node._args[:_LARGEST]
        if operands and type(operands[0]) in {tuple, list}:
            operands = operands[0][:1]
        source = next((one for one in operands if isinstance(one, Node)), None)
        if self._name == "device":
            return None if target in _MOVING else source
        if self._name == "shape":
            return self._source_of_sizes(node, source)
        if op == "call_module":
            return source if keeps_rank(module_at(self._program, str(target))) else None
        keeps = target in (_METHODS if op == "call_method" else _FUNCTIONS) and "dtype" not in node._kwargs
        return source if keeps else None

    def _source_of_sizes(self, node: Node, first: Node | None) -> Node | None:
        """Return what a value has its sizes from: a layer or an operation leaves them as they are."""
        op, target = node._op, node._target
        if target in _OF_TWO:
            # A weight that comes first is stretched to what comes second.
            others = (one for one in node._args[:_LARGEST] if isinstance(one, Node) and one._op != "get_attr")
            return next(others, None)
        if op == "call_module":
            return first if _keeps_sizes(module_at(self._program, str(target))) else None
        return (
            first if target in (_METHODS_OF_SIZES if op == "call_method" else _FUNCTIONS_OF_SIZES) else None
        )


def _keeps_sizes(layer: Any) -> bool:
    """Return whether a layer of torch returns a tensor that has the sizes of the one that it is given."""
    kind = type(layer)
    if kind is nn.Linear:
        return layer.in_features == layer.out_features
    is_one = str(kind.__module__) in _LAYERS_OF_SIZES or kind in _ELEMENTWISE
    return is_one and kind is not nn.Bilinear


_ELEMENTWISE = frozenset({nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Softmax})

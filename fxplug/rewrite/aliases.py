"""Which calls may return one of their arguments, or a view of it, instead of a new tensor."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.rewrite.calls import value_at

if TYPE_CHECKING:
    from fxplug.ir import Node

__all__ = ["may_return_argument"]

# A closed list: the schema of an operator does not say that `dropout` and `type_as` may return what they were given.
_FRESH_NAMES = (
    "abs add addmm amax amin avg_pool1d avg_pool2d avg_pool3d batch_norm bmm cat clamp clone conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d cos div elu embedding eq exp floor_divide floordiv ge gelu "
    "group_norm gt hardsigmoid hardswish hardtanh layer_norm le leaky_relu linear log log_softmax lt matmul max "
    "max_pool1d max_pool2d max_pool3d maximum mean min minimum mish mm mod mul ne neg pow prod relu relu6 remainder "
    "rsqrt sigmoid silu sin softmax softplus sqrt stack sub sum tanh truediv true_divide"
)
_FRESH = frozenset(_FRESH_NAMES.split())
"""Names of functions, operators and methods whose value is new memory, unless they are told to work in place."""

_FRESH_MODULES = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
)


def may_return_argument(node: Node, root: Any) -> bool:
    """Return whether the value of a node may share memory with one of its arguments; True where it is not known.

    Args:
        node: A call that does not work in place.
        root: What the graph's paths refer to.
    """
    if node.op == "call_module":
        return not isinstance(value_at(root, node.target), _FRESH_MODULES)
    if node.op == "call_method":
        return node.target not in _FRESH
    name = getattr(node.target, "__name__", None)
    if not isinstance(name, str) or name not in _FRESH:
        return True
    # The very function must be found there: a name can be claimed by anybody.
    return all(getattr(holder, name, None) is not node.target for holder in (operator, torch, functional))

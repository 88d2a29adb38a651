"""Which calls may return one of their arguments, or a view of it, instead of a new tensor."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.execute.fused import FUSED_MODULES
from fxplug.execute.paths import fetch_path, has_path
from fxplug.ir import Node, effects
from fxplug.semantics.internals import flatten_tree, storage_of
from fxplug.semantics.kinds import TENSOR_MODULES

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fxplug.ir import Graph

__all__ = ["may_copy_argument", "may_return_argument", "memory_of", "returned_nodes"]

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

_FRESH_MODULES = (*FUSED_MODULES.values(), *TENSOR_MODULES, nn.Bilinear)


def may_return_argument(node: Node, root: Any) -> bool:
    """Return whether the value of a node may share memory with one of its arguments; True where it is not known.

    Args:
        node: A call. One that writes to an argument returns it, as a rule.
        root: What the graph's paths refer to.
    """
    effect = effects.effect_of(node, root)
    if effect.unknown or effect.writes - {"state"}:
        return True
    if node.op == "call_module":
        known = root is not None and has_path(root, node.target)
        return not known or type(fetch_path(root, node.target)) not in _FRESH_MODULES
    if node.op == "call_method":
        return node.target not in _FRESH
    if node.target in _JOINING and any(_is_container(value) for value in node.args):
        return True
    name = getattr(node.target, "__name__", None)
    if not isinstance(name, str) or name not in _FRESH:
        return True
    # The very function must be found there: a name can be claimed by anybody.
    return all(getattr(holder, name, None) is not node.target for holder in (operator, torch, functional))


_JOINING = (operator.add, operator.mul)
"""Operators that put the elements of containers into a new one."""
_PARTS = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unbind"})
"""Methods and functions of torch that give containers of views."""


_COPYING_NAMES = (
    "bfloat16 bool byte char contiguous cpu cuda double float half int long short to type type_as"
)
_COPYING = frozenset(_COPYING_NAMES.split())
"""Names of methods that return their argument for some tensors, and a copy of others.

`reshape` and its like are none of them: they return a view wherever one can take their place.
"""


def may_copy_argument(node: Node) -> bool:
    """Return whether it depends on the argument if the value of a node shares memory with it."""
    return node.op == "call_method" and node.target in _COPYING


def _is_container(value: Any) -> bool:
    if not isinstance(value, Node):
        return isinstance(value, (tuple, list))
    name = value.target if value.op == "call_method" else getattr(value.target, "__name__", None)
    joins = value.target in _JOINING and any(_is_container(part) for part in value.args)
    return name in _PARTS or joins


def returned_nodes(graph: Graph, root: Any) -> set[Node]:
    """Return the nodes whose value, or memory that it may share, leaves the program.

    Args:
        graph: Any graph.
        root: What the graph's paths refer to.
    """
    waiting = [used for node in graph.find_nodes(op="output") for used in node.all_input_nodes]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if node.op.startswith("call_") and may_return_argument(node, root):
            waiting += node.all_input_nodes
    return found


def memory_of(value: Any) -> frozenset[Hashable]:
    """Return what identifies the memory of the tensors in an attribute; two that share some share an element."""
    is_module = isinstance(value, nn.Module)
    leaves = [*value.parameters(), *value.buffers()] if is_module else flatten_tree(value)[0]
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    found: set[Hashable] = {id(value)}
    for tensor in tensors:
        storage = storage_of(tensor)
        found.add(("tensor", id(tensor)) if storage is None else ("storage", storage))
    return frozenset(found)

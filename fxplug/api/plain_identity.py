"""Whether values of a plain program that compares some by identity are told apart as their nodes are.

While it is traced, each value has something of its own that stands for it, so that two of them are never one object.
That is so in eager, too, where each call returns a new tensor, and each weight has one name.
"""

# Each node of a network is looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.kinds import held_value, kind_of_node, module_at
from fxplug.capture.sameness import passes_on
from fxplug.ir import Node
from fxplug.semantics.checks import is_check
from fxplug.semantics.kinds import TENSOR, TENSOR_MODULES, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["are_objects_of_their_own"]

_NUMBERS = frozenset({int, float, torch.Size})
_INT, _FLOAT = Kind(int), Kind(float)
_PARTED = frozenset({"chunk", "split", "tensor_split", "unbind"})
"""Methods and functions that return tuples of new tensors."""


def are_objects_of_their_own(nodes: Sequence[Node], args: Sequence[torch.Tensor], root: nn.Module) -> bool:
    """Return whether the values of any two nodes are known to be two objects.

    Of numbers that hang on sizes nothing is known, here as where a program is listened to.

    Args:
        nodes: What a program does.
        args: Its inputs; what else it is given are constants.
        root: What the nodes refer to.
    """
    return len(args) == 1 and _Objects(nodes[0], args[0], root).are_told_apart(nodes)


class _Objects:
    """Goes through a program with one input.

    Args:
        given: Stands for the input.
        value: The input.
        root: What the nodes refer to.
    """

    def __init__(self, given: Node, value: torch.Tensor, root: nn.Module) -> None:
        self._kinds: dict[Node, Any] = {given: TENSOR}
        self._root = root
        self._held = {id(value)}
        """The ids of the input, and of the weights that were read."""
        self._parts: set[Any] = set()
        """Which parts of which tuples were read."""
        self._answers: dict[Any, Kind] = {}
        """What is called with arguments of which kinds -> what it returns, if that is an object of its own."""

    def are_told_apart(self, nodes: Sequence[Node]) -> bool:
        """Return whether each node has a value of its own."""
        kinds, root = self._kinds, self._root
        for node in nodes:
            op = node._op
            if op in _CALLS:
                is_own = self._is_known(node) or is_check(node) or self._is_own(node)
            elif op == "call_module" and type(module_at(root, node._target)) in TENSOR_MODULES:
                kinds[node], is_own = TENSOR, True
            elif op == "call_module":
                is_own = self._is_own(node)
            else:
                is_own = op != "get_attr" or self._is_weight(node)
            if not is_own:
                return False
        return True

    def _is_weight(self, node: Node) -> bool:
        """Return whether a node reads a weight that no other one reads, and which is no input."""
        value = held_value(node, self._root)
        is_new = id(value) not in self._held
        self._held.add(id(value))
        return is_new

    def _is_known(self, node: Node) -> bool:
        """Return whether the same was called before with arguments of the same kinds: each block of a network does."""
        key = self._key_of(node)
        answer = None if key is None else self._answers.get(key)
        if answer is None:
            return False
        self._kinds[node] = answer
        return True

    def _key_of(self, node: Node) -> Any:
        """Return what the kind of a call hangs on; None where that is more than functions and kinds of arguments."""
        kinds, args, target = self._kinds, node._args, node._target
        is_of_whole = target is operator.getitem and kinds.get(args[0]) is TENSOR
        if node._kwargs or target is getattr or (target is operator.getitem and not is_of_whole):
            return None
        # By their addresses: the kinds of all nodes are kept.
        given = [id(kinds.get(one)) if one.__class__ is Node else one.__class__ for one in args]
        return node._op, node._target, *given

    def _is_own(self, node: Node) -> bool:
        """Return whether a call returns an object that no other node stands for, or a number."""
        kinds, root = self._kinds, self._root
        if _is_parted(node):
            return True
        if node._target is operator.getitem and (kind := self._kind_of_parts(node._args[0])) is not None:
            part = node._args[:2]
            is_new = type(part[1]) is int and part[1] >= 0 and part not in self._parts
            self._parts.add(part)
            kinds[node] = kind
            return is_new
        kind = kind_of_node(node, root, kinds)
        if kind is None and node._target is operator.pow:
            kinds[node] = kind = _FLOAT  # Of numbers, since the kinds of all others are known: some number.
        if kind is None:
            return False
        is_tensor = issubclass(kind.cls, torch.Tensor)
        is_own = not passes_on(node, root) if is_tensor else kind.cls in _NUMBERS and _hangs_on_sizes(node)
        if is_own and node._op in _CALLS and (key := self._key_of(node)) is not None:
            self._answers[key] = kind
        return is_own

    def _kind_of_parts(self, value: Any) -> Kind | None:
        """Return what the elements of a tuple of tensors, or of sizes, are; None for other values."""
        if _is_parted(value):
            return TENSOR
        kind = kind_of_node(value, self._root, self._kinds)
        return _INT if kind is not None and kind.cls is torch.Size else None


_CALLS = frozenset({"call_function", "call_method"})


def _hangs_on_sizes(node: Node) -> bool:
    """Return whether a number is a size or computed from some: others are what they are where a run is listened to."""
    target: Any = node._target
    reads_sizes = target == "size" if node._op == "call_method" else target is getattr
    return reads_sizes or getattr(operator, getattr(target, "__name__", ""), None) is target


def _is_parted(node: Any) -> bool:
    """Return whether a node parts a tensor."""
    target = node._target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    is_function = node._op == "call_function" and getattr(torch, name, None) is target
    return name in _PARTED and (is_function or node._op == "call_method")

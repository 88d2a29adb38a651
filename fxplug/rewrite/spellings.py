"""Which calls of a graph are the same call of an operator, however they are spelt."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from fxplug.capture.kinds import kind_of_node
from fxplug.ir import Node
from fxplug.rewrite.calls import is_patched, value_at
from fxplug.semantics.canonical import CanonicalCall, canonical_call, canonical_name

if TYPE_CHECKING:
    from fxplug.semantics.kinds import Kind

__all__ = ["Spellings"]


class Spellings:
    """The canonical forms of the calls of one graph, for as long as the graph is not edited.

    Args:
        root: What the graph's paths refer to.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        """What the graph's paths refer to."""
        self._calls: dict[Node, CanonicalCall | None] = {}
        self._sorts: dict[Node, str | None] = {}
        self._kinds: dict[Node, Kind | None] = {}
        self._patched: dict[str, bool] = {}

    def name(self, op: str, target: Any) -> str | None:
        """Return the name of the operator that a call may be one of, without the sign of work in place."""
        module = value_at(self.root, target) if op == "call_module" else None
        name = canonical_name(op, target, module)
        return None if name is None else name.rstrip("_")

    def call(self, node: Node) -> CanonicalCall | None:
        """Return what a node calls, in full; None where it is no call of an operator on tensors."""
        if node not in self._calls:
            module = value_at(self.root, node.target) if node.op == "call_module" else None
            self._calls[node] = canonical_call(node, module) if self._may_be_of_tensors(node) else None
        return self._calls[node]

    def is_patched(self, path: str) -> bool:
        """Return whether the module at a path has hooks, or a forward of its own, that a replacement would lose."""
        known = self._patched.get(path)
        if known is None:
            known = self._patched[path] = is_patched(value_at(self.root, path))
        return known

    # -- what is no tensor

    def _may_be_of_tensors(self, node: Node) -> bool:
        """Return whether it is not known that the values that a call is given make it none of an operator."""
        inputs = node.all_input_nodes
        if inputs and all(self._sort(used) == _NUMBER for used in inputs):
            return False
        if node.op == "call_method":
            return not node.args or self._is_tensor_for_all_we_know(node.args[0])
        if node.op != "call_function" or not _is_of_python(node.target):
            return True
        return not any(self._sort_of(value) == _OBJECT for value in node.args)

    def _is_tensor_for_all_we_know(self, value: Any) -> bool:
        return not isinstance(value, Node) or self._sort(value) is None

    def _sort_of(self, value: Any) -> str | None:
        if isinstance(value, Node):
            return self._sort(value)
        return _OBJECT if value is None or isinstance(value, _OBJECTS) else None

    def _sort(self, node: Node) -> str | None:
        """Return whether a value is known to be a number of Python, or of numbers, or something else but a tensor."""
        waiting = [node]
        while waiting:
            one = waiting[-1]
            if one not in self._sorts:
                missing = [used for used in one.all_input_nodes if used not in self._sorts]
                if missing and one.op == "call_function" and _is_of_python(one.target):
                    waiting += missing
                    continue
                self._sorts[one] = self._find_sort(one)
            waiting.pop()
        return self._sorts[node]

    def _find_sort(self, node: Node) -> str | None:
        if _is_size(node):
            return _NUMBER
        kind = kind_of_node(node, self.root, self._kinds)
        if kind is not None:
            return _sort_of_kind(kind)
        if node.op == "call_method":
            return (
                _OBJECT if node.target == "split" else None
            )  # Of a tensor or of text: parts in a container.
        if node.op != "call_function" or not _is_of_python(node.target) or not node.all_input_nodes:
            return None
        if all(self._sorts[used] == _NUMBER for used in node.all_input_nodes):
            return _NUMBER
        joins = node.target in _JOINING and any(self._sort_of(value) == _OBJECT for value in node.args)
        return _OBJECT if joins else None


_NUMBER = "number"
_OBJECT = "object"
_OBJECTS = (str, tuple, list, dict, set, torch.dtype, torch.device, torch.layout)
_JOINING = frozenset((operator.add, operator.iadd, operator.mul, operator.imul))
"""Operators that make a container of containers."""
_NUMBERS = (bool, complex, float, int, str)


def _sort_of_kind(kind: Kind) -> str | None:
    if issubclass(kind.cls, torch.Tensor):
        return None
    if issubclass(kind.cls, _NUMBERS) or (kind.part is not None and issubclass(kind.part.cls, _NUMBERS)):
        return _NUMBER
    return _OBJECT


_SIZES = frozenset(
    {"dim", "element_size", "item", "ndim", "ndimension", "nelement", "numel", "shape", "size", "tolist"}
)
"""Methods and attributes of tensors that give numbers, or sequences of them."""


_NUMBER_TYPES = frozenset(_NUMBERS)
"""Annotations of inputs that are no tensors."""


def _is_size(node: Node) -> bool:
    if node.op == "placeholder":
        return node.type in _NUMBER_TYPES or (bool(node.args) and isinstance(node.args[0], (int, float)))
    if node.op == "call_method":
        return node.target in _SIZES
    return node.target is getattr and len(node.args) > 1 and node.args[1] in _SIZES


def _is_of_python(function: Any) -> bool:
    return getattr(function, "__module__", None) in {"_operator", "builtins", "math"}

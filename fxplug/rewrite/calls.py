"""Whether two calls have the same callee, and which argument of one stands where in the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.errors import GraphError
from fxplug.execute import fetch_path, has_path
from fxplug.ir import PATH_OPCODES, Node
from fxplug.semantics.canonical import CanonicalCall, canonical_call, canonical_name
from fxplug.semantics.internals import OpOverload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.ir import Graph

__all__ = ["Spellings", "argument_pairs", "is_exact_about_sequences", "same_callee", "value_at"]


def value_at(root: Any, path: str, otherwise: Mapping[str, Any] | None = None) -> Any:
    """Return what a root holds at a dotted path; where it holds nothing, what `otherwise` has for it, or None."""
    if root is not None and has_path(root, path):
        return fetch_path(root, path)
    return otherwise.get(path) if otherwise is not None else None


def same_callee(pattern_node: Node, node: Node, pattern_root: Any, root: Any) -> bool:
    """Return whether a node calls or reads what a node of a pattern does.

    Submodules and attributes are the same when they have the same path and, where both are known, the same class.
    Constants that were lifted into the graphs have no path of their own and are compared by value.
    """
    if pattern_node.op != node.op:
        return False
    if node.op == "call_function":
        return _same_function(pattern_node.target, node.target)
    if node.op == "get_attr":
        constants = _constants(pattern_node), _constants(node)
        lifted = pattern_node.target in constants[0], node.target in constants[1]
        if any(lifted):
            return all(lifted) and _same_constant(
                value_at(pattern_root, pattern_node.target, constants[0]),
                value_at(root, node.target, constants[1]),
            )
    if node.op in PATH_OPCODES:
        if pattern_node.target != node.target:
            return False
        wanted, found = value_at(pattern_root, pattern_node.target), value_at(root, node.target)
        return wanted is None or found is None or type(wanted) is type(found)
    return node.op != "call_method" or pattern_node.target == node.target


def _same_function(first: Any, second: Any) -> bool:
    if first is second:
        return True
    try:
        return bool(first == second)
    except Exception:
        return False


def _constants(node: Node) -> Mapping[str, Any]:
    return cast("Graph", node.graph).lifted


def _same_constant(first: Any, second: Any) -> bool:
    if first is second:
        return first is not None
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    if (first.dtype, first.shape, first.device) != (second.dtype, second.shape, second.device):
        return False
    return not first.is_meta and torch.equal(first, second)


def is_exact_about_sequences(node: Node) -> bool:
    """Return whether a list and a tuple may be different things to what a node calls.

    Torch's own functions take both for sizes and for tensors; ``x[[0, 1]]`` and ``x[0, 1]`` are different elements,
    and what a foreign function does with either is not known.
    """
    name = node.target
    if node.op == "call_method":
        return name.startswith("__") or not hasattr(torch.Tensor, name)
    return node.op != "call_function" or not (isinstance(name, OpOverload) or _is_of_torch(name))


def _is_of_torch(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    if isinstance(module, str):
        return module.partition(".")[0] == "torch"
    # Functions that torch defines in C++ name no module.
    return getattr(torch, getattr(function, "__name__", ""), None) is function


def argument_pairs(pattern_node: Node, node: Node, root: Any) -> list[tuple[Any, Any]] | None:
    """Return the arguments of two calls of the same callee in pairs, None where they cannot be the same call.

    Keywords may stand in any order. Where the arguments are spelt differently, both calls are written in full, as far
    as the parameters of the callee are known.
    """
    if len(pattern_node.args) == len(node.args) and pattern_node.kwargs.keys() == node.kwargs.keys():
        pairs = list(zip(pattern_node.args, node.args, strict=True))
        pairs.extend((value, node.kwargs[key]) for key, value in pattern_node.kwargs.items())
        return pairs
    wanted, found = _in_full(pattern_node, root), _in_full(node, root)
    if wanted is None or found is None or wanted.keys() != found.keys():
        return None
    return [(value, found[name]) for name, value in wanted.items()]


def _in_full(node: Node, root: Any) -> Mapping[str, Any] | None:
    try:
        pair = node.normalized_arguments(root, normalize_to_only_use_kwargs=True)
    except GraphError:  # Several overloads would give the arguments different meanings.
        return None
    return None if pair is None else pair.kwargs


class Spellings:
    """The canonical forms of the calls of one graph.

    Args:
        root: What the graph's paths refer to.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        """What the graph's paths refer to."""
        self._calls: dict[Node, CanonicalCall | None] = {}
        self._numbers: dict[Node, bool] = {}

    def name(self, op: str, target: Any) -> str | None:
        """Return the name of the operator that a call may be one of, without the sign of work in place."""
        module = value_at(self.root, target) if op == "call_module" else None
        name = canonical_name(op, target, module)
        return None if name is None else name.rstrip("_")

    def call(self, node: Node) -> CanonicalCall | None:
        """Return what a node calls, in full; None where it is no call of an operator on tensors."""
        if node not in self._calls:
            module = value_at(self.root, node.target) if node.op == "call_module" else None
            self._calls[node] = None if self._is_about_numbers(node) else canonical_call(node, module)
        return self._calls[node]

    def _is_about_numbers(self, node: Node) -> bool:
        """Return whether the values that a call is given are known to be numbers of Python, such as sizes."""
        inputs = node.all_input_nodes
        return bool(inputs) and all(map(self._is_number, inputs))

    def _is_number(self, node: Node) -> bool:
        waiting = [node]
        while waiting:
            one = waiting[-1]
            known = self._numbers.get(one)
            if known is None:
                known = _is_size(one)
                inputs = one.all_input_nodes
                if not known and one.op == "call_function" and inputs and _is_of_python(one.target):
                    missing = [used for used in inputs if used not in self._numbers]
                    if missing:
                        waiting += missing
                        continue
                    known = all(self._numbers[used] for used in inputs)
                self._numbers[one] = known
            waiting.pop()
        return self._numbers[node]


_SIZES = frozenset(
    {"dim", "element_size", "item", "ndim", "ndimension", "nelement", "numel", "shape", "size", "tolist"}
)
"""Methods and attributes of tensors that give numbers, or sequences of them."""


_NUMBER_TYPES = frozenset({bool, complex, float, int, str})
"""Annotations of inputs that are no tensors."""


def _is_size(node: Node) -> bool:
    if node.op == "placeholder":
        return node.type in _NUMBER_TYPES or (bool(node.args) and isinstance(node.args[0], (int, float)))
    if node.op == "call_method":
        return node.target in _SIZES
    return node.target is getattr and len(node.args) > 1 and node.args[1] in _SIZES


def _is_of_python(function: Any) -> bool:
    return getattr(function, "__module__", None) in {"_operator", "builtins", "math"}

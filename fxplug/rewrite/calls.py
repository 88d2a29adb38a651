"""Whether two calls have the same callee, and which argument of one stands where in the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.errors import GraphError
from fxplug.execute import fetch_path, has_path
from fxplug.ir import PATH_OPCODES, Node
from fxplug.rewrite.values import same_value
from fxplug.semantics.canonical import has_old_order, repeats_defaults
from fxplug.semantics.internals import OpOverload, has_hooks, modules_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fxplug.ir import Graph

__all__ = [
    "argument_pairs",
    "is_exact_about_sequences",
    "is_of_torch",
    "is_patched",
    "pairs_by_name",
    "same_callee",
    "value_at",
]


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
        if node.op == "call_module" and is_patched(value_at(root, node.target)):
            return False
        wanted, found = value_at(pattern_root, pattern_node.target), value_at(root, node.target)
        return wanted is None or found is None or type(wanted) is type(found)
    return node.op != "call_method" or pattern_node.target == node.target


def is_patched(module: Any) -> bool:
    """Return whether a module has hooks or a forward of its own, itself or below it, which a replacement would lose."""
    if not isinstance(module, nn.Module):
        return False
    parts = module.modules() if modules_of(module) else (module,)
    return any(has_hooks(part) or "forward" in vars(part) for part in parts)


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
    return node.op != "call_function" or not (isinstance(name, OpOverload) or is_of_torch(name))


def is_of_torch(function: Any) -> bool:
    """Return whether a function is one that torch defines."""
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
    given = {*list(wanted)[: len(pattern_node.args)], *pattern_node.kwargs}
    given.difference_update(repeats_defaults(pattern_node.target, pattern_node.kwargs))
    return pairs_by_name(wanted, found, given)


def pairs_by_name(
    wanted: Mapping[str, Any], found: Mapping[str, Any], given: Collection[str]
) -> list[tuple[Any, Any]] | None:
    """Return the arguments of two calls in pairs, None where one that the pattern leaves out is not the default.

    Args:
        wanted: Those of the pattern by name, in full.
        found: Those of the graph, with the same names.
        given: The names of those that the pattern does not leave out.
    """
    if not all(name in given or same_value(value, found[name]) for name, value in wanted.items()):
        return None
    return [(value, found[name]) for name, value in wanted.items()]


def _in_full(node: Node, root: Any) -> Mapping[str, Any] | None:
    if has_old_order(node.op, node.target, node.args):
        return None
    try:
        pair = node.normalized_arguments(root, normalize_to_only_use_kwargs=True)
    except GraphError:  # Several overloads would give the arguments different meanings.
        return None
    return None if pair is None else pair.kwargs

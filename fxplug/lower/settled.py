"""Checks that an engine need not run: what it was compiled for, which is looked at before it runs, answers them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import iterate_leaves
from fxplug.semantics.checks import CHECKS, check_raises, class_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.execute import GraphModule
    from fxplug.ir import Node
    from fxplug.lower.backend import LoweringContext
    from fxplug.lower.profile import Profile

__all__ = ["NOT_SETTLED", "is_check", "settled_checks", "without_checks"]

NOT_SETTLED = (
    "it checks something that dtypes and sizes of the inputs do not tell, that the captured program relies on; such "
    "checks run in PyTorch"
)
"""Why a check stays in PyTorch."""
_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim"})
_METHODS = frozenset({"size", "dim", "ndimension", "numel", "nelement", "__len__", "is_floating_point"})
_FUNCTIONS: tuple[Any, ...] = (
    len,
    isinstance,
    class_of,
    torch.is_tensor,
    torch.is_floating_point,
    torch.numel,
)
"""What of a tensor follows from the dtypes, devices and sizes that a profile fixes."""


def is_check(node: Node) -> bool:
    """Return whether a call only checks what the captured program relies on."""
    return node.op == "call_function" and node.target in CHECKS


def settled_checks(module: GraphModule, context: LoweringContext, profile: Profile | None) -> set[Node]:
    """Return the checks of a program that hold for all inputs of a profile.

    Args:
        module: Not changed.
        context: Knows the module and its example inputs, for which all checks hold.
        profile: What inputs are accepted; None for all of them.
    """
    checks = [node for node in module.graph.nodes if is_check(node) and node.target is not check_raises]
    if not checks or profile is None or not profile.is_closed:
        return set()
    values = context.values
    known: dict[Node, bool] = {}
    for node in module.graph.nodes:
        known[node] = node in values and _is_known(node, values, known)
    return {node for node in checks if node in values and all(known[used] for used in node.all_input_nodes)}


def _is_known(node: Node, values: Mapping[Node, Any], known: Mapping[Node, bool]) -> bool:
    """Return whether dtypes and sizes of the inputs tell what a node returns, but for the elements of tensors."""
    if not node.op.startswith("call_"):
        return True
    if not all(known[used] for used in node.all_input_nodes):
        return False
    if _has_tensor(values[node]) or not any(_has_tensor(values[used]) for used in node.all_input_nodes):
        return True
    if node.op == "call_method":
        return node.target in _METHODS
    if node.target is getattr:
        return node.args[1] in _ATTRIBUTES
    return any(node.target is known for known in _FUNCTIONS)


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in iterate_leaves((value,)))


def without_checks(program: GraphModule, context: LoweringContext, profile: Profile | None) -> GraphModule:
    """Return a program without the checks that hold for all inputs of a profile; the program itself if it has none.

    Args:
        program: Not changed.
        context: Knows the program and its example inputs.
        profile: What inputs are accepted.
    """
    settled = settled_checks(program, context, profile)
    if not settled:
        return program
    made = copy.copy(program)
    graph = copy.deepcopy(program.graph)
    for node, copied in list(zip(program.graph.nodes, graph.nodes, strict=True)):
        if node in settled:
            graph.erase_node(copied)
    made.graph = graph
    return made

"""Calls of ``autograd.Function``: an engine runs their forward, where this is all that such a call does."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import Node, effects, iterate_leaves
from fxplug.semantics.internals import opaque_functions
from fxplug.semantics.python_code import is_plain_constant, reason_against_function

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["called_function", "only_computes", "reason_against_forward"]

_METHODS = frozenset(
    {"save_for_backward", "save_for_forward", "mark_non_differentiable", "set_materialize_grads"}
)
"""Of a context, what only matters for gradients."""


def called_function(node: Node) -> type[torch.autograd.Function] | None:
    """Return the ``autograd.Function`` that a node applies; None where it does something else."""
    target: Any = node.target
    owner = getattr(target, "__self__", None) if node.op == "call_function" else None
    if not (isinstance(owner, type) and issubclass(owner, torch.autograd.Function)):
        return None
    is_apply = getattr(target, "__func__", None) is opaque_functions()["apply"]
    return owner if is_apply else None


def reason_against_forward(node: Node, values: Mapping[Node, Any], *, may_write: bool = True) -> str:
    """Return why a call of an ``autograd.Function`` is more than the operators of its forward; empty where it is not.

    Lowering is without gradients, so that the backward is no matter.

    Args:
        node: Where `called_function` returns a class.
        values: What nodes return, where it is known.
        may_write: Whether it may write in place, of which operators tell.
    """
    owner = called_function(node)
    if owner is None:
        return "it applies no autograd.Function"
    for leaf in iterate_leaves((node.args, node.kwargs)):
        value = values.get(leaf) if isinstance(leaf, Node) else leaf
        if not (
            isinstance(value, torch.Tensor)
            or (is_plain_constant(value) and value is not None)
            or leaf is None
        ):
            return f"its forward ({owner.__qualname__}) takes {leaf!r}, which is neither a tensor nor a plain value"
    own_context = getattr(owner, "setup_context") is not torch.autograd.Function.setup_context  # noqa: B009
    forward = _static(owner, "forward")
    read = partial(reason_against_function, owner_methods=_METHODS, may_write=may_write)
    reason = read(forward, has_owner=not own_context)
    if not reason and own_context:
        reason = read(_static(owner, "setup_context"), has_owner=True)
    return reason and f"its forward ({owner.__qualname__}) may do more than compute: {reason}"


def _static(owner: type, name: str) -> Any:
    found = inspect.getattr_static(owner, name)
    return found.__func__ if isinstance(found, staticmethod) else found


def only_computes(node: Node, values: Mapping[Node, Any]) -> bool:
    """Return whether a call of unknown effects applies an ``autograd.Function`` that only computes and never writes."""
    return (
        called_function(node) is not None
        and effects.effect_of(node).unknown
        and not reason_against_forward(node, values, may_write=False)
    )

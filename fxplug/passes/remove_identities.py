"""Identities: calls that return what they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.execute import fetch_path, has_path
from fxplug.ir import Node
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.rewrite.adoption import drop_unreached
from fxplug.semantics.internals import has_hooks
from fxplug.semantics.libraries import what_does

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["RemoveIdentities"]

# Exact classes only: a subclass may compute something else.
_DROPOUT_MODULES = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
_DROPOUT_FUNCTIONS: dict[Any, str] = {
    functional.dropout: "training",
    functional.dropout1d: "training",
    functional.dropout2d: "training",
    functional.dropout3d: "training",
    functional.alpha_dropout: "training",
    functional.feature_alpha_dropout: "training",
    torch.dropout: "train",
    torch.alpha_dropout: "train",
    torch.feature_alpha_dropout: "train",
    torch.feature_dropout: "train",
}
"""Function -> the name of its parameter that says whether it does anything."""


class RemoveIdentities(Pass):
    """Removes calls that return the very tensor that they are given: `nn.Identity`, and dropout that is switched off.

    Stochastic depth of torchvision is dropout, too. Dropout in training mode stays, and so do modules with hooks,
    modules with a ``forward`` of their own, and subclasses. What is removed does not come back when the module is put
    into training mode later.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Remove identities."""
        in_training = 0
        removed: list[Node] = []
        for node in module.graph.nodes:
            switched_on = _switched_on(module, node)
            if switched_on:
                in_training += 1
            given = _given(node) if switched_on is False else None
            if given is not None and context.allows(node, "remove"):
                node.replace_all_uses_with(given)
                module.graph.erase_node(node)
                removed.append(node)
        drop_unreached(module, [str(node.target) for node in removed if node.op == "call_module"])
        text = (
            f"removed {len(removed)} identit{'ies' if len(removed) != 1 else 'y'}"
            if removed
            else "no identity to remove"
        )
        if in_training:
            text += f"; {in_training} left alone in training mode (call eval() first)"
        return PassResult(bool(removed), text, {"removed": len(removed), "in_training": in_training})


def _switched_on(module: GraphModule, node: Node) -> bool | None:
    """Return whether a call that may be an identity is none; None for a call of something else."""
    if node.op == "call_module" and has_path(module, node.target):
        called = fetch_path(module, node.target)
        if has_hooks(called) or "forward" in vars(called):
            return None
        if type(called) is nn.Identity:
            return False
        return called.training if type(called) in _DROPOUT_MODULES else None
    name = _switch_of(node.target) if node.op == "call_function" else None
    if name is None:
        return None
    call = node.normalized_arguments(module, normalize_to_only_use_kwargs=True)
    training = None if call is None else call.kwargs.get(name)
    return training if isinstance(training, bool) else None


def _switch_of(target: Any) -> str | None:
    """Return the name of the parameter that says whether a function drops anything; None for other functions."""
    for function, name in _DROPOUT_FUNCTIONS.items():
        if target is function:
            return name
    return "training" if what_does(target) == "drops in training" else None


def _given(node: Node) -> Node | None:
    """Return what the call is given, None where that is no value of the graph."""
    values = [*node.args[:1], *(node.kwargs[name] for name in ("input", "x") if name in node.kwargs)]
    return values[0] if len(values) == 1 and isinstance(values[0], Node) else None

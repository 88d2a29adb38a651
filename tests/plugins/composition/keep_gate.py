"""A leaf rule, and a note that another plugin wants to make too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fxplug import Node


@hookimpl
def fxplug_is_leaf_module(module: nn.Module) -> bool | None:
    """Keep what is called ``Gate`` as one node."""
    return True if type(module).__name__ == "Gate" else None


@hookimpl
def fxplug_node_created(node: Node) -> Mapping[str, str]:
    """Claim a key that everybody wants."""
    return {"shared.first": "keep-gate", "keep-gate.op": node.op}

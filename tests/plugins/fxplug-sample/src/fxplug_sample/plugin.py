"""What the plugin adds: a leaf rule, a note on every node, and a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug import Pass, PassRecord, PassResult, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from fxplug import GraphModule, Node, PassContext, TraceContext


@hookimpl
def fxplug_is_leaf_module(module: nn.Module) -> bool | None:
    """Keep modules whose class is called ``SampleBlock`` as one node."""
    return True if type(module).__name__ == "SampleBlock" else None


@hookimpl
def fxplug_node_created(node: Node, context: TraceContext) -> Mapping[str, Any]:
    """Note what is traced and what the node does."""
    return {"sample.note": f"{type(context.root).__name__}: {node.op}"}


@hookimpl
def fxplug_register_passes() -> Iterable[PassRecord]:
    """Offer `SingleRelu`, also to the pipeline ``inference``."""
    yield PassRecord(
        "single-relu",
        SingleRelu,
        "Removes a torch.relu that directly follows another one.",
        before=("propagate-shapes",),
        preserves=frozenset({"shapes", "effects"}),
        pipelines=("inference",),
    )


class SingleRelu(Pass):
    """Makes ``relu(relu(x))`` one ``relu(x)``, which has the same values."""

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Remove every relu of a relu."""
        removed = 0
        for node in list(module.graph.nodes):
            if _is_relu(node) and _is_relu(node.args[0]):
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
                removed += 1
        return PassResult(removed > 0, f"removed {removed} needless relus", {"removed": removed})


def _is_relu(value: Any) -> bool:
    return (
        getattr(value, "op", None) == "call_function" and value.target is torch.relu and len(value.args) == 1
    )

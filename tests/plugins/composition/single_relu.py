"""A pass that joins the pipeline ``inference`` in front of one of fxplug's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fxplug import Pass, PassRecord, PassResult, hookimpl

if TYPE_CHECKING:
    from fxplug import GraphModule, PassContext


class SingleRelu(Pass):
    """Makes ``relu(relu(x))`` one ``relu(x)``."""

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Remove every relu of a relu."""
        found = list(module.graph.find_nodes(op="call_function", target=torch.relu))
        needless = [node for node in found if node.args[0] in found]
        for node in needless:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        return PassResult(bool(needless))


@hookimpl
def fxplug_register_passes() -> list[PassRecord]:
    """Offer the pass."""
    record = PassRecord(
        "single-relu",
        SingleRelu,
        "Removes a relu that directly follows another one.",
        before=("fuse-conv-bn",),
        pipelines=("inference",),
    )
    return [record]

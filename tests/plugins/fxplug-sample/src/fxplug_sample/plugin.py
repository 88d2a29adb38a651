"""What the plugin adds: a leaf rule, a note on every node, and a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug import Pass, PassRecord, PassResult, hookimpl, replace_pattern

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
        """Replace every relu of a relu."""
        removed = 0
        while places := replace_pattern(module, _twice, _once):
            removed += len(places)
        return PassResult(removed > 0, f"removed {removed} needless relus", {"removed": removed})


def _twice(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.relu(x))


def _once(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)

"""A pass that joins the pipeline ``inference`` in front of one of fxplug's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fxplug import Pass, PassRecord, PassResult, hookimpl, replace_pattern

if TYPE_CHECKING:
    from fxplug import GraphModule, PassContext


class SingleRelu(Pass):
    """Makes ``relu(relu(x))`` one ``relu(x)``."""

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Replace every relu of a relu."""
        return PassResult(bool(replace_pattern(module, twice, once)))


def twice(x: torch.Tensor) -> torch.Tensor:
    """Compute what is looked for."""
    return torch.relu(torch.relu(x))


def once(x: torch.Tensor) -> torch.Tensor:
    """Compute the same with one call less."""
    return torch.relu(x)


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

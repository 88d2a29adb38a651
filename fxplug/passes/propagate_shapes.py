"""Noting shapes and dtypes on every node."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from fxplug.analyze import propagate_shapes
from fxplug.passes.base import Pass, PassContext, PassResult

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["PropagateShapes"]


class PropagateShapes(Pass):
    """Runs the graph on the example inputs and notes the metadata of each value in ``node.meta["tensor_meta"]``.

    Buffers, inputs and random state are as before afterwards: the run works on copies. Does nothing without
    example inputs.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Note shapes."""
        if context.example_inputs is None:
            return PassResult(modified=False, summary="skipped: there are no example inputs")
        inputs = copy.deepcopy(context.example_inputs)
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        try:
            with torch.random.fork_rng(devices=[]):
                propagate_shapes(module, *inputs)
        finally:
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    if not torch.equal(buffer, buffers[name]):
                        buffer.copy_(buffers[name])
        known = sum("tensor_meta" in node.meta for node in module.graph.nodes)
        return PassResult(modified=False, summary=f"noted {known} shapes", details={"shapes": known})

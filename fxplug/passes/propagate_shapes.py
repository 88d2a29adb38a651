"""Noting shapes and dtypes on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.analyze import propagate_shapes
from fxplug.analyze.isolation import copy_values
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.passes.kept_state import saved_before_trial
from fxplug.semantics.random_state import kept_random_state

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
        inputs = copy_values(context.example_inputs)
        # Compared by value: batch norm writes its statistics without counting up the tensor's version.
        saved = saved_before_trial(module, module)
        try:
            with kept_random_state():
                propagate_shapes(module, *inputs)
        finally:
            saved.restore()
        known = sum("tensor_meta" in node.meta for node in module.graph.nodes)
        return PassResult(modified=False, summary=f"noted {known} shapes", details={"shapes": known})

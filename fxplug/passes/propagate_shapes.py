"""Noting shapes and dtypes on every node."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze import propagate_shapes
from fxplug.analyze.isolation import tensors_of
from fxplug.execute import fetch_path
from fxplug.ir import effects, map_aggregate
from fxplug.passes.base import Pass, PassContext, PassResult
from fxplug.semantics.random_state import kept_random_state

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        inputs = map_aggregate(context.example_inputs, _own_copy, frozen=False)
        written = {id(tensor): (tensor, tensor.clone()) for tensor in _state_that_is_written(module)}
        try:
            with kept_random_state():
                propagate_shapes(module, *inputs)
        finally:
            with torch.no_grad():
                # Compared by value: batch norm writes its statistics without counting up the tensor's version.
                for tensor, before in written.values():
                    if not tensor.is_meta and not torch.equal(tensor, before):
                        tensor.copy_(before)
        known = sum("tensor_meta" in node.meta for node in module.graph.nodes)
        return PassResult(modified=False, summary=f"noted {known} shapes", details={"shapes": known})


def _own_copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    return value.detach().clone().requires_grad_(value.requires_grad)


def _state_that_is_written(module: GraphModule) -> Iterator[torch.Tensor]:
    """Yield every buffer, and the parameters of modules that write their own state when they are called."""
    yield from module.buffers()
    for node in module.graph.find_nodes(op="call_module", sort=False):
        effect = effects.effect_of(node, module)
        if effect.unknown or "state" in effect.writes:
            part = module.get_submodule(str(node.target))
            yield from part.parameters()
            yield from (value for _, value in tensors_of(part))
    for node in module.graph.find_nodes(op="get_attr", sort=False):
        value = fetch_path(module, str(node.target))
        if isinstance(value, torch.Tensor):
            yield value

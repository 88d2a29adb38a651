"""What a run of a graph may write besides buffers: what has to be put back where the run was a trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.analyze.isolation import SavedState, tensors_in
from fxplug.execute.aliases import memory_of
from fxplug.ir import effects
from fxplug.passes.sharing import written_memory
from fxplug.rewrite.calls import value_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn

    from fxplug.execute import GraphModule

__all__ = ["saved_before_trial", "state_that_is_written"]


def saved_before_trial(module: nn.Module, graph_module: GraphModule) -> SavedState:
    """Return a module as it is, without what a run of it leaves alone: most of the weights.

    Args:
        module: Not changed.
        graph_module: What it was made of, which may be the same; its graph says what a run writes.
    """
    parts, tensors = state_that_is_written(graph_module)
    return SavedState(module, buffers_only=True, besides=tensors, parts=parts)


def state_that_is_written(module: GraphModule) -> tuple[list[nn.Module], list[torch.Tensor]]:
    """Return the modules of which a run may change anything, and the other tensors that it may write."""
    parts = [
        module.get_submodule(str(node.target))
        for node in module.graph.find_nodes(op="call_module", sort=False)
        if effects.effect_of(node, module).unknown
    ]
    written = written_memory(module)
    if not written:
        return parts, []
    return parts, [tensor for tensor in _tensors_of(module) if not written.isdisjoint(memory_of(tensor))]


def _tensors_of(module: GraphModule) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
    for path in module.graph.distinct_targets("get_attr"):
        value: Any = value_at(module, path, module.graph.lifted)
        yield from tensors_in(value)

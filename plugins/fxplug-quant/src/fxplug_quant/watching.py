"""Running a module on its example inputs to see what its values are, without a trace in its state."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from fxplug.semantics import kept_random_state
from fxplug_quant.calls import read_calls, writes_in_place
from fxplug_quant.flow import Seen

if TYPE_CHECKING:
    from collections.abc import Generator

    from fxplug import GraphModule, Node

__all__ = ["see", "state_kept"]


def see(module: GraphModule, inputs: tuple[Any, ...]) -> dict[Node, Seen]:
    """Return what the values of a module are on its example inputs."""
    found: dict[Node, Seen] = {}

    class Watching(fxplug.Interpreter):
        def run_node(self, n: Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, torch.Tensor):
                found[n] = Seen(value.dtype, tuple(value.shape))
            return value

    inputs = copy.deepcopy(inputs)
    with torch.no_grad(), kept_random_state(), state_kept(module):
        Watching(module).run(*inputs)
    return found


@contextmanager
def state_kept(module: GraphModule) -> Generator[None]:
    """Put parameters and buffers back that calls write, so that running a module on data leaves no trace in it."""
    writes = any(writes_in_place(module, call) for call in read_calls(module).values())
    tensors = [*module.parameters(), *module.buffers()] if writes else []
    former = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in zip(tensors, former, strict=True):
                # Who watches for writes need not hear of one that changes nothing.
                if not torch.equal(tensor, values):
                    tensor.copy_(values)

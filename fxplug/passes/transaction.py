"""Undoing a pass: what a module was, and how to make it that again."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from fxplug.execute import GraphModule
    from fxplug.ir import Graph

__all__ = ["Snapshot"]

_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


@dataclass(frozen=True)
class Snapshot:
    """The graph and the module tree as they were.

    Which objects stand at which path is recorded, not what tensors contain: a pass puts new parameters in the
    place of old ones and leaves the values of the old ones alone.
    """

    graph: Graph
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...]

    @classmethod
    def of(cls, module: GraphModule) -> Snapshot:
        """Return a snapshot of `module`, at a cost that grows with nodes and modules but not with parameters."""
        states: list[tuple[nn.Module, dict[str, Any]]] = []
        for part in module.modules():
            state = dict(vars(part))
            for name in _TABLES:
                state[name] = copy.copy(state[name])
            states.append((part, state))
        graph = copy.deepcopy(module.graph)
        graph.observers = list(module.graph.observers)
        return cls(graph, tuple(states))

    def restore(self, module: GraphModule) -> None:
        """Make `module` what it was; the graph is a new object that equals the former one."""
        for part, state in self.attributes:
            vars(part).clear()
            vars(part).update(state)
        module.graph = self.graph

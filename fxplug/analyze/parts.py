"""Graph modules that others call, such as the parts of a split program: they are described node by node, too."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from fxplug.analyze.memory import MemoryProp
from fxplug.analyze.shapes import ShapeProp
from fxplug.execute import GraphModule
from fxplug.execute.folder import overriding_class
from fxplug.semantics.internals import has_hooks

if TYPE_CHECKING:
    from fxplug.ir import Node

__all__ = ["MemoryPropWithParts", "ShapePropWithParts", "part_of"]

_NOTE = "described_part"


def part_of(node: Node) -> GraphModule | None:
    """Return the graph module that a node calls, with notes of this call on its nodes; None where it calls no such."""
    found = node.meta.get(_NOTE)
    return found if isinstance(found, GraphModule) else None


class ShapePropWithParts(ShapeProp):
    """Notes the metadata of every value, also inside of graph modules that are called.

    They are copies that get the notes, one for each call.
    """

    def run_node(self, n: Node) -> Any:
        """Run one node and note what is known of it."""
        self._part: GraphModule | None = None
        value = super().run_node(n)
        if self._part is not None:
            n.meta[_NOTE] = self._part
        return value

    def call_module(self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the submodule, node by node where it has a graph and does what that says."""
        called = self.fetch_attr(target)
        is_part = isinstance(called, GraphModule) and overriding_class(called, GraphModule) is None
        if not is_part or kwargs or has_hooks(called):
            return super().call_module(target, args, kwargs)
        part = copy.copy(called)
        part.graph = copy.deepcopy(called.graph)
        value = type(self)(part).run(*args)
        self._part = part
        return value


class MemoryPropWithParts(ShapePropWithParts, MemoryProp):
    """Notes what memory each node takes besides; inside of a graph module, what its inputs take is left out."""

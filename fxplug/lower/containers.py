"""Containers of results: putting values into them is no work for an engine, and taking them out again none at all."""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any

import torch

from fxplug.ir import Node, effects
from fxplug.semantics.constructors import ContainerParts, is_container_call, parts_of_call, parts_of_literal

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fxplug.execute import GraphModule
    from fxplug.lower.backend import LoweringContext

__all__ = ["container_calls", "without_container_reads"]

_MISSING: Any = object()
_READS = (operator.getitem, getattr)


def container_calls(module: GraphModule, values: Mapping[Node, Any]) -> set[Node]:
    """Return the calls that only put values into new containers: a tuple, a dict, a dataclass of results.

    A class of which a plugin says that it does something besides is a call as any other.

    Args:
        module: Not changed.
        values: What nodes return, where it is known.
    """
    kinds = {node: type(value) for node, value in values.items()}
    return {
        node
        for node in module.graph.nodes
        if is_container_call(node, kinds.get) and effects.effect_of(node, module).is_pure
    }


def without_container_reads(
    module: GraphModule, context: LoweringContext, kept: Collection[str] = ()
) -> GraphModule:
    """Return a program that uses values themselves where it would take them out of containers that it has made.

    So a partition goes on behind such a container, which no engine makes. Nodes keep their names.

    Args:
        module: Not changed.
        context: Knows it.
        kept: Names of nodes that are left as they are.

    Returns:
        The module itself where there is nothing to do.
    """
    if not any(map(is_container_call, module.graph.nodes)):
        return module
    finder = _Finder(context)
    found = {node: value for node, value in finder.find(module).items() if node.name not in kept}
    if not found:
        return module
    made = copy.copy(module)
    graph = copy.deepcopy(module.graph)
    copies = dict(zip(module.graph.nodes, graph.nodes, strict=True))
    for node, value in found.items():
        copies[node].replace_all_uses_with(copies[value])
    gone = {copies[node] for node in (*found, *finder.makers) if node.name not in kept}
    for node in sorted(gone, reverse=True):
        if not node.users:
            graph.erase_node(node)
    made.graph = graph
    return made


class _Finder:
    """Finds which values are taken out of containers.

    Args:
        context: Knows the module.
    """

    def __init__(self, context: LoweringContext) -> None:
        self._values = context.values
        self.makers: dict[Node, ContainerParts] = {}
        """Calls that make containers, and reads of containers that stand in their arguments."""
        self._reads: dict[Node, Node] = {}

    def find(self, module: GraphModule) -> dict[Node, Node]:
        """Return read -> the value that it returns."""
        for node in module.graph.nodes:
            if (
                is_container_call(node)
                and effects.effect_of(node, module).is_pure
                and self._stays(node, module)
            ):
                parts = parts_of_call(node, self._is_tensor)
                if parts is not None:
                    self.makers[node] = parts
                continue
            value = self._read(node)
            if isinstance(value, Node):
                self._reads[node] = value = self._reads.get(value, value)
                if value in self.makers:
                    self.makers[node] = self.makers[value]
            elif value is not _MISSING and (parts := parts_of_literal(value)) is not None:
                self.makers[node] = parts
        return self._reads

    def _is_tensor(self, node: Node) -> bool:
        return isinstance(self._values.get(node), torch.Tensor)

    def _read(self, node: Node) -> Any:
        """Return what a node takes out of a container, as it stands in the graph."""
        if node.op != "call_function" or node.kwargs or len(node.args) != 2 or node.target not in _READS:
            return _MISSING
        source, key = node.args
        if not isinstance(source, Node) or source not in self.makers or type(key) not in {int, str}:
            return _MISSING
        parts = self.makers[source]
        held = parts.items if node.target is operator.getitem else parts.attributes
        return held.get(key, _MISSING)

    def _stays(self, node: Node, module: GraphModule) -> bool:
        """Return whether nobody changes the container that a node makes, or holds, as long as the program runs."""
        waiting, seen = [node], {node}
        while waiting:
            for user in waiting.pop().users:
                if user.op == "output" or user in seen:
                    continue
                # Also who returns a tensor: `list.pop`, or a function that fills the dict that it is given.
                if not effects.effect_of(user, module).is_pure:
                    return False
                seen.add(user)
                if not self._is_tensor(user):
                    waiting.append(user)
        return True

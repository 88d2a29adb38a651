"""Which values share memory with something that is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.execute.aliases import may_return_argument, memory_of
from fxplug.ir import Graph, Node, effects
from fxplug.rewrite.calls import value_at

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable

    from fxplug.execute import GraphModule

__all__ = ["WrittenMemory", "writes_by_layout"]

_BY_LAYOUT = frozenset(
    {
        "contiguous",
        "flatten",
        "ravel",
        "reshape",
        "reshape_as",
        "to",
        torch.flatten,
        torch.ravel,
        torch.reshape,
    }
)
"""What gives back a view of a tensor, or a copy, as the tensor lies in memory."""
_NO_NODES: frozenset[Node] = frozenset()


def writes_by_layout(module: GraphModule) -> bool:
    """Return whether it depends on the layout of tensors in memory which of them a program writes to.

    Args:
        module: Not changed.
    """
    found = [node for node in module.graph.nodes if _is_by_layout(module, node)]
    if not found:
        return False
    noisy = [node for node in module.graph.nodes if not effects.effect_of(node, module).is_pure]
    memory = WrittenMemory(module.graph, module, noisy)
    return any(memory.holds(node, _NO_NODES) for node in found)


def _is_by_layout(module: GraphModule, node: Node) -> bool:
    if node.op == "call_module":
        return isinstance(value_at(module, node.target), nn.Flatten)
    return node.op in {"call_function", "call_method"} and node.target in _BY_LAYOUT


class WrittenMemory:
    """The values of a graph that share memory with what some node may write.

    What lies near no write is told at once, from a set that is kept up to date and may hold too many; only for its
    elements the values that share memory are looked at one by one.

    Args:
        graph: May be edited; `forget` and `learn` have to be told. A value that takes the place of another one shares
            memory with it, or neither of them with something that is written.
        root: What the graph's paths refer to.
        noisy: The nodes that do more than compute.
    """

    def __init__(self, graph: Graph, root: Any, noisy: Iterable[Node]) -> None:
        self._graph = graph
        self._root = root
        self._memory: dict[str, frozenset[Hashable]] = {}
        self._paths: dict[Hashable, list[str]] = {}
        self._passes: dict[Node, bool] = {}
        self._writers: set[Node] = set()
        self._updates_state = 0
        self._near: set[Node] = set()
        for path in graph.distinct_targets("get_attr"):
            self._memory_at(path)
        for node in noisy:
            self._add_writer(node)

    def _add_writer(self, node: Node) -> None:
        effect = effects.effect_of(node, self._root)
        if "state" in effect.writes:
            self._updates_state += 1
            self._spread(self._graph.find_nodes(op="get_attr", sort=False))
        if effect.unknown or effect.writes - {"state"}:
            self._writers.add(node)
            self._spread([node, *node.all_input_nodes])

    # -- edits

    def forget(self, node: Node) -> None:
        """Hear that `node` is about to be erased."""
        self._near.discard(node)
        self._passes.pop(node, None)
        self._writers.discard(node)
        if "state" in effects.effect_of(node, self._root).writes:
            self._updates_state -= 1

    def learn(self, node: Node) -> None:
        """Hear that `node` was made, and has its users."""
        if node.op == "get_attr":
            self._memory_at(node.target)
        self._add_writer(node)
        is_read = node.op == "get_attr" and self._updates_state
        if is_read or not self._near.isdisjoint(self._sharing(node)) or self._is_written_by(node, _NO_NODES):
            self._spread([node])

    def _spread(self, nodes: Iterable[Node]) -> None:
        waiting = [node for node in nodes if node not in self._near]
        self._near.update(waiting)
        while waiting:
            found = [node for node in self._sharing(waiting.pop()) if node not in self._near]
            self._near.update(found)
            waiting += found

    # -- questions

    def holds(self, node: Node, besides: Collection[Node]) -> bool:
        """Return whether another node may write the value of `node`: itself, a view of it, or what it is a view of.

        Args:
            node: Any node.
            besides: Nodes that do not count.
        """
        if node not in self._near:
            return False
        same = {node}
        waiting = [node]
        while waiting:
            value = waiting.pop()
            if value.op == "get_attr" and self._updates_state:
                return True  # A module may update what is read here.
            if self._is_written_by(value, besides):
                return True
            found = [other for other in self._sharing(value) if other not in same and other not in besides]
            same.update(found)
            waiting += found
        return False

    def _is_written_by(self, value: Node, besides: Collection[Node]) -> bool:
        return any(user in self._writers and user not in besides for user in value.users)

    def _sharing(self, node: Node) -> list[Node]:
        """Return the nodes whose values may share memory with that of `node`."""
        if node.op == "get_attr":
            found = self._reading_the_same(node)
        elif node.op == "placeholder" or not self._shares(node):
            found = []
        else:
            found = node.all_input_nodes
        return found + [user for user in node.users if user.op != "output" and self._shares(user)]

    def _shares(self, node: Node) -> bool:
        known = self._passes.get(node)
        if known is None:
            known = self._passes[node] = may_return_argument(node, self._root)
        return known

    def _reading_the_same(self, node: Node) -> list[Node]:
        """Return the reads of the same memory, under whatever paths."""
        paths = {path: None for part in self._memory_at(node.target) for path in self._paths[part]}
        return [
            found
            for path in paths
            for found in self._graph.find_nodes(op="get_attr", target=path, sort=False)
        ]

    def _memory_at(self, path: str) -> frozenset[Hashable]:
        known = self._memory.get(path)
        if known is None:
            value = value_at(self._root, path, self._graph.lifted)
            known = self._memory[path] = frozenset({path}) if value is None else memory_of(value)
            for part in known:
                self._paths.setdefault(part, []).append(path)
        return known

"""What the value of a node is computed from, where calls write in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.execute.aliases import may_return_argument
from fxplug.ir import Node, effects, iterate_leaves

if TYPE_CHECKING:
    from fxplug.ir import Graph

__all__ = ["sources_of", "written_nodes"]


def written_nodes(node: Node, root: Any) -> list[Node]:
    """Return the nodes among the arguments of a call that it is known to write to.

    Args:
        node: Any node.
        root: What the graph's paths refer to.
    """
    keys = effects.effect_of(node, root).writes - {"state"}
    values = [
        node.args[key] if isinstance(key, int) else node.kwargs[key]
        for key in keys
        if (key < len(node.args) if isinstance(key, int) else key in node.kwargs)
    ]
    return [leaf for leaf in iterate_leaves(tuple(values)) if isinstance(leaf, Node)]


def sources_of(graph: Graph, root: Any) -> dict[Node, list[Node]]:
    """Return for each node what it is computed from: its inputs, and the calls that wrote to their memory last.

    Values that may share memory are taken to share it. Of several writes to the same memory the last one stands for
    all: it is computed from those before it.

    Args:
        graph: In order.
        root: What its paths refer to.
    """
    memory = _Memory()
    found: dict[Node, list[Node]] = {}
    reads: dict[Any, Node] = {}
    for node in graph.nodes:
        inputs = node.all_input_nodes
        sources = dict.fromkeys(inputs)
        for used in inputs:
            sources.update(memory.writers(used))
        found[node] = list(sources)
        if node.op == "get_attr":
            memory.join(node, reads.setdefault(node.target, node))
            found[node] = list(memory.writers(node))
        if not node.op.startswith("call_"):
            continue
        if may_return_argument(node, root):
            for used in inputs:
                memory.join(node, used)
        for used in written_nodes(node, root):
            memory.write(used, node)
    return found


class _Memory:
    """Nodes whose values may share memory, and who wrote to it last."""

    def __init__(self) -> None:
        self._parent: dict[Node, Node] = {}
        self._writers: dict[Node, dict[Node, None]] = {}

    def _find(self, node: Node) -> Node:
        top = node
        while (parent := self._parent.get(top, top)) is not top:
            top = parent
        while node is not top:
            self._parent[node], node = top, self._parent[node]
        return top

    def join(self, first: Node, second: Node) -> None:
        one, other = self._find(first), self._find(second)
        if one is not other:
            self._parent[one] = other
            former = self._writers.pop(one, {})
            if former:
                self._writers[other] = {**self._writers.get(other, {}), **former}

    def write(self, node: Node, writer: Node) -> None:
        self._writers[self._find(node)] = {writer: None}

    def writers(self, node: Node) -> dict[Node, None]:
        return self._writers.get(self._find(node), {})

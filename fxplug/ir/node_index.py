"""Finding nodes by opcode and target, without walking the graph."""

# Node, ring and graph are one data structure, and share its inner parts.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fxplug.ir.node import Node

__all__ = ["NodeIndex", "nodes_that_call", "position_of"]

position_of = attrgetter("_position")
"""Orders nodes of a graph whose ring is numbered."""


class NodeIndex:
    """The nodes of one graph, grouped by opcode and target.

    Args:
        nodes: All that stand in the graph.
    """

    __slots__ = ("_groups",)

    def __init__(self, nodes: Iterable[Node]) -> None:
        groups: dict[tuple[str, Any], dict[Node, None]] = {}
        self._groups = groups
        for node in nodes:
            try:  # Written out: it is done for every node of the graph.
                group = groups.get((node._op, node._target))
            except TypeError:  # An unhashable callable.
                group = None
            if group is not None:
                group[node] = None
            else:
                self.add(node, node._op, node._target)

    def add(self, node: Node, op: str, target: Any) -> None:
        """Take in a node.

        Args:
            node: Not taken in yet.
            op: The opcode that it has, or is about to get.
            target: The target that it has, or is about to get.
        """
        try:
            self._groups.setdefault((op, target), {})[node] = None
        except TypeError:  # An unhashable callable.
            self._groups.setdefault((op, id(target)), {})[node] = None

    def remove(self, node: Node) -> None:
        """Forget a node, while it has the opcode and the target that it was taken in with."""
        group = self._group(node._op, node._target)
        if group is not None:
            group.pop(node, None)

    def with_target(self, op: str, target: Any) -> list[Node]:
        """Return the nodes with an opcode and a target, in no particular order."""
        return list(self._group(op, target) or ())

    def with_opcode(self, op: str) -> list[Node]:
        """Return the nodes with an opcode, in no particular order."""
        return [node for (key, _), group in self._groups.items() if key == op for node in group]

    def targets(self, op: str) -> list[Any]:
        """Return every target that nodes with an opcode have, each once."""
        return [next(iter(group))._target for (key, _), group in self._groups.items() if key == op and group]

    def that_call(self, wanted: Callable[[str, Any], bool]) -> list[Node]:
        """Return the nodes whose opcode and target are wanted, in no particular order; see `nodes_that_call`."""
        groups = [
            group
            for (op, _), group in self._groups.items()
            if group and wanted(op, next(iter(group))._target)
        ]
        return [node for group in groups for node in group]

    def _group(self, op: str, target: Any) -> dict[Node, None] | None:
        try:
            return self._groups.get((op, target))
        except TypeError:
            return self._groups.get((op, id(target)))


def nodes_that_call(nodes: Iterable[Node], wanted: Callable[[str, Any], bool]) -> list[Node]:
    """Return the nodes whose opcode and target are wanted, in their order.

    Args:
        nodes: They are walked through once, which takes less than making an index of them.
        wanted: Called with opcode and target, once for each pair of them.
    """
    known: dict[str, dict[Any, bool]] = defaultdict(dict)
    found: list[Node] = []
    for node in nodes:
        target, answers = node._target, known[node._op]
        try:
            answer = answers.get(target)
        except TypeError:  # An unhashable callable.
            answer = wanted(node._op, target)
        else:
            if answer is None:
                answer = answers[target] = wanted(node._op, target)
        if answer:
            found.append(node)
    return found

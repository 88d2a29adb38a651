"""What a place of a graph that is like a pattern is described by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fxplug.ir import Node, Region

__all__ = ["InternalMatch"]


@dataclass(slots=True)
class InternalMatch:
    """One place that is like the pattern."""

    anchors: list[Node]
    """The nodes of the pattern from which the match was found."""
    nodes_map: dict[Node, Any] = field(default_factory=dict[Node, Any])
    """Node of the pattern -> node of the graph; a placeholder may stand for a plain value or a container."""
    placeholder_nodes: list[Any] = field(default_factory=list[Any])
    """What the pattern's placeholders stand for, in their order."""
    returning_nodes: list[Any] = field(default_factory=list[Any])
    """What the pattern returns, each once, in the order in which it does."""
    name_node_map: dict[str, Node] = field(default_factory=dict[str, Node])
    """Kept for the form that torch.fx gives a match; empty."""
    members: tuple[Node, ...] = ()
    """The nodes of the graph that do the work of the match, in the order of the graph."""
    around: Region = ()
    """The region in which the match lies."""

    def __copy__(self) -> InternalMatch:
        return InternalMatch(
            self.anchors,
            dict(self.nodes_map),
            list(self.placeholder_nodes),
            list(self.returning_nodes),
            members=self.members,
            around=self.around,
        )

    def calls(self) -> list[Node]:
        """Return the nodes of the graph that do the work of the match, in the order of the graph."""
        return list(self.members)

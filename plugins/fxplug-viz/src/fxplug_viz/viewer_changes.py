"""What became of a graph, as part of the data of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.ir import printable
from fxplug_viz.difference import named

if TYPE_CHECKING:
    from fxplug_viz.difference import GraphDifference, NodeChange

__all__ = ["TITLE", "lay_changes_over"]

TITLE = "what changed"
"""The title of the overlay."""


def lay_changes_over(data: dict[str, Any], before: dict[str, Any], difference: GraphDifference) -> None:
    """Note on the data of a graph what became of the graph before it.

    Args:
        data: That of the second graph of the difference; gets an overlay, and an entry on each node.
        before: That of the first graph; its nodes are told where to go on.
        difference: What became of one in the other.
    """
    positions = {node["n"]: position for position, node in enumerate(data["nodes"])}
    olds = {node["n"]: node for node in before["nodes"]}
    kinds: list[list[Any]] = []
    gone: list[str] = []
    for change in difference.changes:
        for old in change.before:
            if change.after is not None and old.name in olds:
                olds[old.name]["y"] = change.after.name
        if change.after is None:
            gone += [old.name for old in change.before]
        elif change.after.name in positions:
            position = positions[change.after.name]
            kinds.append([position, change.kind])
            data["nodes"][position]["x"] = _entry(change, difference)
    data["before"] = before["id"]
    data["gone"] = gone
    data["note"] = difference.summary().replace("->", "→")
    overlay = {"title": TITLE, "unit": "", "aggregate": "sum", "kind": "change", "unmatched": 0}
    data["overlays"].insert(0, {**overlay, "values": sorted(kinds)})


def _entry(change: NodeChange, difference: GraphDifference) -> list[Any]:
    """Return kind, the nodes that it came from, each with what it called, and the details."""
    before = [[old.name, printable(named(old, difference.first_module))] for old in change.before]
    return [change.kind, before, [printable(text) for text in change.details]]

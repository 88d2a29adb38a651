"""Two graphs in one picture: the second one, with what the first one had besides."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from fxplug_viz.clusters import Cluster, cluster_lines, cluster_tree
from fxplug_viz.difference import named
from fxplug_viz.dot import column_lines, graph_attributes, html_label
from fxplug_viz.drawing import write_picture
from fxplug_viz.escaping import identifier, record
from fxplug_viz.labels import label_rows
from fxplug_viz.options import DrawOptions
from fxplug_viz.rendering import format_of
from fxplug_viz.selection import Edge, columns_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from typing_extensions import Unpack

    from fxplug.ir import Node
    from fxplug_viz.difference import GraphDifference, NodeChange
    from fxplug_viz.options import DrawSettings
    from fxplug_viz.rendering import Format

__all__ = ["CHANGE_COLOURS", "diff_dot_text", "draw_diff"]

CHANGE_COLOURS = {
    "same": "#f4f4f4",
    "changed": "#fdf0c8",
    "moved": "#cfe8fc",
    "fused": "#e0d4f5",
    "added": "#d5efd3",
    "removed": "#f7cfd3",
}
"""What became of a node -> its background."""

_ADDED, _REMOVED = "#2e7d32", "#b00020"


def draw_diff(
    difference: GraphDifference,
    path: str | os.PathLike[str],
    format: Format | None = None,  # noqa: A002 - as in hooks
    **settings: Unpack[DrawSettings],
) -> Path:
    """Draw what became of a graph into a file; see `draw`.

    Args:
        difference: What `diff` returned.
        path: An older file is replaced.
        format: By default what the path ends in.
        **settings: See `DrawOptions`; the colours tell what became of a node, and nothing is hidden.

    Returns:
        The path.

    Raises:
        ConfigError: A setting or a format makes no sense.
        StorageError: The file cannot be written.
        DrawingError: Graphviz is missing or failed. The DOT text was written then, beside the path.
    """
    kind = format_of(path, format)
    return write_picture(diff_dot_text(difference, **settings), Path(path), kind)


def diff_dot_text(difference: GraphDifference, **settings: Unpack[DrawSettings]) -> str:
    """Return a picture of what became of a graph in the DOT language.

    Nodes and edges of the second graph are there once; those that only the first one had are dashed. A node that
    several were fused into names them.
    """
    options = DrawOptions.of(settings)
    return "\n".join(["digraph {", *_Overlay(difference, options).lines(), "}"]) + "\n"


class _Overlay:
    def __init__(self, difference: GraphDifference, options: DrawOptions) -> None:
        self.difference, self.options = difference, options
        self.changes: dict[Node, NodeChange] = {}
        self.image: dict[Node, Node] = {}
        for change in difference.changes:
            shown = change.before[0] if change.after is None else change.after
            self.changes[shown] = change
            self.image.update(dict.fromkeys(change.before, shown))
        self.nodes = list(self.changes)
        self.is_brief = options.is_brief(len(self.nodes))

    def lines(self) -> Iterator[str]:
        for statement in graph_attributes(self._label(), self.options.direction, is_brief=self.is_brief):
            yield f"  {statement}"
        edges = self._edges()
        columns = columns_of(self.nodes, list(edges), self.options.column_length(len(self.nodes)))
        numbers = itertools.count()
        trees = [
            cluster_tree(column) if self.options.clusters else Cluster(nodes=column) for column in columns
        ]
        yield from column_lines(
            [list(cluster_lines(tree, self._node, numbers, self.options.longest)) for tree in trees],
            [self._name(column[0]) for column in columns if column],
        )
        place = {node: index for index, column in enumerate(columns) for node in column}
        for edge, style in edges.items():
            attributes = [style] if style else []
            if place[edge.source] != place[edge.user]:
                # A dash would say that the edge is gone.
                attributes.append('constraint="false", weight="0"')
            shown = f" [{', '.join(attributes)}]" if attributes else ""
            yield f"  {identifier(self._name(edge.source))} -> {identifier(self._name(edge.user))}{shown};"

    def _label(self) -> str:
        title = self.options.title
        if title is None:
            counts = self.difference.counts()
            title = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
            if self.difference.is_unrelated:
                title += "; the two programs have nothing in common"
        present = {change.kind for change in self.changes.values()}
        legend = {kind: colour for kind, colour in CHANGE_COLOURS.items() if kind in present}
        return html_label(title, [], legend if self.options.legend else {}, self.options.longest)

    def _edges(self) -> dict[Edge, str]:
        """Return the edges of both graphs, each once, with how they are drawn."""
        former = {
            (self.image[used], self.image[node])
            for node in self.difference.first.nodes
            for used in node.all_input_nodes
        }
        edges: dict[Edge, str] = {}
        current: set[tuple[Node, Node]] = set()
        for node in self.difference.second.nodes:
            for used in node.all_input_nodes:
                current.add((used, node))
                edges[Edge(used, node)] = (
                    "" if (used, node) in former else f'color="{_ADDED}", penwidth="1.5"'
                )
        for node in self.difference.first.nodes:
            for used in node.all_input_nodes:
                pair = self.image[used], self.image[node]
                if pair not in current and pair[0] is not pair[1]:
                    edges[Edge(*pair)] = f'color="{_REMOVED}", style="dashed"'
        return edges

    def _name(self, node: Node) -> str:
        return f"before: {node.name}" if self.changes[node].kind == "removed" else node.name

    def _node(self, node: Node) -> str:
        change = self.changes[node]
        module = self.difference.first_module if change.after is None else self.difference.second_module
        rows = label_rows(node, module, brief=self.is_brief)
        if change.kind == "fused":
            parts = " + ".join(named(old, self.difference.first_module) for old in change.before)
            rows.insert(1, [f"fused from {parts}"])
        elif change.kind != "same" and change.details:
            rows += [[detail] for detail in change.details]
        attributes = [
            f"label={record(rows, self.options.longest, self.options.direction)}",
            f'fillcolor="{CHANGE_COLOURS[change.kind]}"',
        ]
        if change.kind == "removed":
            attributes.append(f'style="filled,rounded,dashed", color="{_REMOVED}"')
        return f"{identifier(self._name(node))} [{', '.join(attributes)}];"

"""Which nodes and edges of a graph are drawn, and where a long graph is broken."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from fxplug.execute import fetch_path, has_path
from fxplug.ir import Node, argument_text
from fxplug_viz.clusters import modules_around

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fxplug.execute import GraphModule
    from fxplug.ir import Graph

__all__ = ["Edge", "columns_of", "shown_edges", "shown_nodes"]

# Columns may be longer or shorter than asked for by this share, so that fewer edges are broken.
_SLACK = 0.25


@dataclass(frozen=True)
class Edge:
    """An edge of a picture."""

    source: Node
    user: Node
    label: str = ""
    """The elements of the value that are used, where the nodes that take them are hidden."""


def shown_nodes(graph: Graph, module: GraphModule | None, hide: Collection[str]) -> list[Node]:
    """Return the nodes that are drawn, in the order of the graph."""
    return [node for node in graph.nodes if not _is_hidden(node, module, hide)]


def _is_hidden(node: Node, module: GraphModule | None, hide: Collection[str]) -> bool:
    if node.op == "get_attr":
        return "get_attr" in hide or ("constants" in hide and _is_constant(node, module))
    return "getitem" in hide and _is_getitem(node)


def _is_getitem(node: Node) -> bool:
    return (
        node.op == "call_function"
        and node.target is operator.getitem
        and len(node.args) == 2
        and isinstance(node.args[0], Node)
        and node.all_input_nodes == [node.args[0]]
    )


def _is_constant(node: Node, module: GraphModule | None) -> bool:
    path = str(node.target)
    if module is None or not has_path(module, path):
        return False
    value = fetch_path(module, path)
    if isinstance(value, nn.Parameter):
        return False
    holder_path, _, name = path.rpartition(".")
    holder = fetch_path(module, holder_path) if holder_path else module
    is_saved = isinstance(holder, nn.Module) and name in holder.state_dict()
    return isinstance(value, Tensor) and not is_saved


def shown_edges(nodes: Sequence[Node], hide: Collection[str]) -> list[Edge]:
    """Return the edges between nodes that are drawn, each pair of nodes once, in the order of the users."""
    shown = set(nodes)
    edges: list[Edge] = []
    for node in nodes:
        labels: dict[Node, dict[str, None]] = {}
        for used in node.all_input_nodes:
            source, label = _behind_elements(used, shown, hide)
            if source in shown:
                labels.setdefault(source, {})[label] = None
        edges += [Edge(source, node, ", ".join(filter(None, texts))) for source, texts in labels.items()]
    return edges


def _behind_elements(used: Node, shown: set[Node], hide: Collection[str]) -> tuple[Node, str]:
    """Return the node that holds a value whose own node is hidden, and which element of it the value is."""
    label = ""
    while used not in shown and "getitem" in hide and _is_getitem(used):
        index = used.args[1]
        label = f"[{repr(index) if isinstance(index, str) else argument_text(index)}]{label}"
        holder = used.args[0]
        assert isinstance(holder, Node)  # Nothing else is hidden.
        used = holder
    return used, label


def columns_of(nodes: Sequence[Node], edges: Sequence[Edge], length: int | None) -> list[list[Node]]:
    """Break nodes into columns of about the same length, where the fewest values and modules are broken.

    Args:
        nodes: In the order of the graph.
        edges: Between them.
        length: Of a column; None: there is one.
    """
    if length is None or len(nodes) <= length:
        return [list(nodes)]
    crossing = _crossing_values(nodes, edges)
    around = [modules_around(node) for node in nodes]
    columns: list[list[Node]] = []
    start, slack = 0, max(1, int(length * _SLACK))
    while len(nodes) - start > length + slack:
        cuts = range(start + length - slack, start + length + slack + 1)
        wanted = start + length
        cut = min(cuts, key=lambda at: (crossing[at], _shared(around[at - 1], around[at]), abs(at - wanted)))
        columns.append(list(nodes[start:cut]))
        start = cut
    return [*columns, list(nodes[start:])]


def _shared(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many modules lie around both of two nodes: a cut between these goes through them."""
    return sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )


def _crossing_values(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[int]:
    """Return, for each place between nodes, how many values are made before it and used behind it."""
    position = {node: index for index, node in enumerate(nodes)}
    last: dict[Node, int] = {}
    for edge in edges:
        last[edge.source] = max(last.get(edge.source, 0), position[edge.user])
    change = [0] * (len(nodes) + 2)
    for source, user in last.items():
        change[position[source] + 1] += 1
        change[user + 1] -= 1
    return list(itertools.accumulate(change))

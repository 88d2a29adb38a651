"""The data form of a graph: plain values in, plain values out.

Pickling and file storage both go through it. Nodes are numbered; an argument that is a node becomes a
`NodeRef` with its number. Targets that are callables stay what they are: whoever writes a file decides how
they are named.
"""

# The notes are read where they are: the property in front of them would fill them in.
# pyright: reportPrivateUsage=false
from __future__ import annotations

import copyreg
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fxplug.errors import ForeignNodeError, GraphError, StorageError
from fxplug.ir.arguments import EMPTY_DICT, Argument, map_aggregate
from fxplug.ir.code import CodeTransformer, Transformation
from fxplug.ir.graph import Graph
from fxplug.ir.node import Node
from fxplug.ir.notes import map_notes
from fxplug.ir.origins import Origin, origins_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["FORMAT_VERSION", "NodeRef", "graph_from_data", "graph_to_data"]

FORMAT_VERSION = 1
_FLAT = frozenset({bool, float, int, str, type(None)})
"""Exact types of values that hold no others."""
_FLAT_OR_NODE = _FLAT | {Node}


@dataclass(frozen=True, slots=True)
class NodeRef:
    """Stands for the node with the given number, counted from 0."""

    index: int


_FLAT_OR_REFERENCE = _FLAT | {NodeRef}


def graph_to_data(graph: Graph, describe_origin: Callable[[Origin], Any] = Origin.to_data) -> dict[str, Any]:
    """Return a graph as plain values.

    Args:
        graph: The graph. It is not changed.
        describe_origin: Turns an origin into what stands in the data.

    Returns:
        ``{"version": int, "keyword_only": [...], "captured_training": ..., "nodes": [...]}``; each node is a dict of
        its opcode, name, target, arguments (nodes as `NodeRef`), annotation, notes, region and origins.
    """
    nodes = list(graph.nodes)
    references = {node: NodeRef(number) for number, node in enumerate(nodes)}

    def refer(leaf: Any) -> Any:
        # A note may name a node that is gone; nothing stands for it in a copy.
        return references.get(leaf) if isinstance(leaf, Node) else leaf

    def refer_args(args: tuple[Argument, ...]) -> Any:
        if len(args) == 1 and args[0].__class__ is Node:
            return (references.get(cast("Node", args[0])),)
        kinds = set(map(type, args))
        if kinds <= _FLAT_OR_NODE:  # Almost always, and a fraction of the work.
            return tuple([refer(value) for value in args]) if Node in kinds else args
        return map_aggregate(args, refer)

    return {
        "version": FORMAT_VERSION,
        "keyword_only": sorted(graph.keyword_only),
        "captured_training": graph.captured_training,
        "nodes": [
            {
                "op": node._op,
                "name": node._name,
                "target": node._target,
                "args": refer_args(node._args),
                "kwargs": dict(map_aggregate(node._kwargs, refer)) if node._kwargs else {},
                "type": node._type,
                "meta": None if node._meta is None else map_notes(_lasting(node.meta), refer),
                "region": node._region,
                "origins": [describe_origin(origin) for origin in origins_in(node._origin)],
            }
            for node in nodes
        ],
    }


def _lasting(notes: dict[str, Any]) -> dict[str, Any]:
    """Return notes without values that have no data: they belong to the process, and to the mode that made them."""
    return {key: value for key, value in notes.items() if key != "val"} if "val" in notes else notes


def graph_from_data(
    data: dict[str, Any], restore_origin: Callable[[Any], Origin] = Origin.from_data
) -> Graph:
    """Return the graph that `graph_to_data` described, equal in every respect.

    Args:
        data: What `graph_to_data` returned.
        restore_origin: Makes an origin of what stands for it.

    Raises:
        StorageError: The data has another version, or refers to a node that does not come earlier.
    """
    if data.get("version") != FORMAT_VERSION:
        raise StorageError(
            f"Cannot restore a graph: its data has version {data.get('version')!r}, this fxplug reads "
            f"{FORMAT_VERSION}."
        )
    try:
        return _restore(data, restore_origin)
    except (AttributeError, GraphError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"Cannot restore a graph: its data is damaged ({type(error).__name__}: {error})."
        ) from error


class _Resolver:
    """Puts the nodes that were made so far in the place of references to them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def resolve(self, leaf: Any) -> Any:
        if not isinstance(leaf, NodeRef):
            return leaf
        if not 0 <= leaf.index < len(self.nodes):
            raise StorageError(
                f"Cannot restore a graph: node {len(self.nodes)} refers to node {leaf.index}, which does not come "
                "earlier.",
                code="FXP-S009",
            )
        return self.nodes[leaf.index]

    def args(self, args: tuple[Any, ...]) -> tuple[Argument, ...]:
        if len(args) == 1 and args[0].__class__ is NodeRef:
            return (self.resolve(args[0]),)
        kinds = set(map(type, args))
        if kinds <= _FLAT_OR_REFERENCE:
            return tuple([self.resolve(value) for value in args]) if NodeRef in kinds else args
        return cast("tuple[Argument, ...]", map_aggregate(args, self.resolve))

    def kwargs(self, kwargs: dict[str, Any]) -> Mapping[str, Argument]:
        return cast("dict[str, Argument]", map_aggregate(kwargs, self.resolve)) if kwargs else EMPTY_DICT


def _restore(data: dict[str, Any], restore_origin: Callable[[Any], Origin]) -> Graph:
    graph = Graph()
    graph.keyword_only = frozenset(data.get("keyword_only", ()))
    graph.captured_training = data.get("captured_training")
    resolver = _Resolver()
    nodes = resolver.nodes
    for entry in data["nodes"]:
        node = graph.create_node(
            entry["op"],
            entry["target"],
            resolver.args(entry["args"]),
            resolver.kwargs(entry["kwargs"]),
            entry["name"],
            entry["type"],
        )
        if node._name != entry["name"]:
            raise StorageError(
                f"Cannot restore a graph: the name {entry['name']!r} is taken or not a valid name.",
                code="FXP-S008",
            )
        origins = entry["origins"]
        if len(origins) == 1:
            node._origin = restore_origin(origins[0])
        elif origins:
            node.origins = tuple([restore_origin(origin) for origin in origins])
        if entry["region"]:
            node.region = tuple(entry["region"])
        nodes.append(node)
    for node, entry in zip(nodes, data["nodes"], strict=True):
        # Notes may name nodes that come later, so they are restored when all nodes stand.
        if entry["meta"] is not None:
            node.meta = map_notes(entry["meta"], resolver.resolve)
    return graph


def _reduce_graph(graph: Graph) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    kind = graph._tracer_cls
    # A tracer defined inside a function cannot be found again; how a graph was made is no part of what it does.
    findable = kind is not None and "<locals>" not in kind.__qualname__
    state = {
        "lifted": graph.lifted,
        "_codegen": graph._codegen,
        "_tracer_cls": kind if findable else None,
        "_tracer_extras": graph._tracer_extras,
    }
    transformers = [entry.transformer for entry in graph._transformations]
    return _restore_graph, (graph_to_data(graph), transformers), state


def _restore_graph(data: dict[str, Any], transformers: list[CodeTransformer | None]) -> Graph:
    graph = graph_from_data(data)
    graph._transformations = tuple([Transformation(graph, transformer) for transformer in transformers])
    return graph


copyreg.pickle(Graph, _reduce_graph)


def _reduce_node(node: Node) -> tuple[Any, tuple[Any, ...]]:
    for number, other in enumerate(cast("Graph", node.graph).nodes):
        if other is node:
            return _nth_node, (node.graph, number)
    raise ForeignNodeError(
        f"Cannot copy or pickle node {node.name!r}: it does not stand in its graph any more. Drop the reference to it."
    )


def _nth_node(graph: Graph, number: int) -> Node:
    return list(graph.nodes)[number]


copyreg.pickle(Node, _reduce_node)

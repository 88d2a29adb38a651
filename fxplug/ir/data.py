"""The data form of a graph: plain values in, plain values out.

Pickling and file storage both go through it. Nodes are numbered; an argument that is a node becomes a
`NodeRef` with its number. Targets that are callables stay what they are: whoever writes a file decides how
they are named.
"""

# The notes are read where they are: the property in front of them would fill them in.
# pyright: reportPrivateUsage=false
from __future__ import annotations

import copyreg
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fxplug.errors import ForeignNodeError, GraphError, StorageError
from fxplug.ir.arguments import EMPTY_DICT, Argument, map_aggregate
from fxplug.ir.code import CodeTransformer, Transformation
from fxplug.ir.finding import by_name
from fxplug.ir.graph import Graph
from fxplug.ir.node import Node
from fxplug.ir.notes import map_notes
from fxplug.ir.origins import Origin, origins_in
from fxplug.ir.regions import PLAIN, Region, RegionEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fxplug.ir.guards import StateGuard
    from fxplug.ir.origins import StoredOrigin

__all__ = [
    "FORMAT_VERSION",
    "GraphBuilder",
    "NodeData",
    "NodeRef",
    "describe_nodes",
    "graph_from_data",
    "graph_to_data",
    "node_reference",
]

FORMAT_VERSION = 1
_FLAT = frozenset({bool, float, int, str, type(None)})
"""Exact types of values that hold no others."""
_FLAT_OR_NODE = _FLAT | {Node}


@dataclass(frozen=True, slots=True)
class NodeRef:
    """Stands for the node with the given number, counted from 0."""

    index: int


node_reference = functools.lru_cache(maxsize=4096)(NodeRef)
"""Returns the `NodeRef` with a number: the same one each time, since most numbers are referred to often."""

_FLAT_OR_REFERENCE = _FLAT | {NodeRef}


class NodeData(NamedTuple):
    """What one node is, in plain values; arguments and notes name other nodes by `NodeRef`."""

    op: str
    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    type: Any
    meta: dict[str, Any] | None
    """None where nobody has asked for the notes yet."""
    region: Region
    origin: StoredOrigin


def graph_to_data(graph: Graph, describe_origin: Callable[[Origin], Any] = Origin.to_data) -> dict[str, Any]:
    """Return a graph as plain values.

    Args:
        graph: The graph. It is not changed.
        describe_origin: Turns an origin into what stands in the data.

    Returns:
        ``{"version": int, "keyword_only": [...], "captured_training": ..., "state_guards": (...),
        "training_overrides": {...}, "nodes": [...]}``; each node is a dict of its opcode, name, target,
        arguments (nodes as `NodeRef`), annotation, notes, region and origins.
    """
    nodes: list[dict[str, Any]] = []
    for node in describe_nodes(graph):
        entry = node._asdict()
        entry["origins"] = [describe_origin(origin) for origin in origins_in(entry.pop("origin"))]
        nodes.append(entry)
    return {
        "version": FORMAT_VERSION,
        "keyword_only": sorted(graph.keyword_only),
        "captured_training": graph.captured_training,
        "state_guards": graph.state_guards,
        "training_overrides": graph.training_overrides,
        "nodes": nodes,
    }


def describe_nodes(graph: Graph) -> list[NodeData]:
    """Return what each node of a graph is, in order. The graph is not changed."""
    nodes = graph.nodes.listed()
    references = {node: node_reference(number) for number, node in enumerate(nodes)}

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

    return [
        NodeData(
            node._op,
            node._name,
            node._target,
            refer_args(node._args),
            dict(map_aggregate(node._kwargs, refer)) if node._kwargs else {},
            node._type,
            None if node._meta is None else map_notes(_lasting(node.meta), refer),
            node._region,
            node._origin,
        )
        for node in nodes
    ]


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
    try:
        builder = GraphBuilder(
            data.get("version"),
            data.get("keyword_only", ()),
            training=data.get("captured_training"),
            state_guards=data.get("state_guards", ()),
            training_overrides=data.get("training_overrides", {}),
        )
        for entry in data["nodes"]:
            origins = tuple([restore_origin(origin) for origin in entry["origins"]])
            builder.add(
                entry["op"],
                entry["name"],
                entry["target"],
                entry["args"],
                entry["kwargs"],
                entry["type"],
                entry["meta"],
                tuple(entry["region"]),
                origins[0] if len(origins) == 1 else origins or None,
            )
        return builder.finish()
    except _FAULTS as error:
        raise _damaged(error) from error


_FAULTS = (AttributeError, GraphError, IndexError, KeyError, TypeError, ValueError)
"""What goes wrong where data is not as it should be."""


def _damaged(error: Exception) -> StorageError:
    if isinstance(error, StorageError):
        return error
    return StorageError(f"Cannot restore a graph: its data is damaged ({type(error).__name__}: {error}).")


class GraphBuilder:
    """Makes a graph of what its nodes are, one after the other.

    Args:
        version: Of the data; see `FORMAT_VERSION`.
        keyword_only: Names of the parameters that are keyword-only.
        training: What `Graph.captured_training` is to be.
        state_guards: What `Graph.state_guards` is to be.
        training_overrides: What `Graph.training_overrides` is to be.

    Raises:
        StorageError: The data has another version.
    """

    def __init__(
        self,
        version: Any,
        keyword_only: Iterable[str] = (),
        *,
        training: bool | None = None,
        state_guards: Iterable[StateGuard] = (),
        training_overrides: Mapping[str, tuple[bool, bool]] | None = None,
    ) -> None:
        if version != FORMAT_VERSION:
            raise StorageError(
                f"Cannot restore a graph: its data has version {version!r}, this fxplug reads {FORMAT_VERSION}."
            )
        self._graph = Graph()
        self._graph.keyword_only = frozenset(keyword_only)
        self._graph.captured_training, self._graph.state_guards = training, tuple(state_guards)
        self._graph.training_overrides = dict(training_overrides or {})
        self._nodes: list[Node] = []
        self._notes: list[tuple[Node, dict[str, Any]]] = []

    def add(  # noqa: PLR0913, PLR0917 - the parts of `NodeData`
        self,
        op: str,
        name: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        annotation: Any = None,
        meta: dict[str, Any] | None = None,
        region: Region = PLAIN,
        origin: StoredOrigin = None,
    ) -> None:
        """Append a node; see `NodeData` for its parts.

        Raises:
            StorageError: It refers to a node that does not come earlier, its name is taken or no name, or its parts do
                not make a node.
        """
        try:
            node = self._graph.create_node(
                op,
                target,
                self._arguments(args),
                self._named_arguments(kwargs) if kwargs else EMPTY_DICT,
                name,
                annotation,
            )
            node._origin = origin
        except _FAULTS as error:
            raise _damaged(error) from error
        if node._name != name:
            raise StorageError(
                f"Cannot restore a graph: the name {name!r} is taken or not a valid name.", code="FXP-S008"
            )
        if region:
            node.region = region
        self._nodes.append(node)
        if meta is not None:
            self._notes.append((node, meta))

    def finish(self) -> Graph:
        """Return the graph. Notes may name nodes that come later, so they are restored now that all nodes stand.

        Raises:
            StorageError: A note refers to no node.
        """
        try:
            for node, meta in self._notes:
                node.meta = map_notes(meta, self._resolve)
        except _FAULTS as error:
            raise _damaged(error) from error
        return self._graph

    def _resolve(self, leaf: Any) -> Any:
        """Return the node that a reference stands for; everything else stands for itself."""
        if leaf.__class__ is not NodeRef:
            return leaf
        if not 0 <= leaf.index < len(self._nodes):
            raise StorageError(
                f"Cannot restore a graph: node {len(self._nodes)} refers to node {leaf.index}, which does not come "
                "earlier.",
                code="FXP-S009",
            )
        return self._nodes[leaf.index]

    def _arguments(self, args: tuple[Any, ...]) -> tuple[Argument, ...]:
        if len(args) == 1 and args[0].__class__ is NodeRef:
            return (self._resolve(args[0]),)
        kinds = set(map(type, args))
        if kinds <= _FLAT_OR_REFERENCE:
            return tuple(map(self._resolve, args)) if NodeRef in kinds else args
        return cast("tuple[Argument, ...]", map_aggregate(args, self._resolve))

    def _named_arguments(self, kwargs: dict[str, Any]) -> dict[str, Argument]:
        if _FLAT_OR_REFERENCE.issuperset(map(type, kwargs.values())):
            return {name: self._resolve(value) for name, value in kwargs.items()}
        return cast("dict[str, Argument]", map_aggregate(kwargs, self._resolve))


def _reduce_graph(graph: Graph) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    kind = graph._tracer_cls
    # A tracer defined inside a function cannot be found again; how a graph was made is no part of what it does.
    findable = kind is not None and "<locals>" not in kind.__qualname__
    state = {
        "lifted": {path: by_name(value) for path, value in graph.lifted.items()},
        "_codegen": graph._codegen,
        "_tracer_cls": kind if findable else None,
        "_tracer_extras": graph._tracer_extras,
    }
    transformers = [entry.transformer for entry in graph._transformations]
    data = graph_to_data(graph)
    for entry in data["nodes"]:
        entry["target"] = by_name(entry["target"])
        entry["args"], entry["kwargs"] = map_aggregate((entry["args"], entry["kwargs"]), by_name)
        entry["meta"] = None if entry["meta"] is None else map_notes(entry["meta"], by_name)
        entry["region"] = tuple([RegionEntry(by_name(one.context), one.arguments) for one in entry["region"]])
    return _restore_graph, (data, transformers), state


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

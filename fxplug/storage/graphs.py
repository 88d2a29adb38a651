"""Graphs as JSON: the data form of `fxplug.ir.data`, with functions by name and origins in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.codegen import CodeGen
from fxplug.codegen.signature import signature_of
from fxplug.errors import FxplugError
from fxplug.ir import (
    OPCODES,
    PATH_OPCODES,
    NodeRef,
    RegionEntry,
    check_structure,
    graph_from_data,
    graph_to_data,
)
from fxplug.storage.annotations import decode_annotation, encode_annotation
from fxplug.storage.faults import Codes, Refusal, checked, entry_fields
from fxplug.storage.modules import check_path
from fxplug.storage.origins import ORIGIN_TABLES, OriginReader, OriginWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from fxplug.ir import Graph, Origin, Region
    from fxplug.storage.targets import TargetTable
    from fxplug.storage.values import Decoder, Encoder

__all__ = ["NODE_COLUMNS", "NODE_DEFAULTS", "GraphReader", "GraphWriter", "check_graph"]

_FIELDS = frozenset({"version", "nodes", "keyword_only", "lifted", *ORIGIN_TABLES})
_OPTIONAL_FIELDS = frozenset({"captured_training"})
NODE_COLUMNS = ("op", "name", "target", "args", "origins", "type", "kwargs", "meta", "region")
"""What the parts of a node's row are; the last ones are left out where they are what `NODE_DEFAULTS` says."""
_REQUIRED = 3
NODE_DEFAULTS: list[Any] = [None, None, None, [], [], None, {}, {}, []]
"""What stands for a part that a row leaves out. Never changed."""
_KNOWN_OF_A_GRAPH = frozenset({"version", "nodes", "keyword_only", "captured_training"})
_KNOWN_OF_A_NODE = frozenset(NODE_COLUMNS)
_MODULE_STACK = "nn_module_stack"
_CHECKED_CALLS = frozenset({"call_function", "call_method"})


def check_graph(graph: Graph, root: nn.Module) -> None:
    """Refuse a graph that is not well formed, or whose paths lead to nothing that `root` holds.

    Raises:
        Refusal: With the first fault.
    """
    for node in graph.nodes:
        if node.op in PATH_OPCODES:
            try:
                check_path(root, node.target, is_module=node.op == "call_module")
            except Refusal as refusal:
                raise refusal.within(f"node {node.name!r}") from None
    try:
        check_structure(graph)
        signature_of(graph.nodes, graph.keyword_only)
    except FxplugError as error:
        raise Refusal(error.message) from error


# -- writing


class GraphWriter:
    """Describes one graph.

    Args:
        targets: Names functions.
        encoder: Turns arguments into JSON.
        notes: Turns entries of ``node.meta`` into JSON; it refuses tensors.
        left_out: Called with (node name, what) for each note or annotation that is not stored.
    """

    def __init__(
        self, targets: TargetTable, encoder: Encoder, notes: Encoder, left_out: Callable[[str, str], None]
    ) -> None:
        self._targets = targets
        self._encoder = encoder
        self._notes = notes
        self._left_out = left_out
        self._origins = OriginWriter()

    def describe(self, graph: Graph) -> dict[str, Any]:
        """Return `graph` as JSON.

        Raises:
            Refusal: It holds something that a file cannot; the message names the node.
        """
        if graph.code_transformer is not None:
            raise Refusal(
                "the graph's code is changed by a transformer (graph.on_generate_code), which a file cannot hold. End "
                "its context before saving, and register it again after loading."
            )
        codegen = vars(graph)["_codegen"]
        if codegen is not None and type(codegen) is not CodeGen:
            raise Refusal(
                f"the graph has a code generator of its own ({type(codegen).__name__}), which a file cannot "
                f"hold. Call graph.set_codegen(fxplug.CodeGen()) before saving, and set yours again after "
                f"loading."
            )
        data = graph_to_data(graph, self._origins.describe)
        _check_known(data, _KNOWN_OF_A_GRAPH)
        nodes: list[list[Any]] = []
        for entry in data["nodes"]:
            try:
                nodes.append(self._node(entry))
            except Refusal as refusal:
                raise refusal.within(f"node {entry['name']!r}") from None
        training = data["captured_training"]
        return {
            "version": data["version"],
            "nodes": nodes,
            "keyword_only": data["keyword_only"],
            **({} if training is None else {"captured_training": training}),
            **self._origins.tables(),
            "lifted": {path: self._encoder.encode(value) for path, value in graph.lifted.items()},
        }

    def _node(self, entry: dict[str, Any]) -> list[Any]:
        _check_known(entry, _KNOWN_OF_A_NODE)
        op, target, args, kwargs = entry["op"], entry["target"], entry["args"], entry["kwargs"]
        if op == "call_method":
            self._targets.check_method(target)
        if op in _CHECKED_CALLS:
            self._targets.check_call(target, args, kwargs)
            if op == "call_function":
                target = self._targets.name_of(target)
        encode = self._encoder.encode
        origins = entry["origins"]
        row: list[Any] = [
            op,
            entry["name"],
            target,
            [[value.index] if type(value) is NodeRef else encode(value) for value in args],
            origins[0] if len(origins) == 1 else origins,
        ]
        if entry["type"] is not None or kwargs or entry["meta"] or entry["region"]:
            row += (
                None if entry["type"] is None else self._annotation(entry),
                {name: encode(value) for name, value in kwargs.items()},
                self._meta(entry) if entry["meta"] else {},
                self._region(entry["region"]),
            )
        while row[-1] == NODE_DEFAULTS[len(row) - 1] and len(row) > _REQUIRED:
            row.pop()
        return row

    def _annotation(self, entry: dict[str, Any]) -> Any:
        try:
            return encode_annotation(entry["type"], self._targets)
        except Refusal:
            self._left_out(entry["name"], "type")
            return None

    def _meta(self, entry: dict[str, Any]) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        for name, value in entry["meta"].items():
            if name == _MODULE_STACK and self._is_view(value, entry["origins"]):
                continue
            try:
                notes[checked(name, str, "The name of a note")] = self._notes.encode(value)
            except Refusal:
                self._left_out(entry["name"], f"meta[{name!r}]")
        return notes

    def _is_view(self, stack: Any, origins: list[int]) -> bool:
        """Return whether a module stack only repeats the first origin, as it does unless somebody edited it."""
        if not origins or not isinstance(stack, dict):
            return False
        try:
            return self._origins.modules(origins[0]) == [
                [path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"]
                for path, kind in stack.values()
            ]
        except (TypeError, ValueError, AttributeError):
            return False

    def _region(self, region: Region) -> list[Any]:
        return [
            [
                self._targets.context_name(entry.context),
                [self._encoder.encode(value) for value in entry.arguments],
            ]
            for entry in region
        ]


def _check_known(data: dict[str, Any], known: frozenset[str]) -> None:
    # Whoever lets a graph hold more must decide how files hold it: nothing may be lost without a word.
    if not data.keys() <= known:
        raise Refusal(
            f"files of this version cannot hold the {min(data.keys() - known)!r} of a graph. Clear it first."
        )


# -- reading


def _as_it_is(origin: Origin) -> Origin:
    return origin


class GraphReader:
    """Restores one graph.

    Args:
        targets: Resolves functions.
        decoder: Turns JSON into arguments.
        notes: Turns JSON into entries of ``node.meta``.
    """

    def __init__(self, targets: TargetTable, decoder: Decoder, notes: Decoder) -> None:
        self._targets = targets
        self._decoder = decoder
        self._notes = notes
        self._origins: OriginReader

    def restore(self, data: Any) -> Graph:
        """Return the graph that `data` describes; compiles and runs nothing.

        Raises:
            Refusal: The data is damaged, or names a function that is not allowed; the message names the node.
        """
        fields = entry_fields(data, "A graph", _FIELDS, _OPTIONAL_FIELDS)
        self._origins = OriginReader(fields)
        nodes: list[dict[str, Any]] = []
        for number, row in enumerate(checked(fields["nodes"], list, "The list of nodes")):
            try:
                nodes.append(self._node(row))
            except Refusal as refusal:
                name = row[1] if isinstance(row, list) and len(row) > 1 else None
                raise refusal.within(
                    f"node {name!r}" if name and isinstance(name, str) else f"node {number}"
                ) from None
        try:
            names = checked(fields["keyword_only"], list, "The list of keyword-only parameters")
            keyword_only = [checked(name, str, "The name of a parameter") for name in names]
            graph = graph_from_data(
                {"version": fields["version"], "keyword_only": keyword_only, "nodes": nodes}, _as_it_is
            )
        except FxplugError as error:
            raise Refusal(error.message, error.code) from error
        lifted = checked(fields["lifted"], dict, "The table of lifted values")
        graph.lifted = {path: self._decoder.decode(value) for path, value in lifted.items()}
        training = fields.get("captured_training")
        graph.captured_training = None if training is None else checked(training, bool, "The mode of a graph")
        return graph

    def _node(self, data: Any) -> dict[str, Any]:
        row: list[Any] = checked(data, list, "A node")
        if not _REQUIRED <= len(row) <= len(NODE_COLUMNS):
            raise Refusal(
                f"A node has {len(row)} parts, not {_REQUIRED} to {len(NODE_COLUMNS)}. The file is damaged."
            )
        op, name, target, values, origins, annotation, named, meta, region = row + NODE_DEFAULTS[len(row) :]
        if not isinstance(op, str) or op not in OPCODES:
            raise Refusal(
                f"its opcode is {op!r}, not one of {', '.join(OPCODES)}. The file is damaged.", Codes.OPCODE
            )
        decode = self._decoder.decode
        args = tuple([decode(value) for value in checked(values, list, "args")])
        kwargs = {key: decode(value) for key, value in checked(named, dict, "kwargs").items()}
        return {
            "op": op,
            "name": checked(name, str, "The name of a node"),
            "target": self._target(op, checked(target, str, "The target of a node"), args, kwargs),
            "args": args,
            "kwargs": kwargs,
            "type": None if annotation is None else decode_annotation(annotation, self._targets),
            # Without notes the node shows its module stack, a view of its origin, when it is first asked.
            "meta": self._meta(checked(meta, dict, "meta")) if meta != {} else None,
            "region": self._region(region) if region != [] else (),
            "origins": self._origins.fetch(origins),
        }

    def _meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        return {name: self._notes.decode(value) for name, value in meta.items()}

    def _target(self, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        resolved: Any = target
        if op == "call_function":
            resolved = self._targets.resolve(target)
        elif op == "call_method":
            self._targets.check_method(target)
        if op in _CHECKED_CALLS:
            self._targets.check_call(resolved, args, kwargs)
        return resolved

    def _region(self, data: Any) -> Region:
        entries: list[RegionEntry] = []
        for entry in checked(data, list, "A region"):
            name, values = (*checked(entry, list, "An entry of a region"), None, None)[:2]
            context = self._targets.resolve_context(name)
            arguments = checked(values, list, "The arguments of a region")
            entries.append(RegionEntry(context, tuple(self._decoder.decode(value) for value in arguments)))
        return tuple(entries)

"""Graphs as JSON: the data form of `fxplug.ir.data`, with functions by name and origins in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.codegen import CodeGen
from fxplug.codegen.signature import signature_of
from fxplug.errors import FxplugError
from fxplug.ir import OPCODES, PATH_OPCODES, RegionEntry, check_structure, graph_from_data, graph_to_data
from fxplug.storage.annotations import decode_annotation, encode_annotation
from fxplug.storage.faults import Codes, Refusal, checked, entry_fields
from fxplug.storage.modules import check_path
from fxplug.storage.origins import OriginReader, OriginWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from fxplug.ir import Graph, Origin, Region
    from fxplug.storage.targets import TargetTable
    from fxplug.storage.values import Decoder, Encoder

__all__ = ["GraphReader", "GraphWriter", "check_graph"]

_FIELDS = frozenset({"version", "nodes", "keyword_only", "frames", "modules", "origins", "lifted"})
_OPTIONAL_FIELDS = frozenset({"captured_training"})
_NODE_REQUIRED = frozenset({"op", "name", "target"})
_NODE_OPTIONAL = frozenset({"args", "kwargs", "type", "meta", "region", "origins"})
_MODULE_STACK = "nn_module_stack"


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
        _check_known(data, _FIELDS | _OPTIONAL_FIELDS)
        nodes: list[dict[str, Any]] = []
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

    def _node(self, entry: dict[str, Any]) -> dict[str, Any]:
        _check_known(entry, _NODE_REQUIRED | _NODE_OPTIONAL)
        op, target, args, kwargs = entry["op"], entry["target"], entry["args"], entry["kwargs"]
        if op == "call_method":
            self._targets.check_method(target)
        if op in {"call_function", "call_method"}:
            self._targets.check_call(target, args, kwargs)
        encode = self._encoder.encode
        node: dict[str, Any] = {
            "op": op,
            "name": entry["name"],
            "target": self._targets.name_of(target) if op == "call_function" else target,
        }
        if args:
            node["args"] = [encode(value) for value in args]
        if kwargs:
            node["kwargs"] = {name: encode(value) for name, value in kwargs.items()}
        if entry["type"] is not None and (annotation := self._annotation(entry)) is not None:
            node["type"] = annotation
        if entry["meta"] and (notes := self._meta(entry)):
            node["meta"] = notes
        if entry["region"]:
            node["region"] = self._region(entry["region"])
        if entry["origins"]:
            node["origins"] = entry["origins"]
        return node

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
        self._origins = OriginReader([], [], [])

    def restore(self, data: Any) -> Graph:
        """Return the graph that `data` describes; compiles and runs nothing.

        Raises:
            Refusal: The data is damaged, or names a function that is not allowed; the message names the node.
        """
        fields = entry_fields(data, "A graph", _FIELDS, _OPTIONAL_FIELDS)
        self._origins = OriginReader(fields["frames"], fields["modules"], fields["origins"])
        nodes: list[dict[str, Any]] = []
        for number, entry in enumerate(checked(fields["nodes"], list, "The list of nodes")):
            try:
                nodes.append(self._node(entry))
            except Refusal as refusal:
                name = entry.get("name") if isinstance(entry, dict) else None
                raise refusal.within(f"node {name!r}" if name else f"node {number}") from None
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

    def _node(self, entry: Any) -> dict[str, Any]:
        fields = entry_fields(entry, "A node", _NODE_REQUIRED, _NODE_OPTIONAL)
        op, target = fields["op"], checked(fields["target"], str, "The target of a node")
        if op not in OPCODES:
            raise Refusal(
                f"its opcode is {op!r}, not one of {', '.join(OPCODES)}. The file is damaged.", Codes.OPCODE
            )
        decode = self._decoder.decode
        args = tuple([decode(value) for value in checked(fields.get("args", []), list, "args")])
        named = checked(fields.get("kwargs", {}), dict, "kwargs")
        kwargs = {name: decode(value) for name, value in named.items()}
        target = self._target(op, target, args, kwargs)
        meta = checked(fields.get("meta", {}), dict, "meta")
        return {
            "op": op,
            "name": checked(fields["name"], str, "The name of a node"),
            "target": target,
            "args": args,
            "kwargs": kwargs,
            "type": decode_annotation(fields.get("type"), self._targets),
            # Without notes the node shows its module stack, a view of its origin, when it is first asked.
            "meta": {name: self._notes.decode(value) for name, value in meta.items()} or None,
            "region": self._region(fields["region"]) if "region" in fields else (),
            "origins": self._origins.fetch(fields.get("origins", [])),
        }

    def _target(self, op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        resolved: Any = target
        if op == "call_function":
            resolved = self._targets.resolve(target)
        elif op == "call_method":
            self._targets.check_method(target)
        if op in {"call_function", "call_method"}:
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

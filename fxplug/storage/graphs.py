"""Graphs as JSON: the data form of `fxplug.ir.data`, with functions by name and origins in tables."""

# Every node of a file comes by here several times, so its parts are read without its properties.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fxplug.codegen.signature import signature_of
from fxplug.errors import FxplugError
from fxplug.ir import OPCODES, PATH_OPCODES, NodeRef, RegionEntry, check_structure
from fxplug.ir.data import FORMAT_VERSION, GraphBuilder, describe_nodes, node_reference
from fxplug.ir.guards import StateGuard
from fxplug.ir.origins import origins_in
from fxplug.semantics.surroundings import is_known
from fxplug.storage.annotations import decode_annotation, encode_annotation
from fxplug.storage.faults import Codes, Refusal, checked, entry_fields
from fxplug.storage.modules import PathChecker
from fxplug.storage.origins import ORIGIN_TABLES, OriginReader, OriginWriter
from fxplug.storage.structures import describe_structures, restore_structures

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from fxplug.ir import Graph, Node, Region
    from fxplug.ir.data import NodeData
    from fxplug.ir.origins import StoredOrigin
    from fxplug.storage.targets import TargetTable
    from fxplug.storage.values import Decoder, Encoder

__all__ = [
    "MODULE_STACK",
    "NODE_COLUMNS",
    "NODE_DEFAULTS",
    "STACK_OF_ORIGIN",
    "GraphReader",
    "GraphWriter",
    "check_graph",
]

_FIELDS = frozenset({"version", "nodes", "keyword_only", "lifted", *ORIGIN_TABLES})
_OPTIONAL_FIELDS = frozenset({"captured_training", "state_guards", "structures", "training_overrides"})
NODE_COLUMNS = ("op", "name", "target", "args", "origins", "type", "kwargs", "meta", "region")
"""What the parts of a node's row are; the last ones are left out where they are what `NODE_DEFAULTS` says."""
_REQUIRED = 3
_PARTS_OF_A_STATE_GUARD = 6
_MANY = 1 << 20
"""Numbers beyond this are not remembered: a file may write them with thousands of digits."""
_USUAL = 5
"""How many parts most rows have: the others are left out."""
NODE_DEFAULTS: list[Any] = [None, None, None, [], [], None, {}, None, []]
"""What stands for a part that a row leaves out. Never changed."""
MODULE_STACK = "nn_module_stack"
STACK_OF_ORIGIN: dict[str, Any] = {"$stack": None}
"""What stands for a module stack that says what the first origin says. Never changed."""
_CHECKED_CALLS = frozenset({"call_function", "call_method"})
_ENDS = frozenset({"placeholder", "output"})
_OPCODES = frozenset(OPCODES)
_NO_PARTS: tuple[Any, ...] = (None, {}, None, ())
"""Annotation, keyword arguments, notes and region of most nodes."""


def check_graph(graph: Graph, root: nn.Module, *, is_built: bool = False) -> None:
    """Refuse a graph that is not well formed, or whose paths lead to nothing that `root` holds.

    Args:
        graph: Not changed.
        root: The module that its paths refer to.
        is_built: Whether a `GraphReader` has just made the graph, node by node: then names are unique, and nodes use
            what comes earlier and know who uses them.

    Raises:
        Refusal: With the first fault.
    """
    paths = PathChecker(root)
    ends: list[Node] = []
    last: Node | None = None
    for last in graph.nodes:
        op = last._op
        if op in PATH_OPCODES:
            try:
                paths.check(last._target, is_module=op == "call_module")
            except Refusal as refusal:
                raise refusal.within(f"node {last._name!r}") from None
        elif op in _ENDS:
            ends.append(last)
    outputs = [node for node in ends if node._op == "output"]
    is_sound = is_built and (not outputs or (outputs == [last] and len(outputs[0]._args) == 1))
    try:
        if not is_sound:
            check_structure(graph)
        signature_of(ends, graph.keyword_only)
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
        structures = describe_structures(graph, self._encoder)
        nodes: list[list[Any]] = []
        for node in describe_nodes(graph):
            try:
                nodes.append(self._node(node))
            except Refusal as refusal:
                raise refusal.within(f"node {node.name!r}") from None
        training = graph.captured_training
        state_guards = [self._state_guard(guard) for guard in graph.state_guards]
        overrides = {path: list(flags) for path, flags in graph.training_overrides.items()}
        return {
            "version": FORMAT_VERSION,
            "nodes": nodes,
            "keyword_only": sorted(graph.keyword_only),
            **({} if training is None else {"captured_training": training}),
            **({"state_guards": state_guards} if state_guards else {}),
            **({"training_overrides": overrides} if overrides else {}),
            **({} if structures is None else {"structures": structures}),
            **self._origins.tables(),
            "lifted": {path: self._encoder.encode(value) for path, value in graph.lifted.items()},
        }

    def _state_guard(self, guard: StateGuard) -> list[Any]:
        arguments = [self._encoder.encode(argument) for argument in guard.arguments]
        expected = self._encoder.encode(guard.expected)
        return [guard.asked, arguments, expected, guard.line, guard.source, guard.guard.text]

    def _node(self, node: NodeData) -> list[Any]:
        # All of it: whoever lets a node hold more must decide how files hold it.
        op, name, target, args, kwargs, annotation, meta, region, origin = node
        if op in _CHECKED_CALLS:
            if op == "call_method":
                self._targets.check_method(target)
            self._targets.check_call(target, args, kwargs)
            if op == "call_function":
                target = self._targets.name_of(target)
        encode = self._encoder.encode
        values = [[value.index] if type(value) is NodeRef else encode(value) for value in args]
        origins = self._origins.describe(origin)
        row: list[Any] = [op, name, target, values, origins]
        if annotation is not None or kwargs or meta is not None or region:
            row += (
                None if annotation is None else self._annotation(name, annotation),
                {key: encode(value) for key, value in kwargs.items()},
                None if meta is None else self._meta(name, meta, origins),
                self._region(region),
            )
        while row[-1] == NODE_DEFAULTS[len(row) - 1] and len(row) > _REQUIRED:
            row.pop()
        return row

    def _annotation(self, node: str, annotation: Any) -> Any:
        try:
            return encode_annotation(annotation, self._targets)
        except Refusal:
            self._left_out(node, "type")
            return None

    def _meta(self, node: str, meta: dict[str, Any], origins: int | list[int]) -> dict[str, Any] | None:
        """Return the notes of a node; None where they are what it says without any, when it is first asked."""
        stack = (
            self._origins.modules(origins if isinstance(origins, int) else origins[0])
            if origins != []
            else []
        )
        if not meta:
            return {} if stack else None
        notes: dict[str, Any] = {}
        for name, value in meta.items():
            if name == MODULE_STACK and stack and _is_view(value, stack):
                if len(meta) == 1:
                    return None
                notes[name] = STACK_OF_ORIGIN
                continue
            try:
                notes[checked(name, str, "The name of a note")] = self._notes.encode(value)
            except Refusal:
                self._left_out(node, f"meta[{name!r}]")
        return notes

    def _region(self, region: Region) -> list[Any]:
        rows: list[Any] = []
        for entry in region:
            values = [self._encoder.encode(value) for value in entry.arguments]
            if _names_function(values):
                raise Refusal("an argument of a region is a function or a class. Pass plain values.")
            rows.append([self._targets.context_name(entry.context), values])
        return rows


def _names_function(data: Any) -> bool:
    """Return whether a function stands somewhere in a value in JSON."""
    if isinstance(data, dict):
        return "$name" in data or any(map(_names_function, cast("dict[str, Any]", data).values()))
    return isinstance(data, list) and any(map(_names_function, cast("list[Any]", data)))


def _is_view(stack: Any, modules: list[Any]) -> bool:
    """Return whether a module stack only repeats what an origin says, as it does unless somebody edited it."""
    if not isinstance(stack, dict):
        return False
    rows = cast("dict[Any, Any]", stack)
    try:
        return [*rows] == [path for path, _ in modules] and modules == [
            [path, kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"]
            for path, kind in rows.values()
        ]
    except (TypeError, ValueError, AttributeError):
        return False


# -- reading


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

    def _state_guard(self, data: Any) -> StateGuard:
        row = checked(data, list, "A state guard")
        if len(row) != _PARTS_OF_A_STATE_GUARD:
            raise Refusal("its state guards are not what they can be. The file is damaged.")
        asked, arguments, expected, line, source, _ = row
        guard = StateGuard(
            checked(asked, str, "A state guard"),
            tuple([self._decoder.decode(value) for value in checked(arguments, list, "What was asked")]),
            self._decoder.decode(expected),
            checked(line, str, "A state guard"),
            checked(source, str, "A state guard"),
        )
        if not is_known(guard):
            raise Refusal(f"its state guards ask for {guard.asked!r}, which programs cannot ask for.")
        return guard

    def restore(self, data: Any) -> Graph:
        """Return the graph that `data` describes; compiles and runs nothing.

        Raises:
            Refusal: The data is damaged, or names a function that is not allowed; the message names the node.
        """
        fields = entry_fields(data, "A graph", _FIELDS, _OPTIONAL_FIELDS)
        self._origins = OriginReader(fields)
        training = fields.get("captured_training")
        if training is not None:
            checked(training, bool, "The mode of a graph")
        names = checked(fields["keyword_only"], list, "The list of keyword-only parameters")
        keyword_only = [checked(name, str, "The name of a parameter") for name in names]
        try:
            guards = checked(fields.get("state_guards", []), list, "The list of state guards")
            builder = GraphBuilder(
                fields["version"],
                keyword_only,
                training=training,
                state_guards=[self._state_guard(row) for row in guards],
                training_overrides=_overrides(fields.get("training_overrides", {})),
            )
            for number, row in enumerate(checked(fields["nodes"], list, "The list of nodes")):
                try:
                    parts = self._node(row)
                except Refusal as refusal:
                    raise refusal.within(_named(row, number)) from None
                builder.add(*parts)
            graph = builder.finish()
        except FxplugError as error:
            raise Refusal(error.message, error.code) from error
        lifted = checked(fields["lifted"], dict, "The table of lifted values")
        graph.lifted = {path: self._decoder.decode(value) for path, value in lifted.items()}
        if "structures" in fields:
            restore_structures(graph, fields["structures"], self._decoder)
        return graph

    def _node(self, data: Any) -> tuple[Any, ...]:
        """Return the parts of a node, for `GraphBuilder.add`."""
        row: list[Any] = checked(data, list, "A node")
        if not _REQUIRED <= len(row) <= len(NODE_COLUMNS):
            raise Refusal(
                f"A node has {len(row)} parts, not {_REQUIRED} to {len(NODE_COLUMNS)}. The file is damaged."
            )
        op, name, target, values, origins = (row + NODE_DEFAULTS[len(row) :])[:_USUAL]
        if not isinstance(op, str) or op not in _OPCODES:
            raise Refusal(
                f"its opcode is {op!r}, not one of {', '.join(OPCODES)}. The file is damaged.", Codes.OPCODE
            )
        decode = self._decoder.decode
        args = tuple(
            [
                node_reference(value[0])  # Almost always.
                if type(value) is list and len(value) == 1 and type(value[0]) is int and 0 <= value[0] < _MANY
                else decode(value)
                for value in checked(values, list, "args")
            ]
        )
        origin = self._origins.fetch(origins)
        annotation, kwargs, meta, region = _NO_PARTS if len(row) <= _USUAL else self._other_parts(row, origin)
        if not (type(name) is type(target) is str):
            checked(name, str, "The name of a node")
            checked(target, str, "The target of a node")
        if op in _CHECKED_CALLS:
            target = self._target(op, target, args, kwargs)
        return op, name, target, args, kwargs, annotation, meta, region, origin

    def _other_parts(self, row: list[Any], origin: StoredOrigin) -> tuple[Any, ...]:
        """Return annotation, keyword arguments, notes and region of a node."""
        decode = self._decoder.decode
        annotation, named, meta, region = (row + NODE_DEFAULTS[len(row) :])[_USUAL:]
        return (
            None if annotation is None else decode_annotation(annotation, self._targets),
            {key: decode(value) for key, value in checked(named, dict, "kwargs").items()},
            # Without notes the node shows its module stack, a view of its origin, when it is first asked.
            None if meta is None else self._meta(meta, origin),
            self._region(region) if region != [] else (),
        )

    def _meta(self, data: Any, origin: StoredOrigin) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        for name, value in checked(data, dict, "meta").items():
            if name != MODULE_STACK or value != STACK_OF_ORIGIN:
                notes[name] = self._notes.decode(value)
                continue
            scope = next((one.module for one in origins_in(origin)), None)
            if scope is not None:
                notes[name] = scope.stack()
        return notes

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
            entries.append(RegionEntry(context, tuple(self._decoder.decode_plain(values))))
        return tuple(entries)


def _overrides(data: Any) -> dict[str, tuple[bool, bool]]:
    """Return which modules are trained after ``train()`` and after ``eval()`` of the root; see the graph."""
    found: dict[str, tuple[bool, bool]] = {}
    for path, flags in checked(data, dict, "The table of training overrides").items():
        if not (isinstance(flags, list) and len(flags) == 2 and all(type(flag) is bool for flag in flags)):
            raise Refusal(f"The training override of {path!r} is no pair of flags. The file is damaged.")
        found[path] = (flags[0], flags[1])
    return found


def _named(row: Any, number: int) -> str:
    """Return how a message calls the node of a row."""
    name = row[1] if isinstance(row, list) and len(row) > 1 else None
    return f"node {name!r}" if name and isinstance(name, str) else f"node {number}"

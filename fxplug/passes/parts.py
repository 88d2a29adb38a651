"""Writing a program as calls of submodules, each of which holds a part of it."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from fxplug.errors import PartitionError
from fxplug.execute import GraphModule
from fxplug.ir import PATH_OPCODES, Graph, Node, map_arg
from fxplug.ir.clone import copy_meta
from fxplug.ir.collector import paused_collection
from fxplug.ir.notes import RESULTS_OF_ANALYSES
from fxplug.passes.derivations import TensorOrigin
from fxplug.passes.state_origins import NOTE, StateOrigins, updated_origins
from fxplug.passes.tensor_table import TensorTable
from fxplug.rewrite.calls import value_at
from fxplug.semantics.internals import modules_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = [
    "Part",
    "PartStyle",
    "build_part",
    "call_part",
    "copy_node",
    "find_borders",
    "hand_on_notes",
    "hand_on_origins",
    "split_into",
]


@dataclass
class Part:
    """Nodes that become one submodule, or one call that stays where it is."""

    name: str | None
    """The path of the submodule; None for a call that stays in the graph."""
    nodes: list[Node]
    """In the order of the graph."""
    inputs: dict[Node, None] = field(default_factory=dict[Node, None])
    """What comes from outside, in the order in which it is first used."""
    outputs: dict[Node, None] = field(default_factory=dict[Node, None])
    """What is used outside, in the order in which it is first used there."""
    attributes: dict[Node, None] = field(default_factory=dict[Node, None])
    """Reads of attributes that the submodule makes itself."""


@dataclass(frozen=True)
class PartStyle:
    """How submodules are written."""

    keep_node_names: bool = False
    """Whether nodes keep their names; otherwise they are named after what they call."""
    keep_input_names: bool = True
    """Whether inputs are named after the values that they stand for; otherwise ``arg_0``, ``arg_1``, …"""
    late_attributes: bool = False
    """Whether attributes are read where they are first used; otherwise in front."""
    tuples: bool = False
    """Whether a submodule returns a tuple also where it returns one value."""
    own_attributes: bool = True
    """Whether a submodule reads attributes itself that nobody else reads; otherwise it is handed all tensors."""


def split_into(module: GraphModule, parts: Sequence[Part], style: PartStyle, made_by: str) -> GraphModule:
    """Return a module that runs a program part by part.

    Args:
        module: Not changed; parameters, buffers and submodules are shared with the result.
        parts: In an order in which they can run; each call is in one of them.
        style: How submodules are written.
        made_by: What splits, for the origins of the state.
    """
    find_borders(module, parts, own=style.own_attributes)
    graph = Graph()
    graph.rely_on(module.graph)
    graph.keyword_only = module.graph.keyword_only
    graph.generate_code_as(module.graph)
    root = copy.copy(module)
    inside = {node for part in parts if part.name is not None for node in part.nodes}
    taken = {node for part in parts for node in part.attributes if inside.issuperset(node.users)}
    main = _Main(graph, style, taken)
    main.begin(module.graph)
    _refuse_taken_names(module, parts, taken)
    with paused_collection():
        for part in parts:
            if part.name is None:
                main.copy(part.nodes[0])
                continue
            modules_of(root)[part.name] = build_part(module, part, style)
            main.call(part)
        main.end(module.graph)
    graph.lifted.update(_lifted(module, graph))
    result = GraphModule(root, graph, type(module).__name__)
    module.graph.owning_module = module  # Not the copy, which goes away.
    hand_on_origins(module, TensorTable(module), result, made_by)
    return result


def hand_on_origins(
    former: GraphModule,
    tensors: TensorTable,
    module: GraphModule,
    made_by: str,
    constants: Iterable[str] = (),
) -> None:
    """Note where the tensors of a module come from whose paths are others than they were.

    Args:
        former: The module as it was.
        tensors: Those that it held.
        module: The module as it is; it may be the same one.
        made_by: What changed the paths.
        constants: Paths of tensors that are new, and not part of any state.
    """
    found = updated_origins(former.meta.get(NOTE), tensors, TensorTable(module), (), (), made_by)
    new = dict.fromkeys(constants, TensorOrigin())
    module.meta[NOTE] = StateOrigins({**found, **new}, found.original, found.ties) if new else found


def _lifted(module: GraphModule, graph: Graph) -> dict[str, Any]:
    lifted = module.graph.lifted
    if not lifted:
        return {}
    paths = {node._target for node in graph.nodes if node._op in PATH_OPCODES}
    return {path: value for path, value in lifted.items() if path in paths}


def _refuse_taken_names(module: GraphModule, parts: Iterable[Part], taken: Collection[Node]) -> None:
    """Refuse names of submodules under which what stays in the graph is found."""
    stays = {node for part in parts if part.name is None for node in part.nodes}
    tops = {
        str(node._target).partition(".")[0]
        for node in module.graph.nodes
        if (node._op == "get_attr" and node not in taken) or (node._op == "call_module" and node in stays)
    }
    for part in parts:
        if part.name in tops:
            raise PartitionError(
                f"Cannot split the module: it holds {part.name!r} already, which a partition would be called. Choose "
                "other names for the partitions."
            )


# -- what goes in and out


def find_borders(module: GraphModule, parts: Sequence[Part], *, own: bool) -> None:
    """Fill in what parts take and give.

    Args:
        module: Holds their nodes.
        parts: Changed in place; calls that are in none of them stay in the graph.
        own: Whether a part reads attributes itself that nobody else reads.
    """
    place = {node: part for part in parts for node in part.nodes}
    for node in module.graph.nodes:
        if node._op in {"placeholder", "get_attr"}:
            continue
        part = place.get(node)
        for used in node._input_tuple():
            source = place.get(used)
            if source is part and part is not None:
                continue
            if source is not None:
                source.outputs[used] = None
            if part is not None and part.name is not None:
                part.inputs[used] = None
    for node in module.graph.nodes:
        if node._op == "get_attr":
            _place_attribute(module, node, place, own=own)


def _place_attribute(module: GraphModule, node: Node, place: Mapping[Node, Part], *, own: bool) -> None:
    """Let parts read an attribute themselves where they should not be handed it."""
    users = [place.get(user) for user in node.users]
    is_module = isinstance(value_at(module, node._target), torch.nn.Module)
    parts = {id(part): part for part in users if part is not None and part.name is not None}
    is_own = own and len(parts) == 1 and all(part is not None and id(part) in parts for part in users)
    if is_module or is_own:
        for part in parts.values():
            del part.inputs[node]
            part.attributes[node] = None


# -- submodules


def build_part(module: GraphModule, part: Part, style: PartStyle) -> GraphModule:
    """Return the submodule that a part becomes.

    Args:
        module: Holds what the nodes name.
        part: With its inputs and outputs.
        style: How it is written.
    """
    graph = Graph()
    mapping: dict[Node, Node] = {}
    for number, used in enumerate(part.inputs):
        given = graph.placeholder(used._name if style.keep_input_names else f"arg_{number}", used._type)
        given._origin = used._origin
        mapping[used] = given
    for node in part.attributes:
        mapping[node] = copy_node(graph, node, mapping, keep_name=style.keep_node_names)
    for node in part.nodes:
        mapping[node] = copy_node(graph, node, mapping, keep_name=style.keep_node_names)
    hand_on_notes(mapping)
    results = tuple([mapping[node] for node in part.outputs])
    graph.output(results[0] if len(results) == 1 and not style.tuples else results)
    graph.lifted.update(_lifted(module, graph))
    graph.training_overrides = module.graph.training_overrides  # Of what the part holds, at the same paths.
    built = GraphModule(module, graph, type(module).__name__)
    built.meta.clear()
    if built.guard_set is not None:
        built.set_guards(None)
    return built


def copy_node(graph: Graph, node: Node, mapping: Mapping[Node, Node], *, keep_name: bool) -> Node:
    """Copy a node to the end of another graph, without its notes."""
    args = map_arg(node._args, mapping.__getitem__)
    kwargs = map_arg(node._kwargs, mapping.__getitem__) if node._kwargs else None
    name = node._name if keep_name else None
    made = graph.create_node(node._op, node._target, args, kwargs, name, node._type)
    made._region, made._origin = node._region, node._origin
    return made


def hand_on_notes(mapping: Mapping[Node, Node]) -> None:
    """Give copies the notes of their nodes, in which copies take the places of nodes.

    Args:
        mapping: Node -> copy.
    """
    for node, made in mapping.items():
        if node._meta:
            notes = copy_meta(node._meta, mapping)
            if type(node._meta) is dict:
                made._meta = notes
            else:  # Nobody has looked at them yet.
                made.annotate(notes)


class _Main:
    """The graph that calls the parts.

    Args:
        graph: Empty.
        style: How submodules are written.
        taken: Reads of attributes that parts make themselves.
    """

    def __init__(self, graph: Graph, style: PartStyle, taken: Collection[Node]) -> None:
        self._graph = graph
        self._style = style
        self._taken = taken
        self._mapping: dict[Node, Node] = {}
        self._copies: dict[Node, Node] = {}
        self._waiting: dict[Node, None] = {}

    def begin(self, source: Graph) -> None:
        """Copy inputs and reads of attributes."""
        for node in source.nodes:
            if node._op == "placeholder":
                self._copy(node, keep_name=True)
            elif node._op == "get_attr" and node not in self._taken:
                if self._style.late_attributes:
                    self._waiting[node] = None
                else:
                    self._copy(node)

    def _copy(self, node: Node, *, keep_name: bool | None = None) -> None:
        keep = self._style.keep_node_names if keep_name is None else keep_name
        self._mapping[node] = self._copies[node] = copy_node(self._graph, node, self._mapping, keep_name=keep)

    def _read(self, nodes: Iterable[Node]) -> None:
        """Copy the reads among nodes that are needed now."""
        if self._waiting:
            for node in nodes:
                if node in self._waiting:
                    del self._waiting[node]
                    self._copy(node)

    def copy(self, node: Node) -> None:
        """Copy a call that stays."""
        self._read(node._input_tuple())
        self._copy(node, keep_name=True)

    def call(self, part: Part) -> None:
        """Call a part, and take apart what it returns."""
        self._read(part.inputs)
        _, values = call_part(self._graph, part, self._mapping, tuples=self._style.tuples)
        self._mapping.update(values)

    def end(self, source: Graph) -> None:
        """Copy the output, and reads that nobody needed."""
        outputs = source.find_nodes(op="output")
        for node in outputs:
            self._read(node._input_tuple())
        self._read(list(self._waiting))
        for node in outputs:
            self._copy(node, keep_name=True)
        hand_on_notes(self._copies)


def call_part(
    graph: Graph, part: Part, mapping: Mapping[Node, Node], *, tuples: bool = False
) -> tuple[Node, dict[Node, Node]]:
    """Call a part at the insertion point, and take apart what it returns.

    Args:
        graph: Where it is called.
        part: With its inputs and outputs.
        mapping: Input -> node of `graph`.
        tuples: Whether it returns a tuple also where it returns one value.

    Returns:
        The call, and output -> node of `graph`.
    """
    call = graph.call_module(str(part.name), tuple([mapping[node] for node in part.inputs]))
    outputs = list(part.outputs)
    if len(outputs) < 2:  # Of several values, each is taken out by a node of its own.
        call._origin = (outputs or part.nodes)[-1]._origin
    if len(outputs) == 1 and not tuples:
        _hand_on_facts(outputs[0], call)
        return call, {outputs[0]: call}
    values: dict[Node, Node] = {}
    for number, node in enumerate(outputs):
        values[node] = element = graph.call_function(operator.getitem, (call, number))
        element._origin = node._origin
        _hand_on_facts(node, element)
    return call, values


def _hand_on_facts(node: Node, made: Node) -> None:
    """Let a node know of its value what another one with the same value knows."""
    made._type = node._type
    if node._meta and (facts := {key: node._meta[key] for key in RESULTS_OF_ANALYSES & node._meta.keys()}):
        made.annotate(copy_meta(facts))

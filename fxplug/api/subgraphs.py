"""A piece of a program as a module of its own."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fxplug.api.extraction import find_value, kept_value
from fxplug.errors import ForeignNodeError, GraphError, InvalidArgumentError
from fxplug.ir import Node
from fxplug.passes import Part, PartStyle, build_part, named_calls
from fxplug.passes.dependences import MemoryClasses, is_call, writers_of

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    from fxplug.execute import GraphModule

__all__ = ["extract_subgraph"]

_CODE = "FXP-G031"


def extract_subgraph(
    module: GraphModule,
    inputs: Iterable[str | Node] | str | Node | None = None,
    outputs: Mapping[str, str | Node] | Iterable[str | Node] | str | Node | None = None,
    *,
    nodes: Iterable[str | Node] | None = None,
) -> GraphModule:
    """Return a module that computes some values of a program from others.

    Args:
        module: A captured module; it stays as it is, and shares its parameters with the result.
        inputs: The values that the result is given, in this order: names of nodes, paths of modules (what they return)
            or lines of the program, as `fxplug.extract` takes them, or nodes. By default, the inputs of the module;
            where these are nested, each value in them by itself.
        outputs: The values that it returns: a name or node gives the value itself, a list of them a tuple, also of one,
            a mapping a dict.
        nodes: In the place of both: the calls that it makes. Its inputs are the values that they use from elsewhere, in
            the order of use, and its outputs the values that are used elsewhere: one gives the value itself, several a
            tuple.

    Returns:
        A module whose inputs are named after the nodes. What writes to the values in between is part of it; draws of
        random numbers and output for people are, where a value needs them.

    Raises:
        UnknownNameError: There is nothing by a name.
        GraphError: An output needs a value that is none of the inputs and is not computed from them, or no output needs
            an input; the message names both (``FXP-G031``).
        InvalidArgumentError: Neither outputs nor nodes are given, or both are.

    Example:
        ::

            head = fxplug.extract_subgraph(module, inputs=["layer4"], outputs="fc")
            head(features)
    """
    if (nodes is None) is (outputs is None) or (nodes is not None and inputs is not None):
        raise InvalidArgumentError(
            "Cannot extract a subgraph: name the outputs, with or without inputs, or else the nodes."
        )
    if nodes is not None:
        return _of_nodes(module, nodes)
    named, form = _named_outputs(module, outputs)
    given = _inputs(module, inputs)
    needed = _Needed(module, given)
    for node in named.values():
        needed.add(node)
    members = needed.collect()
    _check_inputs(module, given, members, named.values())
    return _build(module, given, members, named, form)


def _of_nodes(module: GraphModule, nodes: Iterable[str | Node]) -> GraphModule:
    members = named_calls(module, nodes, "extract")
    inside = set(members)
    used = [value for node in members for value in node._input_tuple()]
    given = list(dict.fromkeys(value for value in used if value not in inside and value._op != "get_attr"))
    needed = _Needed(module, given)
    for node in members:
        needed.add(node)
    for node in needed.collect():
        if node not in inside and node._op != "get_attr":
            raise GraphError(
                f"Cannot extract the nodes: {node._name!r} may change a value that they use, and is none of them. Name "
                "it, too.",
                code=_CODE,
            )
    results = [node for node in members if not inside.issuperset(node.users)] or members[-1:]
    named = {node._name: node for node in results}
    return _build(
        module, given, sorted({*members, *needed.attributes}), named, list if len(results) > 1 else None
    )


# -- what is asked for


def _node(module: GraphModule, wanted: object) -> Node:
    if isinstance(wanted, Node):
        if wanted.graph is not module.graph:
            raise ForeignNodeError(f"Cannot extract node {wanted._name!r}: it belongs to another graph.")
        found = wanted
    elif isinstance(wanted, str):
        found = find_value(module, wanted)
    else:
        raise InvalidArgumentError(
            f"Cannot extract {wanted!r}, a {type(wanted).__name__}: name a node, a module or a line, or give a node."
        )
    if found._op == "output":
        raise InvalidArgumentError("Cannot extract the output: it is no value. Name what it returns.")
    return found


def _named_outputs(module: GraphModule, outputs: Any) -> tuple[dict[str, Node], type | None]:
    """Return name -> node for the outputs, and in which form they come: None for one value."""
    if isinstance(outputs, (str, Node)):
        node = _node(module, outputs)
        return {node._name: node}, None
    if isinstance(outputs, Mapping):
        named = {str(name): _node(module, wanted) for name, wanted in outputs.items()}
    elif isinstance(outputs, Iterable):
        named = {str(number): _node(module, wanted) for number, wanted in enumerate(outputs)}
    else:
        named = {"": _node(module, outputs)}
    if not named:
        raise InvalidArgumentError("Cannot extract a subgraph without outputs: name at least one value.")
    return named, dict if isinstance(outputs, Mapping) else list


def _inputs(module: GraphModule, inputs: Any) -> list[Node]:
    if inputs is None:
        return module.graph.find_nodes(op="placeholder")
    wanted = [inputs] if isinstance(inputs, (str, Node)) else list(inputs)
    found = [_node(module, one) for one in wanted]
    twice = next((node for number, node in enumerate(found) if node in found[:number]), None)
    if twice is not None:
        raise InvalidArgumentError(f"Cannot extract a subgraph: the input {twice._name!r} is named twice.")
    return found


def _check_inputs(
    module: GraphModule, given: list[Node], members: list[Node], outputs: Collection[Node]
) -> None:
    used = {value for node in members for value in node._input_tuple()} | set(outputs)
    for node in given:
        if node not in used and node._op != "placeholder":
            names = ", ".join(repr(output._name) for output in outputs)
            raise GraphError(
                f"Cannot extract a subgraph with the input {node._name!r}: {names} can be computed without it. Leave "
                "it out, or name an output that is computed from it.",
                code=_CODE,
            )


# -- what is needed


class _Needed:
    """Finds what has to be computed for some values.

    Args:
        module: The program.
        given: What need not be computed.
    """

    def __init__(self, module: GraphModule, given: list[Node]) -> None:
        self._module = module
        self._given = set(given)
        self._found: dict[Node, Node | None] = {}
        self._waiting: list[Node] = []
        writers = writers_of(module)
        self._memory = MemoryClasses(module, writers) if writers else None
        self._writers: dict[Hashable, list[Node]] = {}
        for node in writers:
            for part in self._memory.written_by(node) if self._memory is not None else ():
                self._writers.setdefault(part, []).append(node)

    def add(self, node: Node, user: Node | None = None) -> None:
        """Say that a value is needed, and for what."""
        if node in self._found or node in self._given:
            return
        if node._op == "placeholder":
            raise self._missing(node, user)
        self._found[node] = user
        self._waiting.append(node)

    @property
    def attributes(self) -> list[Node]:
        """The reads of attributes that are needed."""
        return [node for node in self._found if node._op == "get_attr"]

    def collect(self) -> list[Node]:
        """Return all that is needed, in the order of the graph."""
        while self._waiting:
            node = self._waiting.pop()
            for used in node._input_tuple():
                self.add(used, node)
            if is_call(node):
                for writer in self._written_before(node):
                    self.add(writer, node)
        return sorted(self._found)

    def _written_before(self, node: Node) -> list[Node]:
        """Return the calls that write what `node` uses, between the time at which that was made and `node`."""
        if self._memory is None:
            return []
        found: list[Node] = []
        for used in node._input_tuple():
            writers = self._writers.get(self._memory.class_of(used), ())
            is_read = used._op in {"get_attr", "placeholder"} and used not in self._given
            found += [other for other in writers if other < node and (is_read or used < other)]
        return found

    def _missing(self, node: Node, user: Node | None) -> GraphError:
        way: list[str] = []
        while user is not None:
            way.append(repr(user._name))
            user = self._found[user]
        shown = " for ".join(way[:4]) + (f" for {way[-1]}" if len(way) > 4 else "")
        purpose = f" for {shown}" if shown else ""
        return GraphError(
            f"Cannot extract a subgraph: {node._name!r} is needed{purpose}, and is none of the inputs, nor computed "
            f"from them. Add {node._name!r} to the inputs, or a value that is computed from it.",
            code=_CODE,
        )


# -- the module


def _build(
    module: GraphModule, given: list[Node], members: list[Node], named: dict[str, Node], form: type | None
) -> GraphModule:
    part = Part("", members, dict.fromkeys(given), dict.fromkeys(named.values()))
    result = build_part(module, part, PartStyle(keep_node_names=True))
    graph = result.graph
    output = graph.output_node()
    made = output.args[0] if len(part.outputs) > 1 else (output.args[0],)
    results = dict(zip(part.outputs, made, strict=True))
    kept = {node: kept_value(result, found) for node, found in results.items()}
    if form is dict:
        output.args = ({name: kept[node] for name, node in named.items()},)
    else:
        values = tuple([kept[node] for node in named.values()])
        output.args = (values[0] if form is None else values,)
    graph.rely_on(module.graph)
    if given == module.graph.find_nodes(op="placeholder") and module.graph._codegen is None:
        for node, made in zip(given, graph.find_nodes(op="placeholder"), strict=True):
            made.target, made.args = node._target, node._args
        graph.keyword_only = module.graph.keyword_only
        result.set_guards(module.guard_set)
    return result

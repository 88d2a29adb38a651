"""The invariants of a graph, checked without torch."""

# Hot path: whoever stores or restores a graph checks it, so the parts of a node are read without its properties.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from fxplug.errors import VerificationError
from fxplug.ir.arguments import iterate_leaves
from fxplug.ir.node import OPCODES, PATH_OPCODES, Node
from fxplug.ir.parameters import find_parameter_faults

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.ir.ring import NodeList

__all__ = ["check_structure", "find_structure_faults"]


class _HasNodes(Protocol):
    @property
    def keyword_only(self) -> frozenset[str]: ...

    @property
    def nodes(self) -> NodeList: ...


_MISSING = object()
_OPCODES = frozenset(OPCODES)
_FLAT = frozenset({Node, int, float, bool, str, type(None)})
"""Exact types of arguments that hold no other one."""


def check_structure(graph: _HasNodes, root: Any = None) -> None:
    """Raise when an invariant of the graph does not hold.

    Args:
        graph: The graph.
        root: Where given, the object whose attributes the paths of ``get_attr`` and ``call_module`` must
            name.

    Raises:
        VerificationError: With every violation in its message and in `findings`.
    """
    if root is None and _is_sound(graph):
        return
    findings = list(find_structure_faults(graph, root))
    if findings:
        listing = "\n  - ".join(findings)
        raise VerificationError(f"The graph is not well formed:\n  - {listing}", findings)


def _is_sound(graph: _HasNodes) -> bool:
    """Return whether `find_structure_faults` finds nothing, without making sentences: almost always."""
    seen: set[Node] = set()
    names: set[str] = set()
    placeholders: list[Node] = []
    output: Node | None = None
    for node in graph.nodes:
        if output is not None or cast("object", node.graph) is not graph or not _is_sound_step(node):
            return False
        if not _has_sound_uses(node, seen):
            return False
        if node._op == "output":
            output = node
        elif node._op == "placeholder":
            placeholders.append(node)
        seen.add(node)
        names.add(node._name)
    return (
        len(names) == len(seen)
        and next(find_parameter_faults(placeholders, graph.keyword_only), None) is None
    )


def _is_sound_step(node: Node) -> bool:
    op, target = node._op, node._target
    if op == "call_function":
        return callable(target)
    return op in _OPCODES and isinstance(target, str) and (op != "output" or len(node._args) == 1)


def _has_sound_uses(node: Node, seen: set[Node]) -> bool:
    inputs, args = node._inputs, node._args
    if inputs.__class__ is Node and not node._kwargs and len(args) == 1 and args[0] is inputs:
        if inputs not in seen or not inputs._is_used_by(node):  # Most nodes of a network are like this.
            return False
    elif not _has_sound_inputs(node, seen):
        return False
    users = node._users
    for user in users if isinstance(users, dict) else () if users is None else (users,):
        used = user._inputs
        if used is not node and (isinstance(used, Node) or node not in used):
            return False
    return True


def _has_sound_inputs(node: Node, seen: set[Node]) -> bool:
    sources = node._input_tuple()
    args = node._args
    if node._kwargs or not _FLAT.issuperset(map(type, args)):
        used = {leaf for leaf in iterate_leaves((args, node._kwargs)) if isinstance(leaf, Node)}
    else:
        used = {value for value in args if value.__class__ is Node}
    if len(used) != len(sources):
        return False
    return all(source in used and source in seen and source._is_used_by(node) for source in sources)


def find_structure_faults(graph: _HasNodes, root: Any = None) -> Iterator[str]:
    """Yield a sentence for each invariant that does not hold.

    Checked are: opcodes and targets; unique names; nodes and inputs that belong to the graph, every input defined
    earlier; users and inputs that agree; placeholders in an order that Python accepts; nothing behind the output;
    targets that exist on `root`. A graph may have no output: it returns None.
    """
    seen: set[Node] = set()
    names: dict[str, Node] = {}
    output: Node | None = None
    for node in graph.nodes:
        if node.name in names:
            yield f"two nodes are named {node.name!r}"
        names[node.name] = node
        if cast("object", node.graph) is not graph:
            yield f"node {node.name!r} stands in this graph, but says that it belongs to another"
        if output is not None:
            yield f"node {node.name!r} stands behind the output"
        if node.op == "output":
            output = node
        yield from _check_node(node, seen)
        if root is not None and node.op in PATH_OPCODES:
            yield from _check_path(node, root)
        seen.add(node)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    yield from find_parameter_faults(placeholders, graph.keyword_only)


def _check_node(node: Node, seen: set[Node]) -> Iterator[str]:
    if node.op not in OPCODES:
        yield f"node {node.name!r} has the unknown opcode {node.op!r}"
    elif node.op == "call_function":
        if not callable(node.target):
            yield f"node {node.name!r} calls {node.target!r}, which is not callable"
    elif not isinstance(node.target, str):
        yield f"node {node.name!r} ({node.op}) has the target {node.target!r}, which is not a string"
    yield from _check_arity(node)
    yield from _check_uses(node, seen)


def _check_uses(node: Node, seen: set[Node]) -> Iterator[str]:
    sources = node.all_input_nodes
    if node.kwargs or not _FLAT.issuperset(map(type, node.args)):
        used = {leaf for leaf in iterate_leaves((node.args, node.kwargs)) if isinstance(leaf, Node)}
    else:
        used = {value for value in node.args if type(value) is Node}
    for source in sources:
        if source.graph is not node.graph:
            yield f"node {node.name!r} uses {source.name!r}, which belongs to another graph"
        elif source not in seen:
            yield f"node {node.name!r} uses {source.name!r} before it is computed"
        if node not in source.users:
            yield f"node {source.name!r} does not know its user {node.name!r}"
    if used != set(sources):
        yield f"the input list of node {node.name!r} does not agree with its arguments"
    for user in node.users:
        if node not in user.all_input_nodes:
            yield f"node {node.name!r} lists {user.name!r} as a user, which does not use it"


def _check_arity(node: Node) -> Iterator[str]:
    if node.op == "output" and len(node.args) != 1:
        yield f"output {node.name!r} has {len(node.args)} arguments; it must have one"


def _check_path(node: Node, root: Any) -> Iterator[str]:
    holder: Any = root
    walked: list[str] = []
    for part in str(node.target).split("."):
        found = getattr(holder, part, _MISSING)
        if found is _MISSING:
            where = ".".join(walked) or "the root"
            yield f"node {node.name!r} refers to {node.target!r}, but {where} has no attribute {part!r}"
            return
        holder = found
        walked.append(part)
    if node.op == "call_module" and not callable(holder):
        yield f"node {node.name!r} calls {node.target!r}, which is a {type(holder).__name__} and not a module"

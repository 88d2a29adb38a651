"""Copying all nodes of a graph at once, without the checks that making them one by one needs."""

# Node, ring and graph are one data structure in several files, and share its inner parts.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fxplug.ir.arguments import EMPTY_DICT, immutable_dict
from fxplug.ir.node import Node, map_arg
from fxplug.ir.notes import map_notes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fxplug.ir.node import NodeOwner
    from fxplug.ir.ring import Ring

__all__ = ["clone_nodes", "copy_meta", "drop_notes", "give_back_notes"]


def clone_nodes(source: Ring, owner: NodeOwner, destination: Ring) -> dict[Node, Node]:
    """Append copies of all nodes of one ring to another, empty one.

    Names, arguments, notes, origins, regions, positions and the order of users are as in the source. Linear in the
    number of nodes and arguments.

    Args:
        source: Not changed.
        owner: The graph that the copies belong to.
        destination: The ring of that graph.

    Returns:
        Old node -> new node.
    """
    mapping: dict[Node, Node] = {}
    last = sentinel = destination.sentinel
    node = source.sentinel._next
    while node is not source.sentinel:
        copy = Node.__new__(Node)
        mapping[node] = copy
        copy.graph = owner
        copy._name = node._name
        copy._op = node._op
        copy._target = node._target
        copy._type = node._type
        copy._region = node._region
        copy._origin = node._origin
        copy._position = node._position
        copy._prev = last
        last._next = last = copy
        node = node._next
    last._next = sentinel
    sentinel._prev = last
    destination.length = source.length
    destination.numbered = source.numbered
    for node, copy in mapping.items():
        inputs, args = node._inputs, node._args
        is_usual = args.__class__ is tuple and len(args) == 1 and not node._kwargs
        if is_usual and isinstance(inputs, Node) and args[0] is inputs:
            copy._inputs = used = mapping[inputs]  # Written out: most nodes of a network.
            copy._args, copy._kwargs = (used,), EMPTY_DICT
        else:
            _copy_arguments(node, copy, mapping)
        users = node._users
        if isinstance(users, dict):
            copy._users = {mapping[user]: None for user in users}
        else:
            copy._users = None if users is None else mapping[users]
        copy._meta = None if node._meta is None else copy_meta(node.meta, mapping)
    return mapping


def _copy_arguments(node: Node, copy: Node, mapping: Mapping[Node, Node]) -> None:
    inputs = node._inputs
    if inputs is node._args and not node._kwargs and isinstance(inputs, tuple):
        copy._args = copy._inputs = tuple([mapping[used] for used in inputs])
        copy._kwargs = EMPTY_DICT
        return
    if isinstance(inputs, Node):
        copy._inputs = mapping[inputs]
    else:
        copy._inputs = tuple([mapping[used] for used in inputs])
    copy._args = cast("tuple[Any, ...]", map_arg(node._args, mapping.__getitem__)) if inputs else node._args
    if not node._kwargs:
        copy._kwargs = EMPTY_DICT
    elif inputs:
        copy._kwargs = cast("immutable_dict", map_arg(node._kwargs, mapping.__getitem__))
    else:
        copy._kwargs = node._kwargs


def copy_meta(meta: Mapping[str, Any], mapping: Mapping[Node, Node] | None = None) -> dict[str, Any]:
    """Return notes that can be edited without touching the original.

    Containers are copied, values are shared, and nodes that `mapping` knows are replaced.
    """
    known = mapping or {}
    return map_notes(meta, lambda value: known.get(value, value) if type(value) is Node else value)


def give_back_notes(nodes: Iterable[Node], copies: Iterable[Node], mapping: Mapping[Node, Node]) -> None:
    """Let nodes have the notes, annotations and origins that copies of them, in the same order, were made with.

    Args:
        nodes: Changed in place.
        copies: Not changed.
        mapping: Copy -> node, for nodes that stand in notes.
    """
    for node, copy in zip(nodes, copies, strict=True):
        node._meta = None if copy._meta is None else copy_meta(copy._meta, mapping)
        node._type, node._origin = copy._type, copy._origin


def drop_notes(nodes: Iterable[Node], names: frozenset[str]) -> None:
    """Take some notes away; those of nodes that nobody has asked for notes yet are not made for it.

    Args:
        nodes: Changed in place.
        names: Of notes.
    """
    for node in nodes:
        if node._meta:
            for name in names & node._meta.keys():
                del node._meta[name]

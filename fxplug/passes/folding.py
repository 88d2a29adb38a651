"""Folding nodes of a program into a submodule."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.errors import ForeignNodeError, InvalidArgumentError, PartitionError, UnknownNameError
from fxplug.execute import RESERVED_ATTRIBUTES, GraphModule, has_path
from fxplug.ir import Node
from fxplug.passes.dependences import is_call
from fxplug.passes.partition import requirements
from fxplug.passes.parts import Part, PartStyle, build_part, call_part, find_borders, hand_on_origins
from fxplug.passes.sharing import drop_empty, drop_unread
from fxplug.passes.tensor_table import TensorTable
from fxplug.rewrite.adoption import drop_unreached

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["fold_submodule", "named_calls"]

_SHOWN = 6


def fold_submodule(module: GraphModule, nodes: Iterable[Node | str], name: str) -> Node:
    """Put some calls of a program into a submodule, and call it in their place.

    Every effect happens in the order in which it did. Submodules and parameters that nothing else uses move into the
    new submodule, as the objects that they are.

    Args:
        module: Changed in place.
        nodes: Calls of its graph, as nodes or by name.
        name: Of the submodule.

    Returns:
        The call of the submodule. Where the calls gave several values that others use, it returns a tuple.

    Raises:
        PartitionError: The nodes cannot run as one: a value or an effect leads out of them and back. The message names
            the nodes in between. Nothing was changed.
        InvalidArgumentError: There are no nodes, one is no call, or the module has something by that name.
        UnknownNameError: There is no node by a name.

    Example:
        ::

            fxplug.fold_submodule(module, ["conv1", "bn1", "relu"], "stem")
            module.stem
    """
    members = named_calls(module, nodes, "fold")
    if not name.isidentifier() or name in RESERVED_ATTRIBUTES or has_path(module, name):
        found = "the module has that already" if has_path(module, name) else "no submodule may have that name"
        raise InvalidArgumentError(f"Cannot fold nodes into {name!r}: {found}. Choose another name.")
    following = _following(module, members)
    tensors = TensorTable(module)
    part = Part(name, members)
    find_borders(module, [part], own=True)
    module.add_module(name, build_part(module, part, PartStyle(keep_node_names=True)))
    behind = members[-1]
    for node in following:
        behind.append(node)
        behind = node
    call = _call(module, part)
    for node in reversed(members):
        module.graph.erase_node(node)
    paths = [str(node._target) for node in members if node._op == "call_module"]
    drop_unread(module, part.attributes)
    drop_unreached(module, paths)
    for path in (*paths, *(str(node.target) for node in part.attributes)):
        drop_empty(module, path)
    hand_on_origins(module, tensors, module, "fold_submodule")
    return call


def named_calls(module: GraphModule, nodes: Iterable[Node | str], what: str) -> list[Node]:
    """Return the calls that are named, in the order of the graph.

    Args:
        module: Holds them.
        nodes: As nodes or by name.
        what: Is about to be done, for messages.
    """
    by_name: dict[str, Node] = {}
    found: dict[Node, None] = {}
    for wanted in nodes:
        node = wanted
        if isinstance(wanted, str):
            by_name = by_name or {node._name: node for node in module.graph.nodes}
            if wanted not in by_name:
                raise UnknownNameError("node", wanted, by_name)
            node = by_name[wanted]
        if not isinstance(node, Node) or node.graph is not module.graph:
            raise ForeignNodeError(f"Cannot {what} {node!r}: it is no node of this module's graph.")
        if not is_call(node):
            raise InvalidArgumentError(
                f"Cannot {what} node {node._name!r}: it is no call but a {node._op}. Name calls alone; attributes and "
                "inputs that they use come by themselves."
            )
        found[node] = None
    if not found:
        raise InvalidArgumentError(f"Cannot {what} nothing: name at least one node.")
    return sorted(found)


def _following(module: GraphModule, members: Sequence[Node]) -> list[Node]:
    """Return the calls between the first and the last member that have to run behind them all.

    Raises:
        PartitionError: A member needs one of them.
    """
    before = requirements(module)
    inside = set(members)
    later: dict[Node, Node] = {}
    node = members[0]
    while node is not members[-1]:
        node = node._next
        if not is_call(node):
            continue
        between = next((used for used in before[node] if used in later), None)
        if node in inside:
            if between is not None:
                raise _not_convex(node, between, later)
        elif between is not None:
            later[node] = between
        elif not inside.isdisjoint(before[node]):
            later[node] = next(used for used in before[node] if used in inside)
    return list(later)


def _not_convex(node: Node, between: Node, later: Mapping[Node, Node]) -> PartitionError:
    path = [between]
    while path[-1] in later:
        path.append(later[path[-1]])
    start, *through = reversed(path)
    shown = " and ".join(repr(step._name) for step in through[:_SHOWN])
    more = f" and {len(through) - _SHOWN} more" if len(through) > _SHOWN else ""
    links = zip((start, *through), (*through, node), strict=True)
    is_value = all(first in second.all_input_nodes for first, second in links)
    way = "a value" if is_value else "an effect or a value"
    return PartitionError(
        f"Cannot fold the nodes into one submodule: {way} of {start._name!r} goes through {shown}{more}, which would "
        f"stay outside, and back to {node._name!r}. Fold these too, or leave out {node._name!r}."
    )


def _call(module: GraphModule, part: Part) -> Node:
    """Call the part behind its last node, and let others use what it returns."""
    graph = module.graph
    with graph.inserting_before(part.nodes[-1]._next):
        call, values = call_part(graph, part, {node: node for node in part.inputs})
    inside = set(part.nodes)
    for node, value in values.items():
        node.replace_all_uses_with(value, delete_user_cb=lambda user: user not in inside)
    return call

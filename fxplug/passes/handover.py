"""What nodes inherit when a pass makes or changes them: lines of the program, and the name of the pass."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.execute import GraphModule
from fxplug.ir import MadeBy, Node, Origin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

__all__ = ["Handover"]

_Look = tuple[str, Any, Any, "nn.Module | None"]
"""Opcode, target, origins, and the submodule that is called."""


class Handover:
    """The nodes of a module as they are before a pass, so that what the pass makes of them can be told apart.

    Nothing is heard while the pass runs. Afterwards every node that is new, or has another target, submodule or
    origin, notes the pass; a new one without a line of the program inherits one: that of the node whose uses it took
    over (see `fxplug.Node.replace_all_uses_with`), else that of a node that uses it, else that of one that it uses,
    else that of the nearest one before it, else behind it.

    Args:
        module: What a pass is about to transform, with the graph modules inside.
    """

    def __init__(self, module: GraphModule) -> None:
        self._parts = [
            (part, part.graph, _looks_of(part)) for part in module.modules() if isinstance(part, GraphModule)
        ]

    def settle(self, name: str, provider: str) -> None:
        """Let what the pass made and changed know where it comes from.

        Args:
            name: Full name of the pass.
            provider: Distribution and version that it comes from.
        """
        for part, graph, before in self._parts:
            modules = _modules_of(part)
            now = {node: _look(node, modules) for node in part.graph.nodes}
            if part.graph is graph:
                touched = [node for node, look in now.items() if not _are_same(before.get(node), look)]
            else:  # Written anew, with other names: what looks like a former node is one.
                known = {_identities(look) for look in before.values()}
                touched = [node for node, look in now.items() if _identities(look) not in known]
            if touched:
                _settle(part, touched, {node for node in touched if node not in before}, name, provider)


def _looks_of(module: GraphModule) -> dict[Node, _Look]:
    modules = _modules_of(module)
    return {node: _look(node, modules) for node in module.graph.nodes}


def _modules_of(module: GraphModule) -> dict[str, nn.Module]:
    return dict(module.named_modules(remove_duplicate=False))


def _look(node: Node, modules: dict[str, nn.Module]) -> _Look:
    target, origin = node._target, node._origin
    if isinstance(origin, list):  # Nobody has read it yet: what is copied from it is the origin itself.
        origin = node.origins[0]
    return node._op, target, origin, modules.get(target) if node._op == "call_module" else None


def _are_same(first: _Look | None, second: _Look) -> bool:
    if first is None:
        return False
    target, other = first[1], second[1]
    return (
        first[3] is second[3]
        and (first[2] is second[2] or (isinstance(first[2], tuple) and first[2] == second[2]))
        and (target is other or (isinstance(target, str) and target == other))
        and first[0] == second[0]
    )


def _identities(look: _Look) -> tuple[Any, ...]:
    """Return what is equal where opcode, target, origins and submodule are the same; for as long as they live."""
    opcode, target, origins, module = look
    listed = origins if isinstance(origins, tuple) else (origins,)
    return opcode, target if isinstance(target, str) else id(target), tuple(map(id, listed)), id(module)


def _settle(module: GraphModule, touched: list[Node], new: set[Node], name: str, provider: str) -> None:
    computing = [node for node in touched if node._op not in {"placeholder", "output"}]
    inherited = {node for node in computing if node in new and not _has_line(node)}
    if inherited:
        _inherit(module, [node for node in computing if node in inherited])
    # Nodes share origins, and go on doing so.
    derived: dict[tuple[Origin, bool], Origin] = {}
    for node in computing:
        inside = node in inherited
        entry = MadeBy(name, provider, inside)
        origins = node.origins or (Origin(None),)
        for origin in origins:
            if (origin, inside) not in derived:
                derived[origin, inside] = origin.derived(entry)
        node.origins = tuple([derived[origin, inside] for origin in origins])


def _has_line(node: Node) -> bool:
    return any(origin.code is not None for origin in node.origins)


def _inherit(module: GraphModule, nodes: list[Node]) -> None:
    """Give nodes, which are in the order of the graph, the origins of their neighbours."""
    for node in reversed(nodes):
        _take_over(node, node.users)
    for node in nodes:
        if not _has_line(node):
            _take_over(node, node.all_input_nodes)
    left = {node for node in nodes if not _has_line(node)}
    if left:
        # Nothing is said by what they compute with, so what runs next to them is the best that there is to say.
        everything = list(module.graph.nodes)
        for ordered in (everything, everything[::-1]):
            last: Node | None = None
            for node in ordered:
                if _has_line(node):
                    last = node
                elif node in left and last is not None:
                    node.origins = last.origins


def _take_over(node: Node, neighbours: Iterable[Node]) -> None:
    for neighbour in neighbours:
        if _has_line(neighbour) and neighbour._op not in {"placeholder", "output"}:
            node.origins = neighbour.origins
            return

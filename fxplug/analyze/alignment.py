"""Which nodes of two graphs compute the same value, where both graphs come from the same program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Literal

from fxplug.ir import iterate_leaves
from fxplug.ir.node import Node

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fxplug.ir import Graph, Origin

__all__ = ["AlignedBy", "Alignment", "align"]

AlignedBy = Literal["input", "same", "uses", "origin", "name"]
"""Why two nodes are taken to compute the same value, the surest reason first.

``"input"``: placeholders of the same position, and the outputs. ``"same"``: name, target, origin and history are the
same. ``"uses"``: nodes that are aligned take them as the same argument. ``"origin"``: they came from the same line and
module, as the only ones left or as many on either side; a call that does what several did belongs to the last of these.
``"name"``: name, opcode and target are the same.
"""


class Alignment:
    """Pairs of nodes.

    Args:
        first: The graph that the values are right in.
        second: The graph that is judged.
    """

    def __init__(self, first: Graph, second: Graph) -> None:
        self.first, self.second = first, second
        self.partner: dict[Node, Node] = {}
        """Node of the second graph -> node of the first."""
        self.by: dict[Node, AlignedBy] = {}
        """Node of the second graph -> why it is aligned."""
        self._taken: set[Node] = set()

    def pair(self, first: Node, second: Node, by: AlignedBy) -> bool:
        """Note that two nodes belong together, unless one of them has its partner; return whether it was noted."""
        if first in self._taken or second in self.partner:
            return False
        self.partner[second] = first
        self.by[second] = by
        self._taken.add(first)
        return True

    def is_taken(self, first: Node) -> bool:
        """Return whether a node of the first graph has its partner."""
        return first in self._taken

    def left_in_first(self) -> list[Node]:
        """Return the nodes of the first graph without a partner."""
        return [node for node in self.first.nodes if not self.is_taken(node)]

    def left_in_second(self) -> list[Node]:
        """Return the nodes of the second graph without a partner."""
        return [node for node in self.second.nodes if node not in self.partner]


def align(first: Graph, second: Graph) -> Alignment:
    """Return which nodes of two graphs compute the same value.

    Names alone say little: a pass may give a node another meaning, and graphs of different programs share names. So
    nodes that nothing happened to are aligned first, then what these use in the same place, then what is left of the
    same line of the program. Linear in the size of the graphs.

    Args:
        first: The graph that the values are right in.
        second: The graph that is judged. Placeholders that are not as many as in the first one belong together by name.
    """
    aligned = Alignment(first, second)
    places = _Places()
    _align_ends(aligned)
    _align_untouched(aligned, places)
    _align_uses(aligned)
    _align_fused(aligned, places)
    _align_origins(aligned, places)
    _align_uses(aligned)
    named = {node.name: node for node in aligned.left_in_first()}
    for node in aligned.left_in_second():
        other = named.get(node.name)
        if other is not None and _is_same_call(other, node) and not _is_inside(node):
            aligned.pair(other, node, "name")
    return aligned


def _align_ends(aligned: Alignment) -> None:
    """Align inputs and outputs."""
    ours, theirs = (graph.find_nodes(op="placeholder") for graph in (aligned.first, aligned.second))
    if len(ours) == len(theirs):
        pairs = list(zip(ours, theirs, strict=True))
    else:
        named = {node.target: node for node in ours}
        pairs = [(named[node.target], node) for node in theirs if node.target in named]
    pairs += zip(aligned.first.find_nodes(op="output"), aligned.second.find_nodes(op="output"), strict=False)
    for first, second in pairs:
        aligned.pair(first, second, "input")


class _Places:
    """Where nodes came from, as values that are equal where the places are."""

    def __init__(self) -> None:
        self._known: dict[Origin, Hashable] = {}

    def of(self, origin: Origin) -> Hashable:
        """Return lines and module of an origin."""
        known = self._known.get(origin)
        if known is None:
            path = origin.module.path if origin.module is not None else ""
            known = self._known[origin] = (tuple(origin.frames()), path)
        return known

    def of_node(self, node: Node) -> tuple[Hashable, ...]:
        """Return the places of all origins that have a line."""
        return tuple(self.of(origin) for origin in node.origins if origin.code is not None)

    def kind_of(self, node: Node) -> Hashable:
        """Return what a node and its copy in another graph have in common, besides the name."""
        target = node.target if isinstance(node.target, Hashable) else id(node.target)
        return node.op, target, node.history, self.of_node(node)


def _is_same_call(first: Node, second: Node) -> bool:
    return first.op == second.op and (first.target is second.target or first.target == second.target)


def _is_inside(node: Node) -> bool:
    return any(entry.inside for entry in node.history)


def _align_untouched(aligned: Alignment, places: _Places) -> None:
    """Align nodes that nothing happened to.

    The names of a graph that was written anew are other ones, and the nodes of a loop are alike. So names count only
    where the same ones are there, or what they use fits; otherwise nodes that are as many are aligned in their order.
    """
    kinds: dict[Hashable, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
    for side, left in enumerate((aligned.left_in_first(), aligned.left_in_second())):
        for node in left:
            if places.of_node(node):
                kinds[places.kind_of(node)][side].append(node)
    doubtful: dict[Node, Node] = {}
    for ours, theirs in kinds.values():
        named = {node.name: node for node in ours}
        if len(ours) == len(theirs):
            is_named = all(node.name in named for node in theirs)
            for position, node in enumerate(theirs):
                aligned.pair(named[node.name] if is_named else ours[position], node, "same")
        else:
            doubtful.update({node: named[node.name] for node in theirs if node.name in named})
    for node in aligned.left_in_second():
        if node in doubtful and _uses_fit(aligned, doubtful[node], node):
            aligned.pair(doubtful[node], node, "same")


def _uses_fit(aligned: Alignment, first: Node, second: Node) -> bool:
    """Return whether what two nodes use is aligned in the same places, as far as it is aligned at all."""
    ours, theirs = _leaves(first), _leaves(second)
    return len(ours) == len(theirs) and all(
        aligned.partner.get(other, mine) is mine
        for mine, other in zip(ours, theirs, strict=True)
        if isinstance(other, Node)
    )


def _align_uses(aligned: Alignment) -> None:
    """Align what takes the same place in the arguments of aligned calls, and what these use in turn."""
    waiting = list(aligned.partner.items())
    while waiting:
        second, first = waiting.pop()
        if not _is_same_call(first, second):
            continue
        ours, theirs = _leaves(first), _leaves(second)
        if len(ours) != len(theirs):
            continue
        for mine, other in zip(ours, theirs, strict=True):
            if isinstance(mine, Node) and isinstance(other, Node) and aligned.pair(mine, other, "uses"):
                waiting.append((other, mine))


def _leaves(node: Node) -> list[Any]:
    return list(iterate_leaves((node.args, node.kwargs)))


def _align_fused(aligned: Alignment, places: _Places) -> None:
    """Align calls that do what several did with the last of these, where the other graph has them one by one."""
    for first, second in _ends_of_fused(aligned.left_in_first(), aligned.left_in_second(), places):
        aligned.pair(first, second, "origin")
    for second, first in _ends_of_fused(aligned.left_in_second(), aligned.left_in_first(), places):
        aligned.pair(first, second, "origin")


def _ends_of_fused(single: list[Node], fused: list[Node], places: _Places) -> Iterator[tuple[Node, Node]]:
    """Yield the last of the calls that became one, and that one, where there are as many on either side.

    Args:
        single: Nodes of one graph without a partner, among which the calls may be one by one.
        fused: Nodes of the other graph without a partner.
        places: Where nodes came from.
    """
    known: dict[tuple[Hashable, ...], list[Node]] = defaultdict(list)
    for node in single:
        known[places.of_node(node)].append(node)
    wanted: dict[tuple[Hashable, ...], list[Node]] = defaultdict(list)
    for node in fused:
        path = places.of_node(node)
        if len(path) > 1 and path not in known and not _is_inside(node):
            wanted[path].append(node)
    among = set(single)
    for path, nodes in wanted.items():
        starts = [(node, path[size:]) for size in range(1, len(path)) for node in known.get(path[:size], ())]
        ends = [end for node, rest in starts if (end := _end_of(node, rest, places, among)) is not None]
        if len(ends) == len(nodes):
            yield from zip(ends, nodes, strict=True)


def _end_of(node: Node, path: tuple[Hashable, ...], places: _Places, among: Collection[Node]) -> Node | None:
    """Return where a path of places leads from a node to users of its value; None where it does not lead to one."""
    for place in path:
        users = [user for user in node.users if user in among and places.of_node(user) == (place,)]
        if len(users) != 1:
            return None
        node = users[0]
    return node


def _align_origins(aligned: Alignment, places: _Places) -> None:
    """Align nodes of the same line and module where it is plain which of them belong together."""
    groups: dict[Hashable, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
    for side, left in enumerate((aligned.left_in_first(), aligned.left_in_second())):
        for node in left:
            if not _is_inside(node):
                for place in dict.fromkeys(places.of_node(node)):
                    groups[place][side].append(node)
    for ours, theirs in groups.values():
        named = {node.name: node for node in ours}
        for node in theirs:
            if node.name in named and len(node.origins) == len(named[node.name].origins):
                aligned.pair(named[node.name], node, "origin")
        mine = [node for node in ours if not aligned.is_taken(node)]
        others = [node for node in theirs if node not in aligned.partner]
        if len(mine) == len(others):
            for first, second in zip(mine, others, strict=True):
                aligned.pair(first, second, "origin")

"""Which nodes can run together: partitions without cycles, in an order that keeps the order of effects."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from fxplug.errors import PartitionError
from fxplug.passes.dependences import effect_order, is_call

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["group_nodes", "group_nodes_by_kind", "order_partitions", "requirements"]

_SHOWN = 4


def requirements(module: GraphModule) -> dict[Node, list[Node]]:
    """Return, for each call of a module, the earlier calls behind which it must stay: for values and for effects.

    Args:
        module: Not changed.
    """
    order = effect_order(module)
    found: dict[Node, list[Node]] = {}
    for node in module.graph.nodes:
        if is_call(node):
            inputs = [used for used in node._input_tuple() if is_call(used)]
            found[node] = [*inputs, *order[node]] if node in order else inputs
    return found


# -- groups


def group_nodes(
    module: GraphModule,
    predicate: Callable[[Node], bool],
    *,
    min_block_size: int = 1,
    together: Iterable[Collection[Node]] = (),
) -> list[list[Node]]:
    """Return as few groups as possible that hold all calls which fulfil a predicate, and can each run as one.

    No value and no effect leads out of a group and back into it, so that there is an order in which the groups and the
    other calls run one after another; no two of the groups could be one. The time grows linearly with nodes and uses.

    Args:
        module: Not changed.
        predicate: Asked once for each call, in the order of the graph.
        min_block_size: Groups with fewer calls are left out.
        together: Sets of calls that come into one group or into none: into none where one of them does not fulfil the
            predicate, or where a call that does not stands between them.

    Returns:
        The groups in an order in which they can run, each in the order of the graph.

    Raises:
        PartitionError: A set of `together` holds something that is no call of this graph.
    """
    groups = group_nodes_by_kind(module, lambda node: True if predicate(node) else None, together=together)
    return [nodes for _, nodes in groups if len(nodes) >= min_block_size]


def group_nodes_by_kind(
    module: GraphModule,
    kind_of: Callable[[Node], Hashable],
    *,
    together: Iterable[Collection[Node]] = (),
) -> list[tuple[Hashable, list[Node]]]:
    """Return groups of calls of one kind that can each run as one, as `group_nodes` does for a single kind.

    No value and no effect leads out of a group and back into it, by whatever way through other groups.

    Args:
        module: Not changed.
        kind_of: Asked once for each call, in the order of the graph; None for calls that come into no group.
        together: Sets of calls that come into one group or into none; see `group_nodes`.

    Returns:
        Kind and calls of each group, in an order in which they can run, the calls in the order of the graph.

    Raises:
        PartitionError: A set of `together` holds something that is no call of this graph.
    """
    before = requirements(module)
    kinds = {node: kind for node in before if (kind := kind_of(node)) is not None}
    units, kinds = _units(before, kinds, together)
    levels: dict[Node, int] = {}
    groups: dict[tuple[int, Hashable], list[Node]] = {}
    for unit in units:
        kind = kinds.get(unit[0])
        # Whoever leaves a group for another call, and comes back, comes back to a later one.
        level = max(
            (
                levels[used] + (used in kinds and kinds[used] != kind)
                for node in unit
                for used in before[node]
                if used in levels
            ),
            default=0,
        )
        for node in unit:
            levels[node] = level
        if kind is not None:
            groups.setdefault((level, kind), []).extend(unit)
    found = [(kind, sorted(nodes)) for (_, kind), nodes in groups.items()]
    place = {id(nodes): key[0] for (_, nodes), key in zip(found, groups, strict=True)}
    return sorted(found, key=lambda group: (place[id(group[1])], group[1][0]))


def _units(
    before: Mapping[Node, Sequence[Node]], kinds: dict[Node, Hashable], together: Iterable[Collection[Node]]
) -> tuple[Iterable[Sequence[Node]], dict[Node, Hashable]]:
    """Return what has to stand on one level, in an order in which it can run, and the kinds of what may be grouped."""
    sets = [list(dict.fromkeys(nodes)) for nodes in together]
    for nodes in sets:
        for node in nodes:
            if node not in before:
                raise PartitionError(
                    f"Cannot keep {node!r} together with others: it is no call of this graph. Name calls alone."
                )
    if not sets:
        return ([node] for node in before), kinds
    merged = _merge(sets)
    found: dict[int, set[Hashable]] = {}
    for node, number in merged.items():
        found.setdefault(number, set()).add(kinds.get(node))
    split = {number for number, several in found.items() if None in several or len(several) > 1}
    loose = {node for node, number in merged.items() if number in split}
    merged = {node: number for node, number in merged.items() if number not in split}
    while True:
        components = _components(before, merged)
        broken = {
            node
            for component in components
            if len(component) > 1 and not _is_one_kind(component, kinds, loose)
            for node in component
            if node in merged
        }
        if not broken:
            return components, {node: kind for node, kind in kinds.items() if node not in loose}
        loose |= broken
        merged = {node: number for node, number in merged.items() if node not in broken}


def _is_one_kind(component: Sequence[Node], kinds: Mapping[Node, Hashable], loose: Collection[Node]) -> bool:
    found = {None if node in loose else kinds.get(node) for node in component}
    return None not in found and len(found) == 1


def _merge(sets: Iterable[Sequence[Node]]) -> dict[Node, int]:
    """Return node -> number of its set, where sets that share a node are one."""
    found: dict[Node, int] = {}
    members: dict[int, list[Node]] = {}
    for number, nodes in enumerate(sets):
        joined = list(nodes)
        for other in {found[node] for node in nodes if node in found}:
            joined += members.pop(other)
        members[number] = joined
        found.update(dict.fromkeys(joined, number))
    return found


def _components(before: Mapping[Node, Sequence[Node]], merged: Mapping[Node, int]) -> list[list[Node]]:
    """Return nodes that need each other once the given sets are one, in an order in which they can run."""
    rings: dict[int, list[Node]] = {}
    for node, number in merged.items():
        rings.setdefault(number, []).append(node)
    following: dict[Node, Node] = {}
    for nodes in rings.values():
        following.update(zip(nodes, [*nodes[1:], nodes[0]], strict=True))
    needs = {
        node: [*needed, following[node]] if node in following else needed for node, needed in before.items()
    }
    search = _Search(needs)
    for node in before:
        search.visit(node)
    return search.found


class _Search:
    """Finds strongly connected components, each behind those that it needs (Tarjan's algorithm, without recursion).

    Args:
        needs: Node -> nodes that it needs.
    """

    def __init__(self, needs: Mapping[Node, Sequence[Node]]) -> None:
        self._needs = needs
        self._index: dict[Node, int] = {}
        self._low: dict[Node, int] = {}
        self._stack: list[Node] = []
        self._open: set[Node] = set()
        self.found: list[list[Node]] = []

    def visit(self, start: Node) -> None:
        """Find the components of all nodes that `start` needs."""
        if start in self._index:
            return
        waiting = [self._enter(start)]
        while waiting:
            node, needed = waiting[-1]
            following = next((used for used in needed if self._is_new(node, used)), None)
            if following is not None:
                waiting.append(self._enter(following))
                continue
            waiting.pop()
            if waiting:
                outer = waiting[-1][0]
                self._low[outer] = min(self._low[outer], self._low[node])
            if self._low[node] == self._index[node]:
                self._close(node)

    def _enter(self, node: Node) -> tuple[Node, Iterator[Node]]:
        self._index[node] = self._low[node] = len(self._index)
        self._stack.append(node)
        self._open.add(node)
        return node, iter(self._needs[node])

    def _is_new(self, node: Node, used: Node) -> bool:
        if used in self._open:
            self._low[node] = min(self._low[node], self._index[used])
        return used not in self._index

    def _close(self, node: Node) -> None:
        component = [self._stack.pop()]
        while component[-1] is not node:
            component.append(self._stack.pop())
        self._open.difference_update(component)
        self.found.append(sorted(component))


# -- order


def order_partitions(
    partitions: Sequence[Sequence[Node]], before: Mapping[Node, Sequence[Node]], names: Sequence[str]
) -> list[int]:
    """Return an order in which partitions can run one after another.

    Of those that can run next, the one comes next that has the first node; so partitions that can run in the order of
    their first nodes do.

    Args:
        partitions: Each node in one of them.
        before: What `requirements` returns.
        names: Of the partitions, for the message.

    Returns:
        Positions in `partitions`.

    Raises:
        PartitionError: Some need each other; the message names them, and the nodes that are the reason.
    """
    place = {node: number for number, nodes in enumerate(partitions) for node in nodes}
    needs: list[set[int]] = [set() for _ in partitions]
    users: list[list[int]] = [[] for _ in partitions]
    for node, number in place.items():
        for used in before[node]:
            other = place[used]
            if other != number and other not in needs[number]:
                needs[number].add(other)
                users[other].append(number)
    rank = {number: rank for rank, number in enumerate(dict.fromkeys(place[node] for node in before))}
    missing = [len(found) for found in needs]
    ready = [(rank[number], number) for number, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)[1]
        order.append(number)
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (rank[user], user))
    if len(order) < len(partitions):
        left = [number for number in range(len(partitions)) if missing[number]]
        raise _cycle_error(_cycle(left, needs), partitions, before, names)
    return order


def _cycle(left: Sequence[int], needs: Sequence[set[int]]) -> list[int]:
    """Return partitions of which each needs the next one, and the last the first; all of `left` need others of it."""
    among = set(left)
    walked: dict[int, None] = {}
    number = left[0]
    while number not in walked:
        walked[number] = None
        number = min(needs[number] & among)
    found = list(walked)
    return found[found.index(number) :]


def _cycle_error(
    cycle: Sequence[int],
    partitions: Sequence[Sequence[Node]],
    before: Mapping[Node, Sequence[Node]],
    names: Sequence[str],
) -> PartitionError:
    reasons: list[str] = []
    for number, other in list(zip(cycle, [*cycle[1:], cycle[0]], strict=True)):
        members = set(partitions[other])
        node, used = next(
            (node, used) for node in partitions[number] for used in before[node] if used in members
        )
        reason = (
            f"uses {used.name!r}"
            if used in node.all_input_nodes
            else f"has to stay behind {used.name!r}, or effects would happen in another order"
        )
        reasons.append(f"{names[number]!r} needs {names[other]!r} (its node {node.name!r} {reason})")
    more = len(reasons) - _SHOWN
    listed = ", ".join(reasons[:_SHOWN]) + (f", and {more} more" if more > 0 else "")
    return PartitionError(
        f"Cannot split the module: partitions need each other: {listed}. Put these nodes into one partition, or what "
        "lies between them into partitions of its own."
    )

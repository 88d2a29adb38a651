"""The order of passes: phases first, then what their records say about each other, then the order of the list."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from fxplug.errors import PassOrderError
from fxplug.passes.base import PHASES, PassRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["order_passes", "order_reasons"]


def order_passes(entries: Sequence[tuple[str, PassRecord]]) -> list[int]:
    """Return the positions of `entries` in the order in which the passes run.

    A pass whose record names another one in ``before`` or ``after`` is placed accordingly; otherwise earlier
    phases come first, and within a phase the listed order is kept. Where a pass is installed has no influence.

    A pass may be listed more than once. Who declares ``after`` runs behind the first of its listings, who declares
    ``before`` runs ahead of the last one: the other listings stay where they were put on purpose. What a pass declares
    holds for each of its own listings.

    Args:
        entries: Full name, such as ``"quant:static-int8"``, and record of each pass, in listed order.

    Raises:
        PassOrderError: The declarations contradict each other; the message prints the cycle.
    """
    for name, record in entries:
        if record.phase not in PHASES:
            raise PassOrderError(
                f"Cannot order the passes: {name!r} has the phase {record.phase!r}. Use one of {', '.join(PHASES)}."
            )
    followers = _followers(entries)
    waiting = [0] * len(entries)
    for row in followers:
        for follower in row:
            waiting[follower] += 1
    ready = [
        (_rank(entries, position), position) for position in range(len(entries)) if waiting[position] == 0
    ]
    heapq.heapify(ready)
    ordered: list[int] = []
    while ready:
        _, position = heapq.heappop(ready)
        ordered.append(position)
        for follower in followers[position]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, (_rank(entries, follower), follower))
    if len(ordered) < len(entries):
        cycle = _find_cycle(followers, set(range(len(entries))) - set(ordered))
        names = " -> ".join(entries[position][0] for position in cycle)
        raise PassOrderError(
            f"Cannot order the passes: their 'before' and 'after' form a cycle: {names}. Leave one of them "
            "out, or change the records that name each other."
        )
    return ordered


def _followers(entries: Sequence[tuple[str, PassRecord]]) -> list[set[int]]:
    """Return, for each pass, which others must come later."""
    followers: list[set[int]] = [set() for _ in entries]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, (name, _) in enumerate(entries):
        first.setdefault(name, position)
        last[name] = position
    for position, (name, record) in enumerate(entries):
        for other in first:
            if other == name:
                continue  # A pass that names itself says nothing.
            if _names(record.after, other):
                followers[first[other]].add(position)
            if _names(record.before, other):
                followers[position].add(last[other])
    return followers


def order_reasons(earlier: tuple[str, PassRecord], later: tuple[str, PassRecord]) -> tuple[str, ...]:
    """Return why one pass runs directly before another one, as clauses.

    Args:
        earlier: Full name and record.
        later: Those of the pass that `order_passes` placed directly behind it.
    """
    declared = _declared(earlier, later)
    if declared:
        return declared
    if earlier[1].phase != later[1].phase:
        return (f"phase {earlier[1].phase!r} comes before phase {later[1].phase!r}",)
    return (f"{earlier[0]!r} is listed earlier, and both are of phase {later[1].phase!r}",)


def _declared(earlier: tuple[str, PassRecord], later: tuple[str, PassRecord]) -> tuple[str, ...]:
    """Return what two records say about running one of them before the other one."""
    reasons: list[str] = []
    if _names(earlier[1].before, later[0]):
        reasons.append(f"{earlier[0]!r} declares before {later[0]!r}")
    if _names(later[1].after, earlier[0]):
        reasons.append(f"{later[0]!r} declares after {earlier[0]!r}")
    return tuple(reasons)


def _names(declared: tuple[str, ...], name: str) -> bool:
    return any(
        wanted == name or wanted == name.rpartition(":")[2] or wanted == f"core:{name}" for wanted in declared
    )


def _rank(entries: Sequence[tuple[str, PassRecord]], position: int) -> tuple[int, int]:
    return PHASES.index(entries[position][1].phase), position


def _find_cycle(followers: list[set[int]], among: set[int]) -> list[int]:
    path = [min(among)]
    # Every node left over has a predecessor left over, so walking backwards must come round.
    while True:
        before = min(position for position in among if path[-1] in followers[position])
        if before in path:
            return [before, *reversed(path[path.index(before) :])]
        path.append(before)

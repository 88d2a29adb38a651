"""The order of plugins: by name, unless they say otherwise."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fxplug.plugins.discovery import PluginCandidate

__all__ = ["PlacedPlugin", "order_plugins"]


@dataclass(frozen=True)
class PlacedPlugin:
    """A plugin and what it says about its place."""

    candidate: PluginCandidate
    before: tuple[str, ...] = ()
    """Names of plugins or distributions that come later, where they take part."""
    after: tuple[str, ...] = ()
    """Names of those that come earlier, where they take part."""


def order_plugins(plugins: Sequence[PlacedPlugin]) -> tuple[list[str], list[str]]:
    """Return the names of plugins in order, and the names that form a cycle.

    Args:
        plugins: In any order; the result does not depend on it.

    Returns:
        Two lists. The first ends where a cycle keeps all others waiting; the second holds the cycle, each
        before the next and the last before the first, and is empty when everything was ordered.
    """
    followers = _followers(plugins)
    waiting = dict.fromkeys(followers, 0)
    for targets in followers.values():
        for target in targets:
            waiting[target] += 1
    ready = [name for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[str] = []
    while ready:
        name = heapq.heappop(ready)
        ordered.append(name)
        for follower in followers[name]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    left = set(followers) - set(ordered)
    return ordered, _find_cycle(followers, left) if left else []


def _followers(plugins: Sequence[PlacedPlugin]) -> dict[str, set[str]]:
    followers: dict[str, set[str]] = {plugin.candidate.name: set() for plugin in plugins}
    for plugin in plugins:
        for other in plugins:
            if other is plugin:
                continue
            if any(other.candidate.is_called(name) for name in plugin.before):
                followers[plugin.candidate.name].add(other.candidate.name)
            if any(other.candidate.is_called(name) for name in plugin.after):
                followers[other.candidate.name].add(plugin.candidate.name)
    return followers


def _find_cycle(followers: dict[str, set[str]], left: set[str]) -> list[str]:
    path = [min(left)]
    # Whoever is left waits for somebody who is left, so walking backwards must come round.
    while True:
        before = min(name for name in left if path[-1] in followers[name])
        if before in path:
            return list(reversed(path[path.index(before) :]))
        path.append(before)

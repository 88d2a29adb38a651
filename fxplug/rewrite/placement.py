"""Where the nodes of a match may be put together without changing the order in which effects happen."""

# What is asked for every place reads the slots of nodes, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.ir import Effect, Graph, Node, effects
from fxplug.rewrite.calls import value_at
from fxplug.rewrite.writes import WrittenMemory
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import assert_function

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["EffectOrder"]

_ONLY_LOOK = (print, assert_function, *CHECKS)
"""Functions that act outside of the program and do nothing to the values in it."""


class EffectOrder:
    """The nodes of a graph that do more than compute, in order; says what may be moved past what.

    Args:
        graph: May be edited; `forget` and `learn` have to be told of nodes that go and come.
        root: What the graph's paths refer to.
    """

    def __init__(self, graph: Graph, root: Any) -> None:
        self._graph = graph
        self._root = root
        self._noisy: list[Node] | None = None
        self._written: WrittenMemory | None = None

    def _effect(self, node: Node) -> Effect:
        return effects.effect_of(node, self._root)

    def _list(self) -> list[Node]:
        # Made when it is first needed: most matches lie in one piece, and ask for nothing.
        if self._noisy is None:
            self._noisy = [
                node for node in self._graph.nodes if node.op != "output" and self._effect(node).must_be_kept
            ]
        return self._noisy

    @property
    def root(self) -> Any:
        """What the graph's paths refer to."""
        return self._root

    @property
    def has_to_hear(self) -> bool:
        """Whether `forget` and `learn` have something to do: something was asked that edits change."""
        return self._noisy is not None or self._written is not None

    def forget(self, node: Node) -> None:
        """Hear that `node` is about to be erased."""
        if self._noisy is not None and self._effect(node).must_be_kept:
            position = bisect_left(self._noisy, node)
            if position < len(self._noisy) and self._noisy[position] is node:
                del self._noisy[position]
        if self._written is not None:
            self._written.forget(node)

    def learn(self, node: Node) -> None:
        """Hear that `node` was made."""
        if self._noisy is not None and self._effect(node).must_be_kept:
            insort(self._noisy, node)
        if self._written is not None:
            self._written.learn(node)

    def may_be_written(self, node: Node, besides: set[Node]) -> bool:
        """Return whether another node may write the value of `node`: itself, a view of it, or what it is a view of.

        Args:
            node: Any node.
            besides: Nodes that do not count.
        """
        if self._written is None:
            noisy = self._list()
            if not noisy:
                return False
            self._written = WrittenMemory(self._graph, self._root, noisy)
        return self._written.holds(node, besides)

    def meeting_place(self, nodes: Sequence[Node], inputs: list[Node], returned: list[Node]) -> Node | None:
        """Return the node before which all of `nodes` could run.

        Args:
            nodes: In order.
            inputs: What they use.
            returned: Those of them whose values others may use.

        Returns:
            None when there is no place behind all inputs, before all users, at which every effect happens in the
            order in which it did.
        """
        members = set(nodes)
        behind = max(inputs, default=None)
        users = [user for node in returned for user in node.users if user not in members]
        places = [min([nodes[-1].next, *users]) if users else nodes[-1].next]
        places.append(nodes[0] if behind is None or behind < nodes[0] else behind.next)
        for place in places:
            fits = (behind is None or behind < place) and all(place <= user for user in users)
            if fits and self._keeps_order(nodes, members, place):
                return place
        return None

    def _keeps_order(self, nodes: Sequence[Node], members: set[Node], place: Node) -> bool:
        if self.is_in_one_piece(nodes):
            return True
        between = [node for node in self._noisy_between(nodes[0], nodes[-1]) if node not in members]
        for node in nodes:
            others = self._between(node, place) if self._effect(node).must_be_kept else iter(between)
            for other in others:
                passed = node < other < place or place <= other < node
                if passed and other not in members and not self._commute(node, other):
                    return False
        return True

    @staticmethod
    def is_in_one_piece(nodes: Sequence[Node]) -> bool:
        """Return whether nothing stands between nodes but what is read; then there is a place behind the last one."""
        for first, second in pairwise(nodes):
            following = first._next
            while following is not second and following._op in {"get_attr", "placeholder"}:
                following = following._next
            if following is not second:
                return False
        return True

    def _noisy_between(self, first: Node, last: Node) -> list[Node]:
        noisy = self._list()
        return noisy[bisect_left(noisy, first) : bisect_left(noisy, last)]

    @staticmethod
    def _between(node: Node, place: Node) -> Iterator[Node]:
        current, end = (node.next, place) if node < place else (place, node)
        while current is not end:
            yield current
            current = current.next

    def _commute(self, first: Node, second: Node) -> bool:
        """Return whether two nodes may run in either order."""
        one, other = self._effect(first), self._effect(second)
        if one.is_pure and other.is_pure:
            return True
        if one.unknown or other.unknown or (one.random and other.random):
            return False
        for effect, node, opposite in ((one, first, other), (other, second, one)):
            only_looks = any(node.target is function for function in _ONLY_LOOK)
            if effect.outside and not (only_looks and opposite.is_pure):
                return False
        if not (one.writes or other.writes):
            return True
        return not (one.writes | other.writes) - {"state"} and self._share_no_state(first, second)

    def _share_no_state(self, first: Node, second: Node) -> bool:
        ours, theirs = self._state(first), self._state(second)
        if ours & theirs:
            return False
        read = {
            id(value_at(self._root, node.target))
            for node in self._graph.find_nodes(op="get_attr", sort=False)
        }
        return read.isdisjoint(ours | theirs)

    def _state(self, node: Node) -> set[int]:
        module = value_at(self._root, node.target) if node.op == "call_module" else None
        if not isinstance(module, nn.Module):
            return set()
        return {id(tensor) for tensor in (*module.parameters(), *module.buffers())}

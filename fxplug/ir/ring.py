"""The ring of nodes: a doubly linked list with a sentinel, an order that is cheap to ask for, and safe iteration."""

# Node, ring and graph are one data structure in three files, and share its inner parts.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.ir.node import Node

__all__ = ["NodeList", "Ring"]

_GAP = 1 << 32


class _Cursor:
    """Where an iteration stands. The ring moves it back when the node under it goes away."""

    __slots__ = ("current", "forward")

    def __init__(self, current: Node, *, forward: bool) -> None:
        self.current = current
        self.forward = forward


class Ring:
    """Doubly linked nodes around a sentinel.

    Every node carries a label, an integer that grows along the ring, so that comparing two positions takes
    constant time. A node put between two others takes a label between theirs; where there is no room, a
    window around the place is spread out again, wider the denser it is (after Bender, Cole, Demaine,
    Farach-Colton and Zito, "Two Simplified Algorithms for Maintaining Order in a List", ESA 2002), so an
    insertion costs polylogarithmic time amortised, wherever it happens.

    Iteration may go on while the ring changes: a node inserted behind the current one is visited, one
    inserted before it is not, and when the current node is removed or moved, iteration goes on at the place
    where it stood.
    """

    __slots__ = ("_cursors", "length", "numbered", "sentinel")

    def __init__(self, sentinel: Node) -> None:
        self.sentinel = sentinel
        self.length = 0
        self.numbered = False
        """Whether nodes carry labels. A ring that only grows at its end, as a trace's does, needs none."""
        self._cursors: list[_Cursor] = []

    def insert_after(self, node: Node, after: Node) -> None:
        """Link `node`, which must not be linked, behind `after`."""
        following = after._next
        node._prev = after
        node._next = following
        after._next = node
        following._prev = node
        self.length += 1
        if not self.numbered:
            node._position = 0
            return
        sentinel = self.sentinel
        if following is sentinel:
            node._position = (0 if after is sentinel else after._position) + _GAP
        elif after is sentinel:
            node._position = following._position - _GAP
        else:
            low, high = after._position, following._position
            if high - low < 2:
                self._spread(node)
            else:
                node._position = (low + high) // 2

    def remove(self, node: Node) -> None:
        """Unlink `node`; iterations that stand on it step back to its neighbour."""
        before, behind = node._prev, node._next
        before._next = behind
        behind._prev = before
        node._prev = node._next = node
        self.length -= 1
        for cursor in self._cursors:
            if cursor.current is node:
                cursor.current = before if cursor.forward else behind

    def number(self) -> None:
        """Give every node a label, unless they have them."""
        if not self.numbered:
            node = self.sentinel._next
            label = _GAP
            while node is not self.sentinel:
                node._position = label
                label += _GAP
                node = node._next
            self.numbered = True

    def _spread(self, node: Node) -> None:
        """Give new labels to a window of nodes around `node`, wide enough to leave room between them."""
        sentinel = self.sentinel
        first, last, count = node, node, 1
        while True:
            low, high = self._label_range(first._prev, last._next, count)
            step = (high - low) // (count + 1)
            # Demanding more room from wider windows is what keeps the amortised cost low.
            if step > count:
                break
            for _ in range(count):
                if first._prev is not sentinel:
                    first = first._prev
                    count += 1
                if last._next is not sentinel:
                    last = last._next
                    count += 1
        for position in range(1, count + 1):
            first._position = low + position * step
            first = first._next

    def _label_range(self, before: Node, behind: Node, count: int) -> tuple[float, float]:
        """Return the labels between which `count` nodes can be spread; an open end has all the room it wants."""
        room = _GAP * (count + 1)
        if before is not self.sentinel:
            low = before._position
            return low, (behind._position if behind is not self.sentinel else low + room)
        high = behind._position if behind is not self.sentinel else room
        return high - room, high

    def iterate(self, *, forward: bool = True) -> Iterator[Node]:
        """Yield the nodes in order, or in reverse order; see the class for what may change meanwhile."""
        sentinel = self.sentinel
        cursor = _Cursor(sentinel, forward=forward)
        self._cursors.append(cursor)
        try:
            while True:
                node = cursor.current._next if forward else cursor.current._prev
                if node is sentinel:
                    return
                cursor.current = node
                yield node
        finally:
            self._cursors.remove(cursor)


class NodeList:
    """A view of the nodes of a graph: iterable in both directions while the graph changes, with a length.

    Iteration contract: a node inserted behind the current one is visited; one inserted before it is not; when
    the current node is erased or moved, iteration goes on at the place where it stood.
    """

    __slots__ = ("_direction", "_ring")

    def __init__(self, ring: Ring, direction: str = "_next") -> None:
        self._ring = ring
        self._direction = direction

    def __len__(self) -> int:
        return self._ring.length

    def __iter__(self) -> Iterator[Node]:
        return self._ring.iterate(forward=self._direction == "_next")

    def reversed(self) -> NodeList:
        """Return the same nodes, last one first."""
        return NodeList(self._ring, "_prev" if self._direction == "_next" else "_next")

    def __reversed__(self) -> Iterator[Node]:
        return iter(self.reversed())

    def listed(self) -> list[Node]:
        """Return the nodes as they stand now, in the order of the graph."""
        # At once, as below: code is generated of every graph.
        found: list[Node] = []
        sentinel = self._ring.sentinel
        node = sentinel._next
        while node is not sentinel:
            found.append(node)
            node = node._next
        return found

    def without_users(self) -> list[Node]:
        """Return the nodes that no other node uses, in the order of the graph."""
        # At once, and not by an iteration that heeds changes of the graph: every trace asks about all of its nodes.
        found: list[Node] = []
        sentinel = self._ring.sentinel
        node = sentinel._next
        while node is not sentinel:
            if not node._users:
                found.append(node)
            node = node._next
        return found

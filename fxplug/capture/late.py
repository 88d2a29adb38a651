"""Attributes of traced values that are read, and not used yet, when something is about to change what they say.

``size = x.shape`` makes no node: most attributes are methods that are called, or are used at once. One that the program
keeps is recorded in front of the first node that may write to a tensor, or where a region begins or ends that the
attribute hangs on.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from fxplug.ir import effects

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.ir import Graph, Node

__all__ = ["LateRead", "ReadKeeper"]

_COMPUTED = frozenset({"H", "T", "data", "imag", "mH", "mT", "real"})
"""Attributes that torch computes when they are read, with or without gradients as the region has it."""


class LateRead(Protocol):
    """An attribute of a traced value, as far as it needs to be known here."""

    attr: str
    """Its name."""

    @property
    def node(self) -> Node:
        """The node that reads it, made when it is first asked for."""
        ...


class ReadKeeper:
    """A tracer that records in time what attributes a program has read.

    Whether there is one that waits is asked where a node was made, and only while there may be: a trace that uses every
    attribute at once pays for noting it, and for looking once.
    """

    graph: Graph
    root: Any
    _reads: list[weakref.ref[LateRead]]
    _hearing: Callable[[str, Node], None] | None
    """What hears of the nodes that are made, while there are such attributes."""

    def note_read(self, read: LateRead) -> None:
        """Hear that an attribute was read that may say something else later on."""
        reads = self._reads
        if not reads:
            self._hearing = self._hear_node
            self.graph.observers.append(self._hearing)
        reads.append(weakref.ref(read))

    def use_read(self, read: LateRead) -> None:
        """Hear that it is about to be recorded, as most are before anything else is, or called."""
        reads = self._reads
        if len(reads) == 1 and reads[0]() is read:
            observers = self.graph.observers
            if observers[-1] is self._hearing:  # As `forget_reads` does, without the call.
                reads.clear()
                observers.pop()
                self._hearing = None
            else:
                self.forget_reads()
        elif reads:
            self._reads = [reference for reference in reads if reference() is not read]

    def forget_reads(self) -> None:
        """Let go of the attributes that were read, and of the nodes that are made."""
        self._reads = []
        observers, hearing = self.graph.observers, self._hearing
        if observers and observers[-1] is hearing:
            observers.pop()
        elif hearing is not None:  # Whoever tells of a node goes through the list that was there.
            self.graph.observers = [observer for observer in observers if observer is not hearing]
        self._hearing = None

    def settle_computed(self) -> None:
        """Record the attributes that would be read differently in another region."""
        for read in self._waiting():
            if read.attr in _COMPUTED:
                _ = read.node

    def _waiting(self) -> list[LateRead]:
        """Return the attributes that the program still has, and that no node stands for."""
        if not self._reads:
            return []
        found = [read for read in [reference() for reference in self._reads] if read is not None]
        waiting = [read for read in found if vars(read)["_node"] is None]
        if waiting:
            self._reads = [weakref.ref(read) for read in waiting]
        else:
            self.forget_reads()
        return waiting

    def _hear_node(self, event: str, node: Node) -> None:
        """Record what was read in front of a node that was just made, if that may write to what is read."""
        if event != "created":
            return
        waiting = self._waiting()
        if not waiting or not _may_write(node, self.root):
            return
        self.forget_reads()
        with self.graph.inserting_before(node):
            for read in waiting:
                _ = read.node


def _may_write(node: Node, root: Any) -> bool:
    if not node.op.startswith("call_"):
        return False
    effect = effects.effect_of(node, root)
    return bool(effect.writes) or effect.outside or effect.unknown

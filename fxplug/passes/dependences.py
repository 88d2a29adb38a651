"""Which nodes must stay behind which others, besides those that use their values."""

# What is asked of every node reads its slots, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from fxplug.execute.aliases import may_return_argument, memory_of
from fxplug.ir import Effect, Node, effects, iterate_leaves
from fxplug.rewrite.calls import value_at
from fxplug.semantics.checks import CHECKS
from fxplug.semantics.internals import assert_function

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from fxplug.execute import GraphModule

__all__ = ["MemoryClasses", "effect_order", "is_call", "writers_of", "written_by"]

_ONLY_LOOK = frozenset({print, assert_function, *CHECKS})
"""Functions that act outside of the program and do nothing to the values in it."""
_INPUTS = "inputs"
"""Stands for the memory of everything that a caller hands in: he may hand in the same tensor twice."""
_NO_MEMORY: frozenset[Hashable] = frozenset()


def is_call(node: Node) -> bool:
    """Return whether a node computes something, and is no input, output or read of an attribute."""
    return node._op.startswith("call_")


def effect_order(module: GraphModule) -> dict[Node, list[Node]]:
    """Return, for calls, the earlier calls behind which they must stay although they do not use their values.

    An order of the calls in which each stands behind those that it uses and behind these does everything that the
    program does in the order in which the program does it: what is written is read, and written again, in the same
    order; random numbers are drawn and things outside are touched in the same order; and nothing is moved past a call
    of which nobody knows what it does. Of longer chains only the links are named, so that there are no more of them
    than nodes and uses.

    Args:
        module: Not changed.
    """
    calls = [(node, effects.effect_of(node, module)) for node in module.graph.nodes if is_call(node)]
    noisy = [(node, effect) for node, effect in calls if not effect.is_pure]
    if not noisy:
        return {}
    writers = {node: effect for node, effect in noisy if effect.writes and not _is_barrier(node, effect)}
    memory = MemoryClasses(module, writers) if writers else None
    walk = _Walk(memory, checks=any(effect.outside for _, effect in noisy))
    return {node: found for node, effect in calls if (found := walk.visit(node, effect))}


def writers_of(module: GraphModule) -> dict[Node, Effect]:
    """Return the calls that may change values in place, with their effects.

    Args:
        module: Not changed.
    """
    calls = ((node, effects.effect_of(node, module)) for node in module.graph.nodes if is_call(node))
    return {node: effect for node, effect in calls if effect.writes or effect.unknown}


def _is_barrier(node: Node, effect: Effect) -> bool:
    """Return whether nothing may be moved past a call."""
    if effect.unknown or effect.reads_state:
        return True
    return effect.outside and not (node._op == "call_function" and node._target in _ONLY_LOOK)


class _Walk:
    """Visits calls in the order of the program, and remembers behind what the next ones must stay."""

    def __init__(self, memory: MemoryClasses | None, *, checks: bool) -> None:
        self._memory = memory
        self._checks = checks  # A program may be run again where a check fails before anything was written.
        self._barrier: Node | None = None
        self._since: list[Node] = []
        self._last: Node | None = None
        self._checked: list[Node] = []  # Since `_last`.
        self._writer: dict[Hashable, Node] = {}
        self._readers: dict[Hashable, list[Node]] = {}

    def visit(self, node: Node, effect: Effect) -> list[Node]:
        """Return behind which nodes a call must stay."""
        if not effect.is_pure and _is_barrier(node, effect):
            found = self._since or ([] if self._barrier is None else [self._barrier])
            self._barrier, self._since, self._last, self._checked = node, [], None, []
            self._writer.clear()
            self._readers.clear()
            return found
        self._since.append(node)
        found = [] if self._barrier is None else [self._barrier]
        if effect.random or effect.outside or (self._checks and effect.writes):
            found += self._order_action(node)
        if self._memory is not None:
            found += self._order_accesses(node, self._memory)
        return list(dict.fromkeys(found)) if len(found) > 1 else found

    def _order_action(self, node: Node) -> list[Node]:
        """Return behind which nodes a call must stay that acts outside, draws, writes or checks.

        Which of two checks comes first makes no difference: nothing happens between them.
        """
        last = [] if self._last is None else [self._last]
        if node._op == "call_function" and node._target in CHECKS:
            self._checked.append(node)
            return last
        found = self._checked or last
        self._last, self._checked = node, []
        return found

    def _order_accesses(self, node: Node, memory: MemoryClasses) -> Iterator[Node]:
        written = memory.written_by(node)
        for part in memory.used_by(node):
            writer = self._writer.get(part)
            if writer is not None:
                yield writer
            if part not in written:
                self._readers.setdefault(part, []).append(node)
        for part in written:
            yield from self._readers.pop(part, ())
            self._writer[part] = node


def written_by(node: Node, effect: Effect) -> Iterator[Node]:
    """Yield the arguments of a call that it may change in place."""
    if effect.unknown:
        yield from node.all_input_nodes
        return
    for key in effect.writes:
        if key == "state":
            continue
        if isinstance(key, str):
            value = node._kwargs.get(key)
        elif key < len(node._args):
            value = node._args[key]
        else:  # Given by name; which one it is, the effect does not say.
            yield from node.all_input_nodes
            continue
        yield from (leaf for leaf in iterate_leaves((value,)) if isinstance(leaf, Node))


class MemoryClasses:
    """Values that may share memory, in classes; only those that something writes count.

    Args:
        module: Not changed.
        writers: The calls that write, with their effects.
    """

    def __init__(self, module: GraphModule, writers: dict[Node, Effect]) -> None:
        self._module = module
        self._parents: dict[Hashable, Hashable] = {}
        self._state: dict[str, frozenset[Hashable]] = {}
        self._writers = writers
        for node in module.graph.nodes:
            for other in self._shared_with(node):
                self._join(node, other)
        self._own = {node: frozenset(self._targets(node, effect)) for node, effect in writers.items()}
        self._all: frozenset[Hashable] = frozenset().union(*self._own.values())
        memory = {self.class_of(part) for parts in self._state.values() for part in parts}
        self._writes_state = not memory.isdisjoint(self._all)

    def _shared_with(self, node: Node) -> Iterable[Hashable]:
        """Return what a value may share memory with, as the keys of classes."""
        if node._op == "placeholder":
            return (_INPUTS,)
        if node._op == "get_attr":
            return self._memory_at(node._target)
        if node._op == "output" or not may_return_argument(node, self._module):
            return ()
        if node._op == "call_module":
            return (*node.all_input_nodes, *self._memory_at(node._target))
        return node.all_input_nodes

    def _memory_at(self, path: str) -> frozenset[Hashable]:
        known = self._state.get(path)
        if known is None:
            value = value_at(self._module, path, self._module.graph.lifted)
            known = memory_of(value) - {id(value)} if value is not None else _NO_MEMORY
            if not known and not isinstance(value, nn.Module):
                known = frozenset({path})
            self._state[path] = known
        return known

    def _targets(self, node: Node, effect: Effect) -> Iterator[Hashable]:
        for value in written_by(node, effect):
            yield self.class_of(value)
        if "state" in effect.writes:
            yield from map(self.class_of, self._memory_at(node._target))

    def _join(self, first: Hashable, second: Hashable) -> None:
        one, other = self.class_of(first), self.class_of(second)
        if one != other:
            self._parents[one] = other

    def class_of(self, key: Hashable) -> Hashable:
        """Return what stands for the class of a node or of a piece of memory."""
        parents = self._parents
        root = key
        while (parent := parents.get(root)) is not None:
            root = parent
        while (parent := parents.get(key)) is not None and parent != root:
            parents[key] = root
            key = parent
        return root

    def written_by(self, node: Node) -> frozenset[Hashable]:
        """Return the classes that a call writes."""
        return self._own.get(node, _NO_MEMORY)

    def used_by(self, node: Node) -> set[Hashable]:
        """Return the classes that a call reads or writes and that something writes."""
        found = {self.class_of(used) for used in node._input_tuple()}
        if self._writes_state and node._op == "call_module":
            found.update(map(self.class_of, self._memory_at(node._target)))
        return found & self._all | self.written_by(node)

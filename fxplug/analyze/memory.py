"""Memory that a program takes while it runs: which tensors are alive when, and how many bytes that makes."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fxplug.analyze.isolation import tensors_in, tensors_of
from fxplug.analyze.shapes import ShapeProp
from fxplug.analyze.workspaces import workspace_of
from fxplug.execute import Interpreter
from fxplug.ir import common_depth
from fxplug.semantics.internals import (
    LightDispatchMode,
    compiles_functions,
    flatten_tree,
    memory_of,
    put_on,
    storage_of,
    take_off,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from fxplug.ir import Node, RegionEntry

__all__ = [
    "MemoryProp",
    "MemoryUse",
    "RegionInterpreter",
    "StorageTracker",
    "TracksMemory",
    "bytes_of_state",
    "bytes_of_tensor",
    "identity_of",
    "plain_storages",
]


def plain_storages(values: Any) -> Iterator[tuple[Any, torch.UntypedStorage]]:
    """Yield every memory that tensors in a nested value lie in, with what identifies it; fake tensors included."""
    for value in flatten_tree(values)[0]:
        if isinstance(value, torch.Tensor):
            for plain in memory_of(value) or [value]:
                key = storage_of(plain)
                if key is not None:
                    yield key, plain.untyped_storage()


class StorageTracker(LightDispatchMode):
    """Knows, while it is entered, how many bytes the tensors take that operators have made since and that still live.

    It hears of the operators that a call runs into, and of the end of the memory that they return: views, and what is
    written in place, take none of their own. What an operator takes and gives back while it runs is what
    `fxplug.analyze.workspaces` knows of it.

    Args:
        values: Nested values whose tensors are there already.
        estimates: Whether what operators take and give back is counted.
    """

    supports_higher_order_operators = True

    def __init__(self, values: Any, *, estimates: bool = True) -> None:
        super().__init__()
        self._estimates = estimates
        self.live = 0
        """Bytes that are taken now."""
        self.peak = 0
        """The most since it was last set."""
        self._sizes: dict[Any, int | None] = {}
        """What identifies a memory -> its bytes; None: not made while the tracker heard."""
        self._watched: dict[Any, weakref.ref[torch.UntypedStorage]] = {}
        """What identifies a memory -> what tells of its end; nothing outlives the tracker because of it."""
        self._note_foreign(values)

    def on_operator(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and count what it returns."""
        self._note_foreign((args, kwargs))
        before = self.live
        result = func(*args, **kwargs)
        self.note_result(result)
        taken = workspace_of(func, args, kwargs, result) if self._estimates else 0
        self.peak = max(self.peak, before + taken)
        return result

    def note_result(self, value: Any) -> None:
        """Count the memory of the tensors in a nested value, where it is not known already."""
        for key, storage in plain_storages(value):
            self._note_own(key, storage)
        self.peak = max(self.peak, self.live)

    def __exit__(self, *error: object) -> None:
        """Hear no more, of operators and of the end of memory."""
        self._watched.clear()
        super().__exit__(*error)

    def _note_foreign(self, values: Any) -> None:
        for key, storage in plain_storages(values):
            if key not in self._sizes:
                self._sizes[key] = None
                self._watch(key, storage)

    def _note_own(self, key: Any, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        if key not in self._sizes:
            self._watch(key, storage)
        elif self._sizes[key] is None:
            return
        # An operator may make a memory larger that is there already.
        self.live += size - (self._sizes.get(key) or 0)
        self._sizes[key] = size

    def _watch(self, key: Any, storage: torch.UntypedStorage) -> None:
        self._watched[key] = weakref.ref(storage, lambda _: self._end(key))

    def _end(self, key: Any) -> None:
        self._watched.pop(key, None)
        self.live -= self._sizes.pop(key, None) or 0


@dataclass(frozen=True)
class MemoryUse:
    """What tensors take around the run of one node, inputs and state of the module left out."""

    before: int
    """Bytes that are taken when it starts."""
    allocated: int
    """Bytes that its run has added and that are there when it has ended: its result, if that has memory of its own."""
    peak: int
    """The most at any time while it runs."""


class RegionInterpreter(Interpreter):
    """Enters regions as generated code does: once for the neighbouring nodes that lie in them."""

    enters_regions = False

    def _run_nodes(self, inputs: Iterator[Any], env: dict[Node, Any]) -> Any:
        self._entered: list[tuple[RegionEntry, AbstractContextManager[Any]]] = []
        with ExitStack() as stack:
            stack.push(self._leave_all)
            return super()._run_nodes(inputs, env)

    def move_to(self, node: Node) -> None:
        """Leave and enter contexts, so that `node` can run."""
        region = node.region
        if not region and not self._entered:
            return
        depth = common_depth(tuple(entry for entry, _ in self._entered), region)
        self._leave(depth)
        for entry in region[depth:]:
            context = entry.context(*entry.arguments)
            context.__enter__()
            self._entered.append((entry, context))

    def _leave_all(self, *error: Any) -> None:
        self._leave(0, *error)

    def _leave(self, depth: int, *error: Any) -> None:
        while len(self._entered) > depth:
            self._entered.pop()[1].__exit__(*(error or (None, None, None)))

    def run_node(self, n: Node) -> Any:
        """Run one node inside the contexts of its region."""
        self.move_to(n)
        return super().run_node(n)


class TracksMemory(RegionInterpreter):
    """Notes what memory every node takes; values are dropped after their last use, as in generated code."""

    memory: dict[Node, MemoryUse]
    """What was found, for the nodes that have run."""
    estimates = True
    """Whether what operators take and give back counts; see `StorageTracker`."""

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the graph and note what memory its nodes take."""
        self.memory = {}
        state = [tensor for _, tensor in tensors_of(self.module)]
        self._tracker = StorageTracker(
            [*self.module.parameters(), *state, *tensors_in(args)], estimates=self.estimates
        )
        with self._tracker:
            return super().run(*args, **options)

    def run_node(self, n: Node) -> Any:
        """Run one node and note what memory it takes."""
        tracker = self._tracker
        before = tracker.peak = tracker.live
        if n.op == "call_function" and compiles_functions(n.target):
            value = self._run_unheard(n)
        else:
            value = super().run_node(n)
        self.memory[n] = MemoryUse(before, max(tracker.live - before, 0), tracker.peak)
        return value

    def _run_unheard(self, node: Node) -> Any:
        """Run a call that compiles what it is given, which a mode would stand in the way of; count its result."""
        is_off = take_off(self._tracker)
        try:
            value = super().run_node(node)
        finally:
            if is_off:
                put_on(self._tracker)
        self._tracker.note_result(value)
        return value


class MemoryProp(TracksMemory, ShapeProp):
    """Notes the metadata of every value, and in ``meta["memory"]`` what memory each node takes."""

    def run_node(self, n: Node) -> Any:
        """Run one node and note what is known of it."""
        value = super().run_node(n)
        use = self.memory[n]
        if n.target in _ONE_KERNEL and isinstance(value, torch.Tensor) and value.is_meta:
            use = MemoryUse(use.before, use.allocated, use.before + use.allocated)
        n.meta["memory"] = use
        return value


_ONE_KERNEL: frozenset[Any] = frozenset({torch.nn.functional.scaled_dot_product_attention})
"""What torch breaks into many calls on the meta device, and devices compute at once."""


def bytes_of_state(tensors: Iterable[torch.Tensor]) -> int:
    """Return how many bytes of memory tensors take together; where they share some, it counts once."""
    extents: dict[Any, set[tuple[int, int]]] = {}
    for tensor in tensors:
        key = storage_of(tensor)
        if key is None:
            extents[id(tensor)] = {(0, bytes_of_tensor(tensor))}
        elif tensor.numel():
            last = sum(
                (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            start, size = int(tensor.storage_offset()), tensor.dtype.itemsize
            extents.setdefault(key, set()).add((start * size, (start + int(last) + 1) * size))
    return sum(map(_length, extents.values()))


def _length(extents: Iterable[tuple[int, int]]) -> int:
    """Return how much several extents cover together."""
    covered = end = 0
    for start, stop in sorted(extents):
        covered += max(stop - max(start, end), 0)
        end = max(end, stop)
    return covered


def identity_of(tensor: torch.Tensor) -> Any:
    """Return what two tensors have in common that lie in the same place of the same memory."""
    key = storage_of(tensor)
    return id(tensor) if key is None else (key, tensor.storage_offset(), bytes_of_tensor(tensor))


def bytes_of_tensor(tensor: torch.Tensor) -> int:
    """Return how many bytes the elements of a tensor take."""
    return tensor.numel() * tensor.dtype.itemsize

"""What a pass changed, in numbers: nodes, and bytes of state."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fxplug.execute import GraphModule
from fxplug.semantics.internals import buffers_of, memory_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from torch import nn

    from fxplug.ir import Graph, Node

__all__ = ["NO_CHANGES", "ChangeCounter", "NodeChanges", "graphs_below", "state_bytes"]


@dataclass(frozen=True)
class NodeChanges:
    """How many nodes a pass changed, in all graphs of a module together."""

    made: int = 0
    """New ones that are there."""
    erased: int = 0
    """Former ones that are not there any more."""
    edited: int = 0
    """Former ones that are there still, with other arguments, another target, name or place."""

    @property
    def total(self) -> int:
        """All of them together."""
        return self.made + self.erased + self.edited


NO_CHANGES = NodeChanges()


class ChangeCounter:
    """Counts the nodes that are changed while it listens.

    A graph that is put in the place of another one counts as all of its nodes anew.

    Args:
        graphs: Those that are listened to.
    """

    def __init__(self, graphs: Sequence[Graph]) -> None:
        self._graphs = tuple(graphs)
        self._sizes = [len(graph.nodes) for graph in self._graphs]
        self._nodes: dict[str, set[Node]] = {
            event: set() for event in ("created", "erased", "changed", "moved")
        }

    @contextmanager
    def listening(self) -> Generator[None]:
        """Hear of edits while the context lasts."""
        hear = self._hear
        for graph in self._graphs:
            graph.observers.append(hear)
        try:
            yield
        finally:
            for graph in self._graphs:
                graph.observers[:] = [observer for observer in graph.observers if observer != hear]

    def _hear(self, event: str, node: Node) -> None:
        self._nodes[event].add(node)

    def changes(self, graphs: Iterable[Graph]) -> NodeChanges:
        """Return what was changed.

        Args:
            graphs: Those that the module has now.
        """
        now = {id(graph): graph for graph in graphs}
        gone = [
            (graph, size)
            for graph, size in zip(self._graphs, self._sizes, strict=True)
            if id(graph) not in now
        ]
        known = {id(graph) for graph in self._graphs}
        left_out = {id(graph) for graph, _ in gone}
        made, erased, edited = (
            {node for node in self._nodes[event] if id(node.graph) not in left_out}
            for event in ("created", "erased", "changed")
        )
        moved = {node for node in self._nodes["moved"] if id(node.graph) not in left_out}
        return NodeChanges(
            len(made - erased) + sum(len(graph.nodes) for key, graph in now.items() if key not in known),
            len(erased - made) + sum(size for _, size in gone),
            len((edited | moved) - made - erased),
        )


def graphs_below(module: nn.Module) -> list[Graph]:
    """Return the graphs of a module and of all modules below it."""
    return [part.graph for part in module.modules() if isinstance(part, GraphModule)]


def state_bytes(module: nn.Module) -> int:
    """Return how many bytes of memory the parameters and buffers of a module keep, each memory counted once.

    Args:
        module: Tensors that have no memory, such as those on the device ``"meta"``, count nothing.
    """
    sizes: dict[int, int] = {}
    for part in module.modules():
        for tensor in (*parameters_of(part).values(), *buffers_of(part).values()):
            for plain in () if tensor is None else memory_of(tensor):
                storage = plain.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())

"""Putting partitions of a program into submodules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.errors import PartitionError
from fxplug.ir import Graph
from fxplug.passes import fold_submodule, requirements

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fxplug.execute import GraphModule
    from fxplug.ir import Node

__all__ = ["fuse_by_partitions", "topo_sort", "validate_partition"]


def topo_sort(nodes: Iterable[Node]) -> list[Node]:
    """Return nodes of one graph in its order, in which each stands behind those that it uses."""
    return sorted(nodes)


def validate_partition(partition: Sequence[Node]) -> bool:
    """Return whether calls of a graph module can run as one: no value and no effect leads out of them and back."""
    inside = set(partition)
    graph = partition[0].graph if partition else None
    module = graph.owning_module if isinstance(graph, Graph) else None
    if module is None:
        raise PartitionError(
            "Cannot check a partition: it has no nodes, or their graph belongs to no graph module."
        )
    later: set[Node] = set()
    for node, before in requirements(module).items():
        is_behind = not later.isdisjoint(before)
        if node in inside and is_behind:
            return False
        if node not in inside and (is_behind or not inside.isdisjoint(before)):
            later.add(node)
    return True


def fuse_by_partitions(
    gm: GraphModule, partitions: Iterable[Iterable[Node]], prefix: str = "fused_"
) -> GraphModule:
    """Put each partition of a program into a submodule, ``fused_0`` and so on.

    Args:
        gm: Changed in place, and returned.
        partitions: The nodes of each.
        prefix: Of the names of the submodules.

    Raises:
        PartitionError: A partition cannot run as one; those before it are in submodules by then.
    """
    for number, partition in enumerate(partitions):
        fold_submodule(gm, partition, f"{prefix}{number}")
    return gm

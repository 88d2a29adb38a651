"""Calls that an engine has to see together: engines copy, and what is written in place is seen through every view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.execute.aliases import may_return_argument
from fxplug.passes.dependences import MemoryClasses, is_call, writers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator

    from fxplug.execute import GraphModule
    from fxplug.ir import Effect, Node

__all__ = ["sharing_sets"]


def sharing_sets(
    module: GraphModule,
    is_supported: Callable[[Node], bool],
    containers: Collection[Node] = (),
    computing: Collection[Node] = (),
) -> Iterator[list[Node]]:
    """Yield sets of calls that come into one partition or into none, as one of them writes what the others see.

    A view that an engine makes is a copy, so views of memory that something writes are made where the writing is done.
    The call that made the memory joins them where all of them can run on an engine; otherwise, what it returns is a
    tensor like any other.

    Args:
        module: Not changed.
        is_supported: Whether a backend can run a call.
        containers: Calls that put values into containers: they hold what an engine returns as it is.
        computing: Calls that are known to write nothing, though their effects are not.
    """
    writers = {node: effect for node, effect in writers_of(module).items() if node not in computing}
    if not writers:
        return
    written, bases = _by_memory(module, writers, containers)
    for part, nodes in written.items():
        if all(map(is_supported, nodes)):
            nodes.update(dict.fromkeys(bases.get(part, ())))
        if len(nodes) > 1:
            yield list(nodes)


def _by_memory(
    module: GraphModule, writers: dict[Node, Effect], containers: Collection[Node]
) -> tuple[dict[Hashable, dict[Node, None]], dict[Hashable, list[Node]]]:
    """Return, for memory that is written, the calls that write it or make views of it, and those that made it."""
    memory = MemoryClasses(module, writers)
    written: dict[Hashable, dict[Node, None]] = {}
    for node in writers:
        for part in memory.written_by(node):
            written.setdefault(part, {})[node] = None
    bases: dict[Hashable, list[Node]] = {}
    for node in module.graph.nodes:
        part = memory.class_of(node)
        if part not in written or not is_call(node) or node in containers:
            continue
        if may_return_argument(node, module):
            written[part][node] = None
        elif node not in written[part]:
            bases.setdefault(part, []).append(node)
    return written, bases

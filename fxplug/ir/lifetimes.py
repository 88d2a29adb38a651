"""How long values are needed."""

# Asked of every node whenever code is generated: goes to the parts of a node directly.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.ir.node import Node

__all__ = ["last_uses"]

_NEVER_FREED = frozenset({"placeholder", "output"})


def last_uses(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """Return, for each node, the nodes whose values are not needed once it has run.

    Args:
        nodes: In the order in which they run.

    Returns:
        Only nodes behind which something ends; a value that nobody uses ends with its own node, inputs excepted.
    """
    needed: set[Node] = set()
    """What is used behind the node at hand."""
    freed: dict[Node, list[Node]] = {}
    for node in reversed([*nodes]):
        inputs = node._inputs
        if node._users and not isinstance(inputs, tuple):  # Most nodes of a network.
            if inputs not in needed:
                needed.add(inputs)
                freed[node] = [inputs]
            continue
        ending = [used for used in (inputs if isinstance(inputs, tuple) else (inputs,)) if used not in needed]
        if not node._users and node._op not in _NEVER_FREED:
            ending.append(node)
        if ending:
            freed[node] = ending
            needed.update(ending)
    return freed

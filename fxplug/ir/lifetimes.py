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
    last: dict[Node, Node] = {}
    for node in nodes:
        inputs = node._inputs
        for used in inputs if isinstance(inputs, tuple) else (inputs,):
            last.pop(used, None)  # The dict's order becomes the order of the last uses.
            last[used] = node
        if not node.users and node._op not in _NEVER_FREED:
            last[node] = node
    freed: dict[Node, list[Node]] = {}
    for used, node in last.items():
        if node in freed:
            freed[node].append(used)
        else:
            freed[node] = [used]
    return freed

"""Buffers that a program assigns: what it has read of one before must not change when it is updated in the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from fxplug.ir import Node

__all__ = ["is_kept_for_gradients"]

_KEEPING_NOTHING = frozenset(
    ["add", "eq", "ge", "gt", "iadd", "isub", "le", "lt", "ne", "neg", "rsub", "sub"]
)
"""Names of calls that keep none of what they are given for the computation of gradients."""
_KEEPING_FACTORS = frozenset(["div", "imul", "itruediv", "mul", "truediv"])
"""Those that keep what is multiplied with something that hangs on the inputs."""


def is_kept_for_gradients(read: Node, results: Collection[Node]) -> bool:
    """Return whether a call that a result hangs on may keep the value of a node until gradients are computed.

    Args:
        read: The node.
        results: What the program returns.
    """
    seen, waiting = {read}, [read]
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if user in seen:
                continue
            seen.add(user)
            waiting.append(user)
    if seen.isdisjoint(results):
        return False
    return not all(map(_keeps_nothing, read.users))


def _keeps_nothing(user: Node) -> bool:
    target: Any = user.target
    name = (target if isinstance(target, str) else getattr(target, "__name__", "")).strip("_")
    return name in _KEEPING_NOTHING or (name in _KEEPING_FACTORS and len(user.all_input_nodes) == 1)

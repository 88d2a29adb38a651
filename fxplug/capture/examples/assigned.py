"""What a program assigns: what it has read of a buffer before must not change when that is updated in the end.

A list of what an attribute holds already, ``self.rows = [row.to(x) for row in self.rows]``, is not assigned at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fxplug.capture.containers import copy_of, is_unchanged
from fxplug.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Collection

    from fxplug.ir import Node

__all__ = ["SharedContainers", "is_kept_for_gradients", "parts_assigned"]

_KEEPING_NOTHING = frozenset(
    ["add", "eq", "ge", "gt", "iadd", "isub", "le", "lt", "ne", "neg", "rsub", "sub"]
)
"""Names of calls that keep none of what they are given for the computation of gradients."""
_KEEPING_FACTORS = frozenset(["div", "imul", "itruediv", "mul", "truediv"])
"""Those that keep what is multiplied with something that hangs on the inputs."""


class SharedContainers:
    """Remembers the lists and dicts that stand for others which outlive the call: as long as they hold the same."""

    def __init__(self) -> None:
        self._held: list[tuple[str, Any, list[Any]]] = []

    def add(self, name: str, value: Any) -> None:
        """Take note of a value, if it is a list or dict; `name` is how messages call it."""
        if isinstance(value, (list, dict)):
            self._held.append((name, value, copy_of(value)))

    def refuse_changed(self) -> None:
        """Refuse what the program has done to one of them since.

        Raises:
            TraceError: It holds something else.
        """
        for name, value, before in self._held:
            if not is_unchanged(value, before):
                raise TraceError(
                    f"Cannot trace: {name} is a {type(value).__name__}, and is changed afterwards, so that the next "
                    "call would find another one. Change a copy of it, or pass the state as an input and return the "
                    "new one.",
                    code="FXP-T055",
                )


def parts_assigned(value: Any, held: Any) -> list[tuple[Any, Any]]:
    """Return pairs of what is assigned and what is held instead; those of their elements for lists of one length."""
    if type(value) not in {list, tuple} or type(held) is not type(value) or not 0 < len(value) == len(held):
        return [(value, held)]
    return list(zip(value, held, strict=True))


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

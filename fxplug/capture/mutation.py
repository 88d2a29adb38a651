"""Refusing calls that change what they are given, for those who want a graph without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError
from fxplug.ir import effects

if TYPE_CHECKING:
    from fxplug.ir import Node

__all__ = ["refuse_writes"]


def refuse_writes(node: Node) -> None:
    """Take back a node that was just made if running it changes one of its arguments.

    Calls of modules are not looked at: a batch norm that updates its statistics is no operation on arguments.

    Raises:
        TraceError: It does.
    """
    if node.op not in {"call_function", "call_method"}:
        return
    effect = effects.effect_of(node)
    if not effect.writes:
        return
    written = ", ".join(sorted(str(key) for key in effect.writes))
    text = node.format_node()
    cast("Any", node.graph).erase_node(node)
    raise TraceError(
        f"Cannot record {text}: it changes its argument {written} in place{place_in_program()}, and "
        "check_mutable_operations is set. Use the form that returns a new value, or leave the flag off.",
        code="FXP-T030",
    )

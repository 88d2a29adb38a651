"""Calls whose errors a program catches, and whose results it does not need.

``try: x.view(2, -1)`` with an ``except`` asks whether something can be done. A captured program that does it raises the
error of the call for inputs with which it cannot be done. One without the call, which nobody reads, would go on as if
it could; so a check reads it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from fxplug.ir import effects
from fxplug.ir.handlers import catching_origin
from fxplug.semantics.checks import check_true

if TYPE_CHECKING:
    from torch import nn

    from fxplug.ir import Graph, Node

__all__ = ["is_attempt_with_numbers", "keep_attempts"]


def keep_attempts(graph: Graph, root: nn.Module) -> None:
    """Record for each call that nothing reads, and whose error the program would have caught, that it was made.

    Args:
        graph: Of the whole program.
        root: What its paths refer to.
    """
    unread = [node for node in graph.nodes.without_users() if node.op in _CALLS]
    for node in unread:
        place = catching_origin(next(iter(node.origins), None))
        if place is None or node.target is getattr or effects.effect_of(node, root).must_be_kept:
            continue
        with graph.inserting_after(node):
            made = graph.create_node("call_function", operator.is_not, (node, None))
        source = place.source()
        text = f"{node.name} raising nothing" + (f" at {source} ({source.text!r})" if source else "")
        with graph.inserting_after(made):
            check = graph.create_node("call_function", check_true, (made, text))
        made.origins = check.origins = node.origins


def is_attempt_with_numbers(node: Node) -> bool:
    """Return whether a call computes with numbers what is an error for some, and the program would have caught it."""
    if node.op == "call_method":
        may_fail = node.target in _OF_DIMENSIONS and len(node.all_input_nodes) > 1
    else:
        may_fail = node.op == "call_function" and node.target in _FAILING
    return may_fail and catching_origin(next(iter(node.origins), None)) is not None


_FAILING = frozenset(
    {
        *(operator.floordiv, operator.lshift, operator.mod, operator.pow, operator.rshift, operator.truediv),
        *(divmod, pow),
    }
)
_OF_DIMENSIONS = frozenset({"size", "stride"})
_CALLS = frozenset({"call_function", "call_method", "call_module"})

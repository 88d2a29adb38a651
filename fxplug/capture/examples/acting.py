"""Checks behind a write to an input: where they fail, the program cannot be run instead, since its input has changed.

Whether something has the memory of an input is seen on the examples. Some operations return what they are given where
that is as they make it, and a copy otherwise, so it may be so on others.
"""

# Each node of a network may be looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from fxplug.ir import Node, effects
from fxplug.semantics.checks import check_equal, check_length, check_true

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["mark_checks_behind", "may_write_to_input"]

_ARGUMENTS = {check_equal: 3, check_length: 3, check_true: 2}
"""Check -> how many arguments it has without the one that says that the program cannot be run again."""
_NAMES = (
    "T alpha_dropout bfloat16 bool broadcast_to chunk contiguous cpu cuda detach double dropout expand expand_as "
    "feature_dropout flatten float half int long mT movedim narrow permute ravel real reshape reshape_as resolve_conj "
    "select short split squeeze swapaxes t tensor_split to transpose type type_as unbind unflatten unsqueeze view "
    "view_as"
)
_PASSING = frozenset(_NAMES.split())
"""Functions, methods and attributes that may return what they are given, or a view of it."""
_MOST = 50
"""What is longer in being computed is taken to be an input."""


def may_write_to_input(node: Node, root: Any) -> bool:
    """Return whether a node writes to something that an input may be on other examples.

    Args:
        node: Of a program.
        root: What its paths refer to.
    """
    written = effects.effect_of(node, root).writes
    places = [node._args[place] for place in written if type(place) is int and place < len(node._args)]
    return any(isinstance(value, Node) and _may_be_input(value) for value in places)


def _may_be_input(node: Node) -> bool:
    for _ in range(_MOST):
        if node._op == "placeholder":
            return True
        target: Any = node._target
        name = target if isinstance(target, str) else str(getattr(target, "__name__", ""))
        if target is getattr:
            name = str(node._args[1])
        passes = name in _PASSING or target is operator.getitem or name.endswith("_")
        first = node._args[0] if node._args else None
        if node._op not in {"call_function", "call_method"} or not passes or not isinstance(first, Node):
            return False
        node = first
    return True


def _is_open(node: Node) -> bool:
    """Return whether a node is a check of which it is not said whether the program can be run instead."""
    return node._op == "call_function" and len(node._args) == _ARGUMENTS.get(node._target)


def mark_checks_behind(
    nodes: Iterable[Node], first: Node | None, root: Any, writing: Collection[Node] | None = None
) -> None:
    """Say of checks that the program cannot be run instead where they fail: those behind a write to an input.

    Args:
        nodes: Of the program, in order.
        first: The first one that was seen to write to an input; None where none was.
        root: What paths refer to.
        writing: Those that write, if they are known: to their first argument alone.
    """
    nodes = list(nodes)
    if not any(_is_open(node) for node in nodes):
        return  # Most programs ask nothing of what they have computed.
    has_acted = False
    for node in nodes:
        if node._op == "call_function" and node._target in _ARGUMENTS:
            if has_acted and _is_open(node):
                node.args = (*node._args, False)
        elif not has_acted and node._op not in {"get_attr", "output", "placeholder"}:
            if writing is None:
                has_acted = node is first or may_write_to_input(node, root)
            else:
                has_acted = node is first or (node in writing and _may_be_input(node.all_input_nodes[0]))

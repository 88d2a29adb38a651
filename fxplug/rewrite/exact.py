"""Places that spell a pattern as it is spelt itself, found without asking what else would mean the same."""

# What is asked of every candidate is read from the slots of nodes, not from the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fxplug.ir import Node
from fxplug.rewrite.elements import Element

if TYPE_CHECKING:
    from collections.abc import Collection

    from fxplug.rewrite.pattern import Template

__all__ = ["ExactPattern"]

_PLAIN = frozenset({int, bool, str, type(None)})
"""Exact types of constants that are the same when they are equal."""


class _Call(NamedTuple):
    """A call of the pattern, and where the node that may stand for it is found."""

    wanted: Node
    user: int
    """The number of the call that uses it; -1 for the anchor."""
    position: int
    """Which of the user's arguments it is."""
    op: str
    target: Any
    arity: int
    """How many arguments it has."""
    leaves: tuple[tuple[int, Node | None, Any], ...]
    """Its other arguments: position, placeholder or None, constant."""


class ExactPattern:
    """A pattern of functions and methods with plain arguments, made ready for being compared.

    It recognises the places at which each call has the same target and as many arguments, all of them positional. What
    it does not recognise may still be like the pattern.
    """

    def __init__(self, calls: list[_Call]) -> None:
        self._calls = calls

    @classmethod
    def of(cls, template: Template, anchors: Collection[Node]) -> ExactPattern | None:
        """Return a pattern made ready, None where it holds something else than plain calls."""
        if len(anchors) != 1 or any(node.op == "get_attr" for node in template.loose):
            return None
        calls: list[_Call] = []
        (anchor,) = anchors
        waiting: list[tuple[Node, int, int]] = [(anchor, -1, 0)]
        seen: set[Node] = set()
        while waiting:
            wanted, user, position = waiting.pop()
            leaves = _leaves(wanted)
            if leaves is None or wanted in seen:
                return None
            seen.add(wanted)
            calls.append(
                _Call(wanted, user, position, wanted.op, wanted.target, len(wanted.args), tuple(leaves))
            )
            used = [(value, len(calls) - 1, index) for index, value in enumerate(wanted.args)]
            waiting += [
                (value, number, index)
                for value, number, index in reversed(used)
                if isinstance(value, Node) and value.op != "placeholder"
            ]
        return cls(calls)

    def compare(self, node: Node) -> tuple[dict[Node, Any], list[Node]] | None:
        """Return what the nodes of the pattern stand for where the anchor stands for `node`, None where it is not seen.

        Returns:
            Node of the pattern -> node or plain value, and the nodes that stand for calls, the anchor first.
        """
        found: dict[Node, Any] = {}
        nodes: list[Node] = []
        for wanted, user, position, op, target, arity, leaves in self._calls:
            given = node if user < 0 else nodes[user]._args[position]
            if (
                given.__class__ is not Node
                or (given._target is not target and (op == "call_function" or given._target != target))
                or given._op != op
            ):
                return None
            args = given._args
            if len(args) != arity or given._kwargs:
                return None
            found[wanted] = given
            nodes.append(given)
            for index, placeholder, constant in leaves:
                value = args[index]
                if placeholder is None:
                    if value is not constant and (
                        value.__class__ is not constant.__class__ or value != constant
                    ):
                        return None
                elif found.setdefault(placeholder, value) is not value:
                    return None
        return (found, nodes) if len(nodes) < 3 or len(set(nodes)) == len(nodes) else None


def _leaves(wanted: Node) -> list[tuple[int, Node | None, Any]] | None:
    """Return the arguments of a call that are placeholders or constants, None where it is no plain call."""
    if wanted.op not in {"call_function", "call_method"} or isinstance(wanted.target, Element):
        return None
    if wanted.kwargs or wanted.region:
        return None
    leaves: list[tuple[int, Node | None, Any]] = []
    for index, value in enumerate(wanted.args):
        if isinstance(value, Node):
            if value.op == "placeholder":
                leaves.append((index, value, None))
        elif type(value) in _PLAIN:
            leaves.append((index, None, value))
        else:
            return None
    return leaves

"""Answers that are most probably the same as before: the blocks of a network run the same lines, with the same answers.

A guess spares a run up to where a plain program asks (see `fxplug.api.plain_answers`). When the program runs in the
end, each has to turn out to be right, or else the program is traced once more without guesses.
"""

# Each node of a network may be looked at here: its slots are read, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fxplug.ir import Node

__all__ = ["Guess", "Guesses"]


class Guess(NamedTuple):
    """What was answered where the same line has asked."""

    value: Any
    """A number, or whether what was asked is true."""
    numbers: set[Node]
    """The nodes by which what is asked now is a number, read off tensors."""
    tensors: set[Node]
    """What these are read off."""


class Guesses:
    """Remembers answers by the lines that asked, and the modules that these ran for.

    A line that asks a second time for the same module may be in a loop, which would not end if it was always told the
    same.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Node, Any, set[Node] | None, set[str]]] = {}
        """Id of code and offset in it -> what was asked there last, its value and numbers, and the paths of modules."""

    def note(self, node: Node, value: Any, numbers: set[Node] | None = None) -> None:
        """Remember an answer.

        Args:
            node: What was asked.
            value: Its value: a number, or whether it is true.
            numbers: The nodes by which that is a number; None if it hangs on sizes alone.
        """
        place = _place_of(node)
        if place is not None:
            key, path = place
            paths = self._known[key][3] if key in self._known else set[str]()
            paths.add(path)
            self._known[key] = node, value, numbers, paths

    def of(self, node: Node) -> Guess | None:
        """Return what a node that is asked most probably is; None where nobody knows."""
        place = _place_of(node)
        known = None if place is None else self._known.get(place[0])
        if place is None or known is None or place[1] in known[3]:
            return None
        other, value, numbers, paths = known
        found = _numbers_like(node, other, numbers or set())
        if found is None:
            return None
        paths.add(place[1])
        return Guess(value, *found)


def _place_of(node: Node) -> tuple[tuple[int, int], str] | None:
    """Return the line where a node was recorded, and the path of the module that it ran for."""
    origin = next(iter(node.origins), None)
    if origin is None or origin.code is None or origin.module is None:
        return None
    return (id(origin.code), origin.offset), origin.module.path


def _numbers_like(node: Node, other: Node, numbers: set[Node]) -> tuple[set[Node], set[Node]] | None:
    """Return the nodes that are to a node what numbers are to another one, and the tensors that they are read off.

    Returns:
        None if both were not computed alike.
    """
    found: set[Node] = set()
    tensors: set[Node] = set()
    waiting = [(node, other)]
    while waiting:
        mine, theirs = waiting.pop()
        if theirs not in numbers:
            tensors.add(mine)
            continue
        alike = mine._op == theirs._op and mine._target == theirs._target
        given, before = mine.all_input_nodes, theirs.all_input_nodes
        if not alike or len(given) != len(before) or len(mine._args) != len(theirs._args):
            return None
        found.add(mine)
        waiting += zip(given, before, strict=True)
    return found, tensors

"""Which nodes of two graphs belong together, although nobody says that the two come from one program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fxplug.ir import Node

__all__ = ["related_pairs"]

_ENDS = {"placeholder", "output"}


def related_pairs(
    partner: Mapping[Node, Node], share_origin: Callable[[Node, Node], bool]
) -> dict[Node, Node]:
    """Return the pairs that something speaks for, beside their place in the graph.

    `fxplug.analyze.align` takes for granted that one graph was made of the other: inputs are paired by position, the
    outputs always, and then what these use. Of two unrelated programs that would pair the last calls, whatever they
    are. Here a pair stays where both nodes have an origin in common, or where they are called alike, call the same, and
    what they take, or the calls that use them, belongs together, too. Inputs and outputs stay where anything else does.

    Args:
        partner: Node of the second graph -> node of the first.
        share_origin: Whether a node of the first graph and one of the second come from the same place of a program.
    """
    pairs = _Pairs(partner, {new for new, old in partner.items() if share_origin(old, new)})
    return pairs.settle()


class _Pairs:
    def __init__(self, partner: Mapping[Node, Node], sure: set[Node]) -> None:
        self.partner, self.sure = partner, sure
        self.kept = {new for new, old in partner.items() if new in sure or _is_alike(old, new)}

    def settle(self) -> dict[Node, Node]:
        """Drop pairs that nothing speaks for until each of those that are left is held by another."""
        waiting = [new for new in self.partner if new in self.kept - self.sure]
        while waiting:
            new = waiting.pop()
            if new in self.kept and not self._is_held(new):
                self.kept.discard(new)
                around = (*new.all_input_nodes, *new.users)
                waiting += [node for node in around if node in self.kept and node not in self.sure]
        if any(node.op.startswith("call_") for node in self.kept):
            # Programs that have a call in common have their inputs and outputs in common, whatever is beside these.
            self.kept |= {new for new in self.partner if new.op in _ENDS}
        return {new: old for new, old in self.partner.items() if new in self.kept}

    def _is_held(self, new: Node) -> bool:
        old = self.partner[new]
        inputs, users = (
            self._common(new.all_input_nodes, old.all_input_nodes),
            self._common(new.users, old.users),
        )
        if new.op == "output":
            return bool(inputs) or not new.all_input_nodes or not old.all_input_nodes
        if not new.all_input_nodes and not old.all_input_nodes:
            return bool(users) or not new.users or not old.users
        if len(inputs) == len(new.all_input_nodes) == len(old.all_input_nodes):
            return True
        # Nearly every program has an output: that it returns what is called so says little.
        is_used_alike = len(users) == len(new.users) == len(old.users)
        return is_used_alike and any(node.op.startswith("call_") for node in users)

    def _common(self, ours: Iterable[Node], theirs: Iterable[Node]) -> list[Node]:
        """Return the nodes of the second graph whose partners are among nodes of the first one."""
        known = set(theirs)
        return [node for node in ours if node in self.kept and self.partner[node] in known]


def _is_alike(first: Node, second: Node) -> bool:
    """Return whether two nodes are called alike and call the same; an input is what it is by its position."""
    if first.op != second.op or first.op in _ENDS:
        return first.op == second.op
    is_same_target = first.target is second.target or first.target == second.target
    return is_same_target and _unnumbered(first.name) == _unnumbered(second.name)


def _unnumbered(name: str) -> str:
    # A graph that is captured anew counts anew: relu_3 may have been relu_2.
    return re.sub(r"_\d+$", "", name)

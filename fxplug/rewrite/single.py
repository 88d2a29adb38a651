"""Putting one call in the place of a match: what most replacements are, with less ado than for several."""

# What is done for every place reads the slots of nodes, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.ir import PATH_OPCODES, Graph, Node
from fxplug.ir.arguments import EMPTY_DICT
from fxplug.ir.origins import DerivedOrigins

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.ir import MadeBy
    from fxplug.ir.origins import StoredOrigin
    from fxplug.rewrite.matches import InternalMatch
    from fxplug.rewrite.pattern import Template

__all__ = ["FLAT", "SingleCall"]

FLAT = frozenset({Node, int, float, bool, str, type(None)})
"""Exact types of arguments that hold no other one."""


@dataclass(frozen=True)
class SingleCall:
    """A replacement that is one call of plain arguments, and gives the only result."""

    call: Node
    result: Node
    """What the pattern returns."""
    arguments: tuple[tuple[Node | None, Any], ...]
    """The input of the pattern, or None and a constant, for each argument."""

    @classmethod
    def of(cls, pattern: Template, template: Template) -> SingleCall | None:
        """Return a replacement made ready, None where it is something else."""
        calls = template.calls()
        if len(calls) != 1 or len(pattern.results) != 1 or len(pattern.inputs) != len(template.inputs):
            return None
        (call,), (wanted,), (given,) = calls, pattern.results, template.results
        if given is not call or not isinstance(wanted, Node) or wanted in pattern.inputs:
            return None
        if call.op in PATH_OPCODES or call.kwargs or call.region or call._meta is not None:
            return None
        if not FLAT.issuperset(map(type, call.args)):
            return None
        inputs: Mapping[Any, Node] = dict(zip(template.inputs, pattern.inputs, strict=True))
        return cls(call, wanted, tuple((inputs.get(value), value) for value in call.args))

    def put(self, graph: Graph, match: InternalMatch, place: Node) -> Node:
        """Make the call before `place`."""
        found = match.nodes_map
        args = tuple([value if wanted is None else found[wanted] for wanted, value in self.arguments])
        call = self.call
        is_one = len(args) == 1 and args[0].__class__ is Node  # As most often.
        # As `inserting_before` does, but nothing is erased meanwhile.
        former, graph._insertion = graph._insertion, (place, True)
        try:
            if call._type is None and (is_one or FLAT.issuperset(map(type, args))):
                inputs = list(args) if is_one else [value for value in args if value.__class__ is Node]
                node = graph._create_alike(
                    call._op, call._target, args, EMPTY_DICT, inputs, call._origin, call._name
                )
            else:
                node = graph.create_node(call._op, call._target, args, None, call._name, call._type)
                node._origin = call._origin
        finally:
            graph._insertion = former
        node._region = match.around
        return node

    def inherit(self, node: Node, old: Node, match: InternalMatch, made_by: MadeBy) -> None:
        """Hand on where the old nodes came from, the one whose value it is first."""
        first = old._origin
        # One that was replaced before is asked now: else the chain would grow with every rewrite.
        parents: list[StoredOrigin] = [first.all() if isinstance(first, DerivedOrigins) else first]
        for call in match.members:
            stored = call._origin
            if call is not old and stored is not None:
                parents.append(stored.all() if isinstance(stored, DerivedOrigins) else stored)
        # A graph made by hand may not know.
        if first is None and len(parents) == 1:
            parents[0] = node._origin
        if parents[0] is not None or len(parents) > 1:
            node._origin = DerivedOrigins(parents, made_by)

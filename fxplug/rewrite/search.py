"""One search for a pattern in one graph."""

# What is asked of every node of a graph is read from its slots, not from the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from fxplug.ir import Graph, Node, Region, effects
from fxplug.rewrite.calls import argument_pairs, is_exact_about_sequences, pairs_by_name, same_callee
from fxplug.rewrite.elements import Const, Element
from fxplug.rewrite.matches import InternalMatch
from fxplug.rewrite.reasons import reason_against, shown
from fxplug.rewrite.spellings import Spellings
from fxplug.rewrite.values import is_container, nodes_in, same_shape, same_value
from fxplug.semantics.canonical import repeats_defaults
from fxplug.semantics.checks import is_check

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fxplug.rewrite.exact import ExactPattern
    from fxplug.rewrite.pattern import Template

__all__ = ["Search", "Wanted", "ways_between"]


@dataclass(frozen=True)
class Wanted:
    """What is searched for; the same for all searches."""

    template: Template
    anchors: list[Node]
    """The nodes from which a match is found."""
    ways: Mapping[Node, list[Node]]
    """See `ways_between`."""
    exact: ExactPattern | None
    """Recognises the places that are spelt as the pattern is; None where it cannot be used."""
    spellings: Spellings
    """Those of the pattern."""
    returned: list[Node]
    """What the pattern returns."""
    commutative: frozenset[Node]
    """The calls whose first two arguments may change places."""
    enters_regions: bool
    """Whether the pattern has regions of its own."""
    constraints: Mapping[Node, Const]
    """What placeholders must be."""
    match_output: bool
    match_placeholder: bool
    ignore_literals: bool
    keep_used: bool


class _Found(NamedTuple):
    """What a search from one candidate has found so far."""

    found: dict[Node, Any]
    taken: set[Node]
    """The nodes of the graph that stand for calls of the pattern."""


_NOTHING = _Found({}, set())


class Search:
    """A search in a graph that is not changed meanwhile; holds all that is found out about the graph.

    Args:
        wanted: What is searched for.
        graph: Where.
        name: Nodes whose name contains this text match the anchors whatever they call.
        claimed: Nodes that are part of no further match; read again and again, since others may add to it.
        reasons: Is given what stands against each place that is looked at, where somebody wants to know.
    """

    def __init__(
        self,
        wanted: Wanted,
        graph: Graph,
        *,
        name: str = "",
        claimed: set[Node] | None = None,
        reasons: list[str] | None = None,
    ) -> None:
        self._wanted = wanted
        self._graph = graph
        self._root = graph.owning_module
        self._name = name
        self._claimed = claimed
        self._reasons = reasons
        self._spellings = Spellings(graph.owning_module)
        self._loose = wanted.template.loose
        self._inputs = wanted.template.inputs
        self._returned = wanted.returned
        self._commutative = wanted.commutative
        self._constraints = wanted.constraints
        self._match_placeholder = wanted.match_placeholder
        self._match_output = wanted.match_output
        self._ignore_literals = wanted.ignore_literals
        self._reached: dict[tuple[Node, Node], list[Node]] = {}
        self._returns_anchor = (
            not (wanted.match_output or wanted.enters_regions) and wanted.returned == wanted.anchors
        )
        graph.number_nodes()  # The nodes of each match are put in order.

    def candidates(self) -> list[Node]:
        """Return the nodes of the graph that the first anchor may stand for, in order."""
        return self._candidates(self._wanted.anchors[0], None)

    def matches_at(self, candidate: Node) -> Iterator[InternalMatch]:
        """Yield every match in which the first anchor stands for one of the candidates."""
        first = self.exact_match(candidate)
        if first is not None:
            yield first
        yield from self.further_matches(candidate, first)

    def exact_match(self, candidate: Node) -> InternalMatch | None:
        """Return the first match at one of the candidates where it is spelt as the pattern is, else None."""
        exact = self._wanted.exact
        seen = None if exact is None else exact.compare(candidate)
        if seen is None:
            return None
        found, nodes = seen
        if not self._is_closed(found, nodes):
            return self._result(_Found(found, set(nodes)))
        calls = (nodes[1], nodes[0]) if len(nodes) == 2 else tuple(sorted(nodes, key=_position_of))
        values = [found[node] for node in self._inputs]
        return InternalMatch(self._wanted.anchors, found, values, [candidate], {}, calls, candidate._region)

    def _is_closed(self, found: dict[Node, Any], nodes: list[Node]) -> bool:
        """Return whether nothing but the anchor is used outside, as most often; if not, `_result` asks at length."""
        region = nodes[0]._region
        for node in nodes[1:]:
            users = node._users  # `Node.users` would make a dict for the one that most have.
            if (isinstance(users, dict) and len(users) > 1) or node._region is not region:
                return False
        for wanted in self._inputs:
            value = found[wanted]
            if value.__class__ is not Node or value in nodes:
                return False
        return self._returns_anchor

    def further_matches(self, candidate: Node, first: InternalMatch | None) -> Iterator[InternalMatch]:
        """Yield the matches at one of the candidates behind the one that `exact_match` has found there, if any."""
        anchors = self._wanted.anchors
        is_simple = len(anchors) == 1
        places = self._extensions(_NOTHING, anchors[0], candidate) if is_simple else self._places(candidate)
        # The way in which a place is spelt as the pattern is comes first.
        for place in islice(places, 0 if first is None else 1, None):
            match = self._result(place)
            if match is not None:
                yield match

    def refuse_callee(self, given: Node) -> None:
        """Note that a node does not call what the first anchor does."""
        self._note(self._wanted.anchors[0], given, _NOTHING)

    # -- from an anchor upwards

    def _places(self, candidate: Node) -> Iterator[_Found]:
        """Yield every way in which the anchors stand for nodes of the graph, the first one for `candidate`."""
        anchors = self._wanted.anchors
        waiting = [(0, self._extensions(_NOTHING, anchors[0], candidate))]
        while waiting:
            index, places = waiting[-1]
            place = next(places, None)
            if place is None:
                waiting.pop()
            elif index + 1 == len(anchors):
                yield place
            else:
                waiting.append((index + 1, self._following(place, anchors[index + 1])))

    def _following(self, place: _Found, anchor: Node) -> Iterator[_Found]:
        for node in self._unclaimed(anchor, place):
            yield from self._extensions(place, anchor, node)

    def _unclaimed(self, anchor: Node, place: _Found) -> Iterator[Node]:
        """Yield the nodes that an anchor may stand for, in order, without those that are part of another match."""
        way = self._wanted.ways.get(anchor)
        start = place.found.get(way[0]) if way else None
        key = anchor, start if isinstance(start, Node) else anchor
        nodes = self._reached.get(key)
        if nodes is None:
            nodes = self._reached[key] = self._candidates(anchor, place)
        claimed: Collection[Node] = self._claimed or ()
        # What is claimed stays so. Walking past it for each candidate would take quadratic time.
        first = next((index for index, node in enumerate(nodes) if node not in claimed), len(nodes))
        del nodes[:first]
        for node in nodes:
            if node not in claimed:
                yield node

    def _candidates(self, anchor: Node, place: _Found | None) -> list[Node]:
        """Return the nodes that an anchor may stand for, in order."""
        graph, name = self._graph, self._name
        way = self._wanted.ways.get(anchor)
        start = place.found.get(way[0]) if place is not None and way else None
        if way and isinstance(start, Node):
            level = [start]
            for wanted in way[1:]:
                reached = dict.fromkeys(user for node in level for user in node.users)
                level = [
                    node for node in reached if self._is_alike(wanted, node, name if wanted is anchor else "")
                ]
            return sorted(level)
        if name or isinstance(anchor.target, Element):
            return [node for node in graph.nodes if self._is_alike(anchor, node, name)]
        # Equal constants have different paths; everything else has the target of the pattern, or another spelling.
        if anchor.op not in {"call_function", "call_method", "call_module"}:
            found = graph.find_nodes(op=anchor.op)
        elif anchor.op == "call_module" or not (
            operator := self._wanted.spellings.name(anchor.op, anchor.target)
        ):
            found = graph.find_nodes(op=anchor.op, target=anchor.target)
        else:
            found = self._nodes_that_call(operator)
        return [node for node in found if self._is_alike(anchor, node)]

    def _nodes_that_call(self, operator: str) -> list[Node]:
        name = self._spellings.name
        return self._graph.nodes_that_call(lambda op, target: op in _CALLS and name(op, target) == operator)

    def _is_alike(self, wanted: Node, node: Node, name: str = "") -> bool:
        if name and name in node.name:
            return True
        if wanted._op == "call_function" == node._op and wanted._target is node._target:
            return True
        if isinstance(wanted._target, Element):
            return wanted._target.pairs(wanted, node, self._spellings) is not None
        if same_callee(wanted, node, self._wanted.template.root, self._root):
            return True
        # A module in a pattern is the one at its path.
        ours = self._wanted.spellings.call(wanted) if wanted.op != "call_module" else None
        if ours is None:
            return False
        theirs = self._spellings.call(node)
        return theirs is not None and ours.name == theirs.name

    def _extensions(self, place: _Found, anchor: Node, node: Node) -> Iterator[_Found]:
        """Yield what is found when `anchor` stands for `node` too, for each order of exchangeable arguments."""
        waiting: list[frozenset[Node]] = [frozenset()]
        tried = 1
        while waiting:
            swapped = waiting.pop()
            reached: list[Node] = []
            found = self._extend(place, anchor, node, swapped, reached)
            if found is not None:
                yield found
            # Those behind the last one that was exchanged; those before it have had their turn.
            last = max((reached.index(one) for one in swapped if one in reached), default=-1)
            for one in reversed(reached[last + 1 :]):
                if tried < _MOST_ORDERS:
                    tried += 1
                    waiting.append(swapped | {one})

    def _extend(
        self,
        place: _Found,
        anchor: Node,
        node: Node,
        swapped: frozenset[Node],
        reached: list[Node],
    ) -> _Found | None:
        """Return what is found when `anchor` stands for `node` too, None where it cannot.

        Args:
            place: What was found so far.
            anchor: A node of the pattern.
            node: A node of the graph.
            swapped: Nodes of the pattern whose first two arguments change places.
            reached: Is given those whose arguments could change places.
        """
        found, taken, loose = dict(place.found), set(place.taken), self._loose
        waiting: list[tuple[Any, Any, bool]] = [(anchor, node, False)]
        while waiting:
            wanted, given, exact = waiting.pop()
            if wanted.__class__ is not Node:
                pairs = self._element_pairs(wanted, given, exact=exact)
            elif wanted in found:
                known = found[wanted]
                pairs = [] if known is given or same_value(known, given) else None
            elif wanted._op == "placeholder":
                found[wanted] = given
                pairs = [] if self._may_stand_for(wanted, given, node) else None
            # What candidates call was asked when they were chosen.
            elif (
                given.__class__ is not Node
                or given in taken
                or not (wanted is anchor or self._is_alike(wanted, given))
            ):
                pairs = None
            else:
                found[wanted] = given
                if wanted not in loose:
                    taken.add(given)
                if wanted in self._commutative:
                    reached.append(wanted)
                pairs = self._call_pairs(wanted, given, swap=wanted in swapped)
            if pairs is None:
                self._note(wanted, given, _Found(found, taken))
                return None
            waiting += pairs
        return _Found(found, taken)

    def _note(self, wanted: Any, given: Any, place: _Found) -> None:
        if self._reasons is not None:
            self._reasons.append(reason_against(wanted, given, place.found, place.taken, self._constraints))

    def _refuse(self, reason: str) -> None:
        if self._reasons is not None:
            self._reasons.append(reason)

    def _may_stand_for(self, wanted: Node, given: Any, node: Node) -> bool:
        constraint = self._constraints.get(wanted)
        if constraint is not None and not constraint.accepts(given, node):
            return False
        return not self._match_placeholder or (isinstance(given, Node) and given.op == "placeholder")

    def _call_pairs(self, wanted: Node, given: Node, *, swap: bool) -> list[_Pair] | None:
        """Return the arguments of two calls that are alike in pairs, the last one first, None if they do not fit."""
        if isinstance(wanted._target, Element):
            found = wanted._target.pairs(wanted, given, self._spellings)
            exact = is_exact_about_sequences(given)
            return None if found is None else [(one, other, exact) for one, other in reversed(found)]
        ours, theirs = wanted._args, given._args
        same = wanted._op == given._op and (
            wanted._target is given._target
            or (wanted._op != "call_function" and wanted._target == given._target)
        )
        if self._ignore_literals and same and not self._leaves_out_the_same(wanted, given):
            return None
        # Two numbers may be exchanged as well as two tensors; two lists may not.
        if swap and self._spellings.call(given) is None:
            return None
        if same and len(ours) == len(theirs) and not wanted._kwargs and not given._kwargs:
            if swap:
                theirs = (theirs[1], theirs[0], *theirs[2:])
            if _ARE_FLAT.issuperset(map(type, ours)):
                return [(ours[index], theirs[index], False) for index in range(len(ours) - 1, -1, -1)]
            pairs = list(zip(ours, theirs, strict=True))
            exact = is_exact_about_sequences(given)
        else:
            found = None if swap else argument_pairs(wanted, given, self._root)
            exact = same and is_exact_about_sequences(given)
            if found is None or not same:
                found = self._canonical_pairs(wanted, given, found, swap=swap)
            if found is None:
                return None
            pairs = found
        return [(one, other, exact) for one, other in reversed(pairs)]

    def _leaves_out_the_same(self, wanted: Node, given: Node) -> bool:
        """Return whether two calls of one callee agree where the pattern may have left an argument out."""
        theirs = given.kwargs
        defaults = repeats_defaults(wanted._target, wanted.kwargs)
        if any(name in theirs and not same_value(wanted.kwargs[name], theirs[name]) for name in defaults):
            return False
        ours = effects.effect_of(wanted, self._wanted.template.root)
        return bool(ours.writes) == bool(effects.effect_of(given, self._root).writes)

    def _canonical_pairs(
        self, wanted: Node, given: Node, otherwise: list[tuple[Any, Any]] | None, *, swap: bool
    ) -> list[tuple[Any, Any]] | None:
        ours, theirs = self._wanted.spellings.call(wanted), self._spellings.call(given)
        if ours is None or theirs is None or ours.arguments.keys() != theirs.arguments.keys():
            return otherwise
        pairs = pairs_by_name(ours.arguments, theirs.arguments, ours.given)
        if swap and pairs is not None:
            if theirs.arguments.get("alpha", 1) != 1:
                return None
            first, second = pairs[:2]
            pairs[:2] = [(first[0], second[1]), (second[0], first[1])]
        return pairs

    def _element_pairs(self, wanted: Any, given: Any, *, exact: bool) -> list[_Pair] | None:
        if wanted is given:  # No node of the graph can be in what the pattern has.
            return []
        if isinstance(given, Node):
            return None
        if is_container(wanted) and (is_container(given) or not self._ignore_literals):
            pairs = same_shape(wanted, given, exact=exact)
            return None if pairs is None else [(one, other, exact) for one, other in reversed(pairs)]
        if self._ignore_literals and not nodes_in((wanted, given)):
            return []
        return [] if same_value(wanted, given) else None

    # -- what a match must be besides

    def _result(self, place: _Found) -> InternalMatch | None:
        """Return a match, None where the nodes cannot be taken out of the graph together."""
        (found, taken), loose = place, self._loose
        calls = tuple(taken) if len(taken) == 1 else tuple(sorted(taken, key=_position_of))
        outside: list[Node] = []
        for wanted, node in found.items():
            if wanted in loose:
                if wanted._op == "placeholder" and (
                    node in taken if node.__class__ is Node else not taken.isdisjoint(nodes_in(node))
                ):
                    # It would be gone when the replacement needs it.
                    self._refuse(
                        f"The parameter {wanted.name!r} stands for {shown(node)}, which is part of the place."
                    )
                    return None
                continue
            others = [user for user in node.users if user not in taken]
            if not others:
                continue
            if self._match_output:
                others = [user for user in others if user._op != "output"]
            if others and wanted not in self._returned:
                # What stays is computed again in the replacement, and so must do nothing else.
                may_stay = self._wanted.keep_used or all(map(is_check, others))
                if not may_stay or not all(map(self._is_pure, calls)):
                    self._refuse(
                        f"The value of {node.name!r} is used by {others[0].name!r} outside of the place, and the "
                        "pattern does not return it."
                    )
                    return None
                continue
            outside += others
        around = self._region_around(found, calls)
        if around is None:
            self._refuse("The nodes do not lie in one region.")
            return None
        if len(calls) > 1 and outside and _leads_to(outside, taken, calls[-1]._position):
            self._refuse("A node of the place uses another one of its nodes by way of a node outside of it.")
            return None
        return InternalMatch(
            self._wanted.anchors,
            found,
            [found[node] for node in self._inputs],
            [found[node] for node in self._returned],
            {},
            calls,
            around,
        )

    def _region_around(self, found: dict[Node, Any], calls: tuple[Node, ...]) -> Region | None:
        """Return what is entered around a match besides what the pattern enters, None if that is not one region."""
        if not self._wanted.enters_regions:
            around = calls[0]._region
            if len(calls) == 1:
                return around
            for node in calls:
                if node._region is not around and node._region != around:
                    return None
            return around
        around = None
        for wanted, node in found.items():
            if wanted in self._loose:
                continue
            region = node._region
            depth = len(region) - len(wanted._region)
            if depth < 0 or region[depth:] != wanted._region or (around not in {None, region[:depth]}):
                return None
            around = region[:depth]
        return around

    def _is_pure(self, node: Node) -> bool:
        return effects.effect_of(node, self._root).is_pure


_position_of = attrgetter("_position")
_CALLS = frozenset({"call_function", "call_method", "call_module"})

_MOST_ORDERS = 256
"""Orders of arguments that are tried for one candidate."""
_Pair = tuple[Any, Any, bool]
"""What the pattern has, what the graph has, and whether a list and a tuple are different things there."""
_ARE_FLAT = frozenset({Node, int, float, bool, str, type(None)})
"""Exact types of arguments of a pattern in which there is no other one."""


def ways_between(anchors: list[Node]) -> dict[Node, list[Node]]:
    """Return, for each anchor but the first, a way to it from a node that an earlier anchor has reached.

    Walking that way in a graph finds the candidates for the anchor without looking at all other nodes.
    """
    reached: set[Node] = set()
    ways: dict[Node, list[Node]] = {}
    for anchor in anchors:
        users: dict[Node, Node] = {}
        starts: list[Node] = []
        waiting = deque([anchor])
        cone = {anchor}
        while waiting:
            node = waiting.popleft()
            if node in reached:
                starts.append(node)
                continue
            for used in node.all_input_nodes:
                if used not in cone:
                    cone.add(used)
                    users[used] = node
                    waiting.append(used)
        # A call has fewer users than an input, as a rule.
        start = min(starts, key=lambda node: node.op == "placeholder", default=None)
        if start is not None:
            way = [start]
            while way[-1] is not anchor:
                way.append(users[way[-1]])
            ways[anchor] = way
        reached |= cone
    return ways


def _leads_to(starts: list[Node], ends: set[Node], end: float) -> bool:
    """Return whether one of `ends`, none of which stands behind `end`, uses what is computed from `starts`."""
    waiting = [node for node in starts if node._position < end]
    if not waiting:
        return False
    seen: set[Node] = set()
    while waiting:
        for user in waiting.pop().users:
            if user in ends:
                return True
            if user not in seen and user._position < end:
                seen.add(user)
                waiting.append(user)
    return False

"""Finding the places of a graph that are like a pattern."""

# What is asked of every node of a graph is read from its slots, not from the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from fxplug.ir import Graph, Node, Region, effects, qualified_name
from fxplug.rewrite.calls import Spellings, argument_pairs, is_exact_about_sequences, same_callee, value_at
from fxplug.rewrite.elements import Const, Element
from fxplug.rewrite.pattern import Template
from fxplug.rewrite.values import is_container, nodes_in, same_shape, same_value
from fxplug.semantics.canonical import COMMUTATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fxplug.execute import GraphModule

__all__ = ["InternalMatch", "SubgraphMatcher"]


@dataclass
class InternalMatch:
    """One place that is like the pattern."""

    anchors: list[Node]
    """The nodes of the pattern from which the match was found."""
    nodes_map: dict[Node, Any] = field(default_factory=dict[Node, Any])
    """Node of the pattern -> node of the graph; a placeholder may stand for a plain value or a container."""
    placeholder_nodes: list[Any] = field(default_factory=list[Any])
    """What the pattern's placeholders stand for, in their order."""
    returning_nodes: list[Any] = field(default_factory=list[Any])
    """What the pattern returns, each once, in the order in which it does."""
    name_node_map: dict[str, Node] = field(default_factory=dict[str, Node])
    """Kept for the form that torch.fx gives a match; empty."""
    members: tuple[Node, ...] = ()
    """The nodes of the graph that do the work of the match, in the order of the graph."""
    around: Region = ()
    """The region in which the match lies."""

    def __copy__(self) -> InternalMatch:
        return InternalMatch(
            self.anchors,
            dict(self.nodes_map),
            list(self.placeholder_nodes),
            list(self.returning_nodes),
            members=self.members,
            around=self.around,
        )

    def calls(self) -> list[Node]:
        """Return the nodes of the graph that do the work of the match, in the order of the graph."""
        return list(self.members)


class _Search(NamedTuple):
    """What a search from one candidate has found so far."""

    found: dict[Node, Any]
    taken: set[Node]
    """The nodes of the graph that stand for calls of the pattern."""


_NOTHING = _Search({}, set())


class SubgraphMatcher:
    """Finds the places of a graph that are like a pattern.

    A node of the pattern stands for a node with the same opcode and target, and with arguments that are alike; a
    placeholder stands for any value, and for the same one wherever it is used. Two placeholders may stand for one
    value. A match lies within one region, nothing outside of it uses what the pattern does not return, and none of
    its nodes is computed from another one by way of a node outside of it.

    Matches come in the order of the nodes that the first anchor stands for. Of several that overlap the first one
    counts.

    Args:
        pattern: What to search for. Submodules and attributes are looked up below its owning module.
        match_output: Whether the output is part of the pattern, so that only the end of a graph matches.
        match_placeholder: Whether placeholders stand for inputs of the graph only.
        remove_overlapping_matches: Whether a node may be part of one match only.
        ignore_literals: Whether any plain value matches a plain value of the pattern.
        constraints: Placeholder of the pattern -> what the value must be that it stands for.
        keep_used: Whether a value that the pattern does not return may be used elsewhere; what computes it is kept.

    Raises:
        PatternError: The pattern computes nothing, or has parts that nothing uses.
    """

    def __init__(
        self,
        pattern: Graph | GraphModule | Template,
        match_output: bool = False,  # noqa: FBT001, FBT002 - torch.fx's public signature
        match_placeholder: bool = False,  # noqa: FBT001, FBT002
        remove_overlapping_matches: bool = True,  # noqa: FBT001, FBT002
        ignore_literals: bool = False,  # noqa: FBT001, FBT002
        *,
        constraints: Mapping[Node, Const] | None = None,
        keep_used: bool = False,
    ) -> None:
        self._constraints = constraints or {}
        self._keep_used = keep_used
        self._template = pattern if isinstance(pattern, Template) else Template.of(pattern, "pattern")
        self._template.check_as_pattern()
        self.pattern = self._template.graph
        """The graph of the pattern."""
        self.match_output = match_output
        self.match_placeholder = match_placeholder
        self.remove_overlapping_matches = remove_overlapping_matches
        self.ignore_literals = ignore_literals
        self.pattern_placeholder_nodes = list(self._template.inputs)
        """The placeholders of the pattern."""
        output = self.pattern.output_node()
        self.pattern_returning_nodes = output.all_input_nodes
        """What the pattern returns."""
        self._returned = frozenset(self.pattern_returning_nodes)
        self._spellings = Spellings(self._template.root)
        self._commutative = frozenset(node for node in self._template.calls() if self._is_commutative(node))
        self._enters_regions = any(node.region for node in self.pattern.nodes)
        self.pattern_anchors = self._ends(output)
        """The nodes from which a match is found: nothing in the pattern uses their values."""
        self._ways = _ways_between(self.pattern_anchors)
        self.reasons: list[str] | None = None
        """Is given what stands against each place that is looked at, where somebody wants to know."""

    def _ends(self, output: Node) -> list[Node]:
        calls = self._template.calls()
        ends = {node for node in calls if all(user is output for user in node.users)}
        returned = [node for node in self.pattern_returning_nodes if node in ends]
        # Besides what is returned there may be calls that are there for what they do.
        others = [node for node in calls if node in ends and output not in node.users]
        return ([output] if self.match_output else returned) + others

    def match(self, graph: Graph, node_name_match: str = "") -> list[InternalMatch]:
        """Return the matches in `graph`.

        Args:
            graph: Not changed.
            node_name_match: Nodes whose name contains this text match the anchors whatever they call.
        """
        return list(self.find(graph, node_name_match=node_name_match))

    def find(
        self,
        graph: Graph,
        *,
        node_name_match: str = "",
        accepts: Callable[[InternalMatch], bool] = lambda match: True,
    ) -> Iterator[InternalMatch]:
        """Yield the matches in `graph` for which `accepts` returns True; a refused one is in no other one's way.

        Args:
            graph: Must not be changed before the last match was yielded.
            node_name_match: Nodes whose name contains this text match the anchors whatever they call.
            accepts: Asked once for each match.
        """
        claimed: set[Node] = set()
        for candidate in self.candidates(graph, node_name_match=node_name_match):
            if self.remove_overlapping_matches and candidate in claimed:
                continue
            for match in self.matches_at(candidate, graph, node_name_match=node_name_match):
                if self.remove_overlapping_matches and not claimed.isdisjoint(match.members):
                    continue
                if accepts(match):
                    yield match
                    claimed.update(match.members)
                    if self.remove_overlapping_matches:
                        break

    def candidates(self, graph: Graph, *, node_name_match: str = "") -> list[Node]:
        """Return the nodes of `graph` that the first anchor may stand for, in order."""
        self._found_spellings = Spellings(graph.owning_module)
        return self._candidates(self.pattern_anchors[0], None, graph, node_name_match)

    def matches_at(
        self, candidate: Node, graph: Graph, *, node_name_match: str = ""
    ) -> Iterator[InternalMatch]:
        """Yield every match in which the first anchor stands for one of the candidates."""
        if len(self.pattern_anchors) == 1:
            searches = self._extensions(_NOTHING, self.pattern_anchors[0], candidate, node_name_match)
        else:
            searches = self._searches(candidate, graph, node_name_match)
        for search in searches:
            match = self._result(search)
            if match is not None:
                yield match

    # -- from an anchor upwards

    def _searches(self, candidate: Node, graph: Graph, name: str) -> Iterator[_Search]:
        """Yield every way in which the anchors stand for nodes of the graph, the first one for `candidate`."""
        anchors = self.pattern_anchors
        waiting = [(0, self._extensions(_NOTHING, anchors[0], candidate, name))]
        while waiting:
            index, searches = waiting[-1]
            search = next(searches, None)
            if search is None:
                waiting.pop()
            elif index + 1 == len(anchors):
                yield search
            else:
                waiting.append((index + 1, self._following(search, index + 1, graph, name)))

    def _following(self, search: _Search, index: int, graph: Graph, name: str) -> Iterator[_Search]:
        anchor = self.pattern_anchors[index]
        for node in self._candidates(anchor, search, graph, name):
            yield from self._extensions(search, anchor, node, name)

    def _candidates(self, anchor: Node, search: _Search | None, graph: Graph, name: str) -> list[Node]:
        """Return the nodes that an anchor may stand for, in order."""
        way = self._ways.get(anchor)
        start = search.found.get(way[0]) if search is not None and way else None
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
        elif anchor.op == "call_module" or not (operator := self._spellings.name(anchor.op, anchor.target)):
            found = graph.find_nodes(op=anchor.op, target=anchor.target)
        else:
            found = self._nodes_that_call(operator, graph)
        return [node for node in found if self._is_alike(anchor, node)]

    def _nodes_that_call(self, operator: str, graph: Graph) -> list[Node]:
        spelt = [
            (op, target)
            for op in ("call_function", "call_method", "call_module")
            for target in graph.distinct_targets(op)
            if self._found_spellings.name(op, target) == operator
        ]
        if len(spelt) == 1:
            return graph.find_nodes(op=spelt[0][0], target=spelt[0][1])
        return sorted(
            node for op, target in spelt for node in graph.find_nodes(op=op, target=target, sort=False)
        )

    def _is_alike(self, wanted: Node, node: Node, name: str = "") -> bool:
        if name and name in node.name:
            return True
        if wanted._op == "call_function" == node._op and wanted._target is node._target:
            return True
        if isinstance(wanted._target, Element):
            return wanted._target.pairs(wanted, node, self._found_spellings) is not None
        if same_callee(wanted, node, self._template.root, cast("Graph", node.graph).owning_module):
            return True
        # A module in a pattern is the one at its path.
        ours = self._spellings.call(wanted) if wanted.op != "call_module" else None
        if ours is None:
            return False
        theirs = self._found_spellings.call(node)
        return theirs is not None and ours.name == theirs.name

    def _is_commutative(self, wanted: Node) -> bool:
        call = self._spellings.call(wanted)
        return call is not None and call.name in COMMUTATIVE and call.arguments.get("alpha", 1) == 1

    def _extensions(self, search: _Search, anchor: Node, node: Node, name: str) -> Iterator[_Search]:
        """Yield what is found when `anchor` stands for `node` too, for each order of exchangeable arguments."""
        waiting: list[frozenset[Node]] = [frozenset()]
        tried = 1
        while waiting:
            swapped = waiting.pop()
            reached: list[Node] = []
            found = self._extend(search, anchor, node, name, swapped, reached)
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
        search: _Search,
        anchor: Node,
        node: Node,
        name: str,
        swapped: frozenset[Node],
        reached: list[Node],
    ) -> _Search | None:
        """Return what is found when `anchor` stands for `node` too, None where it cannot.

        Args:
            search: What was found so far.
            anchor: A node of the pattern.
            node: A node of the graph.
            name: Nodes whose name contains this text match the anchors whatever they call.
            swapped: Nodes of the pattern whose first two arguments change places.
            reached: Is given those whose arguments could change places.
        """
        found, taken, loose = dict(search.found), set(search.taken), self._template.loose
        waiting: list[tuple[Any, Any, bool]] = [(anchor, node, False)]
        while waiting:
            wanted, given, exact = waiting.pop()
            if not isinstance(wanted, Node):
                pairs = self._element_pairs(wanted, given, exact=exact)
            elif wanted in found:
                known = found[wanted]
                pairs = [] if known is given or same_value(known, given) else None
            elif wanted._op == "placeholder":
                found[wanted] = given
                pairs = [] if self._may_stand_for(wanted, given) else None
            # What candidates call was asked when they were chosen.
            elif (
                not isinstance(given, Node)
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
                if self.reasons is not None:
                    self.reasons.append(self._reason(wanted, given, found, taken))
                return None
            waiting += pairs
        return _Search(found, taken)

    def _reason(self, wanted: Any, given: Any, found: Mapping[Node, Any], taken: set[Node]) -> str:
        """Return what the pattern wants and what the graph has, after one was found not to be the other."""
        if not isinstance(wanted, Node):
            return f"The pattern has {wanted!r} where the graph has {_shown(given)}."
        if wanted.op == "placeholder":
            if wanted in found and found[wanted] is not given and not same_value(found[wanted], given):
                return (
                    f"The parameter {wanted.name!r} stands for {_shown(found[wanted])} in one place and for "
                    f"{_shown(given)} in another."
                )
            wish = self._constraints.get(wanted, "an input of the graph")
            return f"The parameter {wanted.name!r} must be {wish!r}, and the graph has {_shown(given)}."
        if not isinstance(given, Node):
            return f"The pattern calls {_callee(wanted)} where the graph has {given!r}."
        if (wanted in found and found[wanted] is not given) or (wanted not in found and given in taken):
            return f"The node {given.name!r} would have to stand for two calls of the pattern."
        if wanted in found:
            return (
                f"The node {given.name!r} calls {_callee(given)} with other arguments than the pattern does."
            )
        verb = "calls" if given.op.startswith("call_") else "is"
        return f"The node {given.name!r} {verb} {_callee(given)}; the pattern calls {_callee(wanted)} there."

    def refuse_callee(self, wanted: Node, given: Node) -> None:
        """Note that a node does not call what a node of the pattern does."""
        if self.reasons is not None:
            self.reasons.append(self._reason(wanted, given, {}, set()))

    def _refuse(self, reason: str) -> None:
        if self.reasons is not None:
            self.reasons.append(reason)

    def _may_stand_for(self, wanted: Node, given: Any) -> bool:
        constraint = self._constraints.get(wanted)
        if constraint is not None and not constraint.accepts(given):
            return False
        return not self.match_placeholder or (isinstance(given, Node) and given.op == "placeholder")

    def _call_pairs(self, wanted: Node, given: Node, *, swap: bool) -> list[_Pair] | None:
        """Return the arguments of two calls that are alike in pairs, the last one first, None if they do not fit."""
        if isinstance(wanted._target, Element):
            found = wanted._target.pairs(wanted, given, self._found_spellings)
            return None if found is None else [(one, other, False) for one, other in reversed(found)]
        ours, theirs = wanted._args, given._args
        same = wanted._op == given._op and wanted._target is given._target
        if same and len(ours) == len(theirs) and not wanted._kwargs and not given._kwargs:
            if swap:
                theirs = (theirs[1], theirs[0], *theirs[2:])
            if _ARE_FLAT.issuperset(map(type, ours)):
                return [(ours[index], theirs[index], False) for index in range(len(ours) - 1, -1, -1)]
            pairs = list(zip(ours, theirs, strict=True))
            exact = is_exact_about_sequences(given)
        else:
            found = None if swap else argument_pairs(wanted, given, cast("Graph", given.graph).owning_module)
            exact = is_exact_about_sequences(given)
            if found is None or not same:
                found, exact = self._canonical_pairs(wanted, given, swap=swap) or found, False
            if found is None:
                return None
            pairs = found
        return [(one, other, exact) for one, other in reversed(pairs)]

    def _canonical_pairs(self, wanted: Node, given: Node, *, swap: bool) -> list[tuple[Any, Any]] | None:
        ours, theirs = self._spellings.call(wanted), self._found_spellings.call(given)
        if ours is None or theirs is None or ours.arguments.keys() != theirs.arguments.keys():
            return None
        values = list(theirs.arguments.values())
        if swap:
            values[:2] = values[1::-1]
        return list(zip(ours.arguments.values(), values, strict=True))

    def _element_pairs(self, wanted: Any, given: Any, *, exact: bool) -> list[_Pair] | None:
        if wanted is given:  # No node of the graph can be in what the pattern has.
            return []
        if isinstance(given, Node):
            return None
        if is_container(wanted) and (is_container(given) or not self.ignore_literals):
            pairs = same_shape(wanted, given, exact=exact)
            return None if pairs is None else [(one, other, exact) for one, other in reversed(pairs)]
        if self.ignore_literals and not nodes_in((wanted, given)):
            return []
        return [] if same_value(wanted, given) else None

    # -- what a match must be besides

    def _result(self, search: _Search) -> InternalMatch | None:
        """Return a match, None where the nodes cannot be taken out of the graph together."""
        found, taken, loose = search.found, search.taken, self._template.loose
        calls = tuple(taken) if len(taken) == 1 else tuple(sorted(taken))
        outside: list[Node] = []
        for wanted, node in found.items():
            if wanted in loose:
                if wanted._op == "placeholder" and (
                    node in taken if node.__class__ is Node else not taken.isdisjoint(nodes_in(node))
                ):
                    # It would be gone when the replacement needs it.
                    self._refuse(
                        f"The parameter {wanted.name!r} stands for {_shown(node)}, which is part of the place."
                    )
                    return None
                continue
            if taken.issuperset(node.users):
                continue
            others = [user for user in node.users if user not in taken and not self._ends_with(user)]
            if others and wanted not in self._returned:
                # What stays is computed again in the replacement, and so must do nothing else.
                if not self._keep_used or not all(map(self._is_pure, calls)):
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
        if outside and len(calls) > 1 and _leads_to(outside, taken, calls[-1]):
            self._refuse("A node of the place uses another one of its nodes by way of a node outside of it.")
            return None
        return InternalMatch(
            self.pattern_anchors,
            found,
            [found[node] for node in self.pattern_placeholder_nodes],
            [found[node] for node in self.pattern_returning_nodes],
            members=calls,
            around=around,
        )

    def _region_around(self, found: dict[Node, Any], calls: tuple[Node, ...]) -> Region | None:
        """Return what is entered around a match besides what the pattern enters, None if that is not one region."""
        if not self._enters_regions:
            around = calls[0]._region
            return around if all(node._region == around for node in calls) else None
        around = None
        for wanted, node in found.items():
            if wanted in self._template.loose:
                continue
            region = node._region
            depth = len(region) - len(wanted._region)
            if depth < 0 or region[depth:] != wanted._region or (around not in {None, region[:depth]}):
                return None
            around = region[:depth]
        return around

    @staticmethod
    def _is_pure(node: Node) -> bool:
        return effects.effect_of(node, cast("Graph", node.graph).owning_module).is_pure

    def _ends_with(self, user: Node) -> bool:
        return self.match_output and user.op == "output"


def _shown(value: Any) -> str:
    return f"the node {value.name!r}" if isinstance(value, Node) else repr(value)


def _callee(node: Node) -> str:
    """Return what a node calls, or is, for people."""
    target = node.target
    if isinstance(target, Element):
        return repr(target)
    if node.op == "call_function":
        return qualified_name(target)
    if node.op == "call_module":
        module = value_at(cast("Graph", node.graph).owning_module, target)
        return f"the module {target!r}{'' if module is None else f' ({type(module).__name__})'}"
    what = {"call_method": "the method", "get_attr": "the attribute", "placeholder": "the input"}.get(node.op)
    return "the output" if what is None else f"{what} {target!r}"


_MOST_ORDERS = 256
"""Orders of arguments that are tried for one candidate."""
_Pair = tuple[Any, Any, bool]
"""What the pattern has, what the graph has, and whether a list and a tuple are different things there."""
_ARE_FLAT = frozenset({Node, int, float, bool, str, type(None)})
"""Exact types of arguments of a pattern in which there is no other one."""


def _ways_between(anchors: list[Node]) -> dict[Node, list[Node]]:
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


def _leads_to(starts: list[Node], ends: set[Node], last: Node) -> bool:
    """Return whether one of `ends`, of which `last` is last, uses one of `starts` or what is computed from it."""
    seen: set[Node] = set()
    waiting = [node for node in starts if node < last]
    while waiting:
        for user in waiting.pop().users:
            if user in ends:
                return True
            if user not in seen and user < last:
                seen.add(user)
                waiting.append(user)
    return False

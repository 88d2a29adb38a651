"""Finding the places of a graph that are like a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxplug.rewrite.exact import ExactPattern
from fxplug.rewrite.matches import InternalMatch
from fxplug.rewrite.pattern import Template
from fxplug.rewrite.search import Search, Wanted, ways_between
from fxplug.rewrite.spellings import Spellings
from fxplug.semantics.canonical import COMMUTATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fxplug.execute import GraphModule
    from fxplug.ir import Graph, Node
    from fxplug.rewrite.elements import Const

__all__ = ["InternalMatch", "SubgraphMatcher"]


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
        self._spellings = Spellings(self._template.root)
        self._commutative = frozenset(node for node in self._template.calls() if self._is_commutative(node))
        self._enters_regions = any(node.region for node in self.pattern.nodes)
        self.pattern_anchors = self._ends(output)
        """The nodes from which a match is found: nothing in the pattern uses their values."""
        self._ways = ways_between(self.pattern_anchors)
        asks_more = ignore_literals or match_placeholder or bool(self._constraints)
        self._exact = None if asks_more else ExactPattern.of(self._template, self.pattern_anchors)

    def _ends(self, output: Node) -> list[Node]:
        calls = self._template.calls()
        ends = {node for node in calls if all(user is output for user in node.users)}
        returned = [node for node in self.pattern_returning_nodes if node in ends]
        # Besides what is returned there may be calls that are there for what they do.
        others = [node for node in calls if node in ends and output not in node.users]
        return ([output] if self.match_output else returned) + others

    def _is_commutative(self, wanted: Node) -> bool:
        call = self._spellings.call(wanted)
        return call is not None and call.name in COMMUTATIVE and call.arguments.get("alpha", 1) == 1

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
        one_only = self.remove_overlapping_matches
        claimed: set[Node] = set()
        search = self.search(graph, node_name_match=node_name_match, claimed=claimed if one_only else None)
        for candidate in search.candidates():
            if one_only and candidate in claimed:
                continue
            first = search.exact_match(candidate)
            if (
                first is not None
                and not (one_only and not claimed.isdisjoint(first.members))
                and accepts(first)
            ):
                yield first
                claimed.update(first.members)
                if one_only:  # Most matches end here.
                    continue
            for match in search.further_matches(candidate, first):
                if one_only and not claimed.isdisjoint(match.members):
                    continue
                if accepts(match):
                    yield match
                    claimed.update(match.members)
                    if one_only:
                        break

    def search(
        self,
        graph: Graph,
        *,
        node_name_match: str = "",
        claimed: set[Node] | None = None,
        reasons: list[str] | None = None,
    ) -> Search:
        """Return a search in `graph`, which holds all that is found out about it: a matcher serves many at a time.

        Args:
            graph: Must not be changed before the search has ended.
            node_name_match: Nodes whose name contains this text match the anchors whatever they call.
            claimed: Nodes that are part of no further match; others may add to it meanwhile.
            reasons: Is given what stands against each place that is looked at.
        """
        wanted = Wanted(
            template=self._template,
            anchors=self.pattern_anchors,
            ways=self._ways,
            exact=self._exact,
            spellings=self._spellings,
            returned=self.pattern_returning_nodes,
            commutative=self._commutative,
            enters_regions=self._enters_regions,
            constraints=self._constraints,
            match_output=self.match_output,
            match_placeholder=self.match_placeholder,
            ignore_literals=self.ignore_literals,
            keep_used=self._keep_used,
        )
        return Search(wanted, graph, name=node_name_match, claimed=claimed, reasons=reasons)

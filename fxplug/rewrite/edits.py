"""Putting replacements in the place of matches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from fxplug.errors import PatternError
from fxplug.ir import PATH_OPCODES, Node, map_aggregate, map_arg
from fxplug.ir.clone import copy_meta
from fxplug.rewrite.adoption import Adoption, drop_unreached
from fxplug.rewrite.matcher import InternalMatch, region_around
from fxplug.rewrite.pattern import Template
from fxplug.rewrite.placement import EffectOrder
from fxplug.rewrite.values import nodes_in, same_value

if TYPE_CHECKING:
    from fxplug.execute import GraphModule
    from fxplug.ir import Argument

__all__ = ["Editor", "ReplacedPatterns", "notes_of"]

_MADE_BY = "replace_pattern"

_RESULTS_OF_ANALYSES = frozenset({"example_value", "tensor_meta", "type", "val"})
"""Notes that are facts about a value. They are not known of the value that takes its place."""


@dataclass
class ReplacedPatterns:
    """One place that was replaced, and what stands there now."""

    anchor: Node
    """The node of the pattern from which the match was found."""
    nodes_map: dict[Node, Any]
    """Node of the pattern -> node of the graph that it stood for, or the plain value for a placeholder."""
    replacements: list[Node] = field(default_factory=list[Node])
    """The new nodes, in order."""


@dataclass(frozen=True)
class Replacement:
    """What is put in the place of a match."""

    template: Template
    adoption: Adoption
    is_module: bool


class Editor:
    """Replaces matches of one pattern, one after the other.

    Args:
        module: Changed in place by `apply`.
        pattern: What was searched for.
    """

    def __init__(self, module: GraphModule, pattern: Template) -> None:
        self._module = module
        self._graph = module.graph
        self._pattern = pattern
        self._order = EffectOrder(module.graph, module)
        self._prepared: dict[int, tuple[Any, Replacement]] = {}
        self._planned: list[tuple[InternalMatch, Replacement]] = []
        self._moved: dict[Node, Any] = {}

    def prepare(self, program: Any) -> Replacement:
        """Return what stands for `program`, checked against the pattern.

        Raises:
            PatternError: It cannot take the place of the pattern.
        """
        known = self._prepared.get(id(program))
        if known is None:
            template = Template.of(program, "replacement")
            _check_against(self._pattern, template)
            adoption = Adoption(self._module, self._pattern, template)
            # The program is kept too, so that no other one gets its id.
            known = program, Replacement(template, adoption, isinstance(program, nn.Module))
            self._prepared[id(program)] = known
        return known[1]

    def plan(self, match: InternalMatch, replacement: Replacement) -> bool:
        """Note that `match` is to be replaced; return whether there is a place for the replacement."""
        fits = self._place_for(match, replacement) is not None
        if fits:
            self._planned.append((match, replacement))
        return fits

    def apply(self) -> list[ReplacedPatterns]:
        """Replace what was planned and return what was replaced, in order."""
        done: list[ReplacedPatterns] = []
        unreached: list[str] = []
        for match, replacement in self._planned:
            # Asked again: what was replaced before may have moved something.
            place = self._place_for(match, replacement)
            if place is None:
                continue
            calls = match.calls()
            if replacement.is_module:
                unreached += [str(node.target) for node in calls if node.op == "call_module"]
            for wanted, bound in zip(self._pattern.inputs, match.placeholder_nodes, strict=True):
                match.nodes_map[wanted] = self._current(bound)
            made = self._replace(match, calls, replacement, place)
            done.append(ReplacedPatterns(match.anchors[0], match.nodes_map, made))
        drop_unreached(self._module, unreached)
        return done

    # -- where

    def _place_for(self, match: InternalMatch, replacement: Replacement) -> Node | None:
        calls = match.calls()
        bound = cast("tuple[Any, ...]", self._current(tuple(match.placeholder_nodes)))
        members = set(calls)
        returned = [node for node in match.returning_nodes if isinstance(node, Node) and node in members]
        for wanted, ours, theirs in zip(
            self._pattern.results, self._pattern.shared, replacement.template.shared, strict=True
        ):
            changed = [position for position in ours ^ theirs if position < len(bound)]
            if changed and isinstance(wanted, Node):
                # A new value where there was an input, or a view of it, or the other way round: a write to one of
                # them is, or is no longer, one to the other.
                values = nodes_in((match.nodes_map[wanted], [bound[position] for position in changed]))
                if any(self._order.may_be_written(value, members) for value in values):
                    return None
        return self._order.meeting_place(calls, nodes_in(bound), returned)

    def _current(self, value: Argument) -> Argument:
        """Return an argument with the nodes that were replaced meanwhile exchanged for what took their place."""

        def follow(leaf: Any) -> Any:
            while isinstance(leaf, Node) and leaf in self._moved:
                leaf = self._moved[leaf]
            return leaf

        return map_aggregate(value, follow)

    # -- what

    def _replace(
        self, match: InternalMatch, calls: list[Node], replacement: Replacement, place: Node
    ) -> list[Node]:
        template = replacement.template
        values: dict[Node, Any] = {}
        for index, node in enumerate(template.inputs):
            given = index < len(self._pattern.inputs)
            values[node] = match.nodes_map[self._pattern.inputs[index]] if given else node.args[0]
        made: list[Node] = []
        with self._graph.inserting_before(place):
            for node in template.calls():
                copy = self._graph.node_copy(node, values.__getitem__)
                if node.op in PATH_OPCODES:
                    copy.target = replacement.adoption.path_for(str(node.target))
                values[node] = copy
                made.append(copy)
        stands_for: dict[Node, Node] = {}
        for wanted, given in zip(self._pattern.results, template.results, strict=True):
            old = match.nodes_map.get(wanted) if isinstance(wanted, Node) else None
            if old is None or wanted in self._pattern.inputs or old in self._moved:
                continue
            new = self._moved[old] = values[given] if isinstance(given, Node) else given
            if isinstance(new, Node) and given not in template.inputs:
                stands_for.setdefault(new, old)
        self._annotate(match, calls, made, stands_for)
        self._exchange(match, calls, made)
        return made

    def _exchange(self, match: InternalMatch, calls: list[Node], made: list[Node]) -> None:
        """Let users use the new values, and take the old nodes out."""
        members = set(calls)
        for old in calls:
            if old in self._moved:
                new = self._moved[old]
                for user in [user for user in old.users if user not in members]:
                    _use_instead(user, old, new)
        for node in reversed(calls):
            self._order.forget(node)
            self._graph.erase_node(node)
        reads = dict.fromkeys(node for wanted, node in match.nodes_map.items() if wanted.op == "get_attr")
        for node in reads:
            if node not in members and not node.users:
                self._graph.erase_node(node)
        for node in made:
            self._order.learn(node)

    # -- what is known about the new nodes

    def _annotate(
        self, match: InternalMatch, calls: list[Node], made: list[Node], stands_for: dict[Node, Node]
    ) -> None:
        around = region_around(match.nodes_map) or ()
        derived = {origin: origin.derived(_MADE_BY) for call in calls for origin in call.origins}
        shared = _shared_notes(calls)
        for node in made:
            old = stands_for.get(node)
            if around:
                node.region = (*around, *node.region)
            # Where the old nodes came from, the one whose value it is first; a graph made by hand may not know.
            first = old.origins if old is not None else ()
            chosen = tuple(derived[origin] for origin in dict.fromkeys((*first, *derived)))
            node.origins = chosen or tuple(origin.derived(_MADE_BY) for origin in node.origins)
            node.meta = {**(shared if old is None else notes_of(old)), **_own_notes(node)}
            if old is not None and node.type is None:
                node.type = old.type


def _use_instead(user: Node, old: Node, new: Argument) -> None:
    if isinstance(new, Node):
        user.replace_input_with(old, new)
        return

    def swap(used: Node) -> Argument:
        return new if used is old else used

    user.args = cast("tuple[Argument, ...]", map_arg(user.args, swap))
    user.kwargs = cast("dict[str, Argument]", map_arg(user.kwargs, swap))


def notes_of(node: Node) -> dict[str, Any]:
    """Return copies of the notes that hold for what takes the place of a node, too."""
    return {key: value for key, value in copy_meta(node.meta).items() if key not in _RESULTS_OF_ANALYSES}


def _shared_notes(nodes: list[Node]) -> dict[str, Any]:
    """Return the notes that all of `nodes` have."""
    shared = notes_of(nodes[0])
    for node in nodes[1:]:
        shared = {
            key: value
            for key, value in shared.items()
            if key in node.meta and same_value(value, node.meta[key])
        }
    return shared


def _own_notes(node: Node) -> dict[str, Any]:
    """Return the notes that the replacement brings, without those about where its own lines stand."""
    return {key: value for key, value in node.meta.items() if key not in {"nn_module_stack", "stack_trace"}}


def _check_against(pattern: Template, replacement: Template) -> None:
    """Check that the replacement takes what the pattern takes and returns as many values.

    Raises:
        PatternError: It does not.
    """
    names = [str(node.target) for node in pattern.inputs]
    theirs = [str(node.target) for node in replacement.inputs]
    if len(theirs) < len(names) or any(not node.args for node in replacement.inputs[len(names) :]):
        raise PatternError(
            f"Cannot use the replacement: it takes ({', '.join(theirs)}), and the pattern takes ({', '.join(names)}). "
            "Parameters are matched by position. Give the replacement the parameters of the pattern; further ones need "
            "a default."
        )
    if len(pattern.results) != len(replacement.results):
        raise PatternError(
            f"Cannot use the replacement: it returns {len(replacement.results)} values, and the pattern returns "
            f"{len(pattern.results)}. Return one value for each."
        )
    inputs = dict(zip(pattern.inputs, replacement.inputs, strict=False))
    taken: dict[Node, Any] = {}
    for position, (ours, given) in enumerate(zip(pattern.results, replacement.results, strict=True)):
        if not isinstance(ours, Node) or ours in inputs:
            if not same_value(inputs.get(ours, ours) if isinstance(ours, Node) else ours, given):
                raise PatternError(
                    f"Cannot use the replacement: as result {position} the pattern returns {ours!r}, which it does not "
                    f"compute, and the replacement returns {given!r}. Return the same there, or leave it out of both."
                )
        elif not same_value(taken.setdefault(ours, given), given):
            raise PatternError(
                f"Cannot use the replacement: the pattern returns {ours.name!r} more than once, and the replacement "
                f"returns {taken[ours]!r} and {given!r} for it. Return the same value each time."
            )

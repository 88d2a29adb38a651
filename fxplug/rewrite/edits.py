"""Putting replacements in the place of matches."""

# What is done for every place reads the slots of nodes, not the properties in front of them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import nn

from fxplug.errors import PatternError
from fxplug.ir import PATH_OPCODES, Graph, MadeBy, Node, map_aggregate, map_arg
from fxplug.ir.clone import copy_meta
from fxplug.ir.notes import RESULTS_OF_ANALYSES
from fxplug.rewrite.adoption import Adoption, drop_unreached
from fxplug.rewrite.limits import allows_rewrite, is_limited
from fxplug.rewrite.pattern import Template
from fxplug.rewrite.placement import EffectOrder
from fxplug.rewrite.single import FLAT, SingleCall
from fxplug.rewrite.values import nodes_in, same_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.execute import GraphModule
    from fxplug.ir import Argument
    from fxplug.rewrite.matcher import InternalMatch

__all__ = ["Editor", "ReplacedPatterns", "notes_of"]

_MADE_BY = MadeBy("replace_pattern")
_INSIDE = MadeBy("replace_pattern", inside=True)


@dataclass(slots=True)
class ReplacedPatterns:
    """One place that was replaced, and what stands there now."""

    anchor: Node
    """The node of the pattern from which the match was found."""
    nodes_map: dict[Node, Any]
    """Node of the pattern -> node of the graph that it stood for, or the plain value for a placeholder."""
    replacements: list[Node] = field(default_factory=list[Node])
    """The new nodes, in order."""


class MemoryChange(NamedTuple):
    """Values none of which may be written where the replacement is put."""

    nodes: tuple[Node, ...]
    """Of the pattern."""
    inputs: tuple[int, ...] = ()
    """Positions of placeholders."""


@dataclass(frozen=True)
class Replacement:
    """What is put in the place of a match."""

    pattern: Template
    """What was searched for."""
    template: Template
    adoption: Adoption
    is_module: bool
    reads: tuple[Node, ...]
    """The attributes that the pattern reads."""
    calls: tuple[Node, ...]
    """What is copied to each place, in order."""
    changes: tuple[MemoryChange, ...]
    """What may share memory after the replacement and did not before, or the other way round."""
    inner: tuple[tuple[Node, Node], ...]
    """Results of the pattern, each with a value inside of it that may share memory with it."""
    single: SingleCall | None
    """The replacement made ready where it is one plain call."""


class Editor:
    """Replaces matches of patterns, one after the other.

    Args:
        module: Changed in place by `apply`.
    """

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._graph = module.graph
        self._order = EffectOrder(module.graph, module)
        self._prepared: dict[tuple[int, int], tuple[Any, Replacement]] = {}
        self._planned: list[tuple[InternalMatch, Replacement]] = []
        self._moved: dict[Node, Any] = {}
        graph = module.graph
        is_usual = getattr(graph.erase_node, "__func__", None) is Graph.erase_node
        self._erase = graph._take_out if is_usual else graph.erase_node
        """What is replaced is used by nobody, which need not be looked at again."""

    def prepare(self, pattern: Template, program: Any) -> Replacement:
        """Return what stands for `program`, checked against a pattern.

        Raises:
            PatternError: It cannot take the place of the pattern.
        """
        key = id(pattern), id(program)
        known = self._prepared.get(key)
        if known is None:
            template = Template.of(program, "replacement")
            _check_against(pattern, template)
            replacement = Replacement(
                pattern,
                template,
                Adoption(self._module, pattern, template),
                isinstance(program, nn.Module),
                tuple(pattern.graph.find_nodes(op="get_attr")),
                tuple(template.calls()),
                tuple(_changes_of_memory(pattern, template)),
                tuple(_shared_inside(pattern)),
                SingleCall.of(pattern, template),
            )
            # The program is kept too, so that no other one gets its id.
            known = self._prepared[key] = program, replacement
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
        limited, moved = is_limited(), self._moved
        for match, replacement in self._planned:
            # Asked again: what was replaced before may have moved something.
            place = self._place_for(match, replacement)
            if place is None or (limited and not allows_rewrite(match.members[-1], "replace_pattern")):
                continue
            if replacement.is_module:
                unreached += [str(node.target) for node in match.members if node.op == "call_module"]
            found = match.nodes_map
            for wanted in replacement.pattern.inputs:
                bound = found[wanted]
                if bound.__class__ is not Node or bound in moved:
                    found[wanted] = self._current(bound)
            made = self._replace(match, replacement, place)
            done.append(ReplacedPatterns(match.anchors[0], match.nodes_map, made))
        drop_unreached(self._module, unreached)
        return done

    # -- where

    def _place_for(self, match: InternalMatch, replacement: Replacement) -> Node | None:
        calls = match.members
        if (replacement.changes or replacement.inner) and self._is_written(match, replacement):
            return None
        if len(calls) == 2 and calls[0]._next is calls[1]:  # As most often; the rest of the question is long.
            return calls[1]._next
        if self._order.is_in_one_piece(calls):
            return calls[-1]._next
        bound = self._current(tuple(match.placeholder_nodes))
        members = set(calls)
        returned = [node for node in match.returning_nodes if isinstance(node, Node) and node in members]
        return self._order.meeting_place(calls, nodes_in(bound), returned)

    def _is_written(self, match: InternalMatch, replacement: Replacement) -> bool:
        """Return whether something is written that shares memory with something else than it did.

        A new value where there was an input, or a view of it, or the other way round: a write to one of them is, or is
        no longer, one to the other.
        """
        members = set(match.members)
        values: list[Any] = []
        for change in replacement.changes:
            values += [match.nodes_map[wanted] for wanted in change.nodes]
            values += [match.placeholder_nodes[position] for position in change.inputs]
        for wanted, inner in replacement.inner:
            kept: Node = match.nodes_map[inner]
            if not members.issuperset(kept.users):  # It stays, and what was a view of it is one no more.
                values += [match.nodes_map[wanted], kept]
        return any(
            self._order.may_be_written(value, members) for value in nodes_in(self._current(tuple(values)))
        )

    def _current(self, value: Argument) -> Argument:
        """Return an argument with the nodes that were replaced meanwhile exchanged for what took their place."""
        moved = self._moved
        if value.__class__ is Node and value not in moved:
            return value

        def follow(leaf: Any) -> Any:
            while isinstance(leaf, Node) and leaf in moved:
                leaf = moved[leaf]
            return leaf

        return map_aggregate(value, follow)

    # -- what

    def _replace(self, match: InternalMatch, replacement: Replacement, place: Node) -> list[Node]:
        single = replacement.single
        if single is not None and (old := match.nodes_map[single.result]) not in self._moved:
            new = self._moved[old] = single.put(self._graph, match, place)
            single.inherit(new, old, match, _MADE_BY)
            _take_notes(new, old)
            self._exchange(match, replacement, [new])
            return [new]
        template, inputs = replacement.template, replacement.pattern.inputs
        values: dict[Node, Any] = {}
        for index, node in enumerate(template.inputs):
            values[node] = match.nodes_map[inputs[index]] if index < len(inputs) else node.args[0]
        made: list[Node] = []
        if replacement.calls:
            graph = self._graph
            # As `inserting_before` does, but nothing is erased meanwhile.
            former, graph._insertion = graph._insertion, (place, True)
            try:
                for node in replacement.calls:
                    copy = values[node] = _copy_to(graph, node, values)
                    if node._op in PATH_OPCODES:
                        copy.target = replacement.adoption.path_for(str(node.target))
                    made.append(copy)
            finally:
                graph._insertion = former
        stands_for: dict[Node, Node] = {}
        for wanted, given in zip(replacement.pattern.results, template.results, strict=True):
            old = match.nodes_map.get(wanted) if isinstance(wanted, Node) else None
            if old is None or wanted in inputs or old in self._moved:
                continue
            new = self._moved[old] = values[given] if isinstance(given, Node) else given
            if isinstance(new, Node) and given not in template.inputs:
                stands_for.setdefault(new, old)
        self._annotate(match, made, stands_for)
        self._exchange(match, replacement, made)
        return made

    def _exchange(self, match: InternalMatch, replacement: Replacement, made: list[Node]) -> None:
        """Let users use the new values, and take the old nodes out."""
        calls, order, moved, erase = match.members, self._order, self._moved, self._erase
        has_to_hear = order.has_to_hear
        for old in calls:
            if old in moved:
                new = moved[old]
                for user in old._user_tuple():
                    if user not in calls:
                        _use_instead(user, old, new)
        for node in calls[::-1]:
            if not node._users:  # What the pattern keeps is used elsewhere.
                if has_to_hear:
                    order.forget(node)
                erase(node)
        if replacement.reads:
            self._erase_reads(match, replacement, set(calls))
        for node in made if has_to_hear else ():
            order.learn(node)

    def _erase_reads(self, match: InternalMatch, replacement: Replacement, members: set[Node]) -> None:
        """Take out the attributes that were read for the pattern, unless others use them."""
        for node in dict.fromkeys(match.nodes_map[wanted] for wanted in replacement.reads):
            if node not in members and not node.users and node.graph is self._graph:
                self._graph.erase_node(node)

    # -- what is known about the new nodes

    def _annotate(self, match: InternalMatch, made: list[Node], stands_for: dict[Node, Node]) -> None:
        """Hand regions, origins, notes and annotations on."""
        outer = {
            origin: origin.derived(_MADE_BY)
            for call in match.members
            if call._origin is not None
            for origin in call.origins
        }
        everything = len(stands_for) == len(made)
        shared = None if everything else _shared_notes(match.members)
        inner = {} if everything else {origin: origin.derived(_INSIDE) for origin in outer}
        for node in made:
            old = stands_for.get(node)
            derived = outer if old is not None else inner
            if match.around:
                node.region = (*match.around, *node.region)
            if not derived:  # A graph made by hand may not know.
                entry = _MADE_BY if old is not None else _INSIDE
                node.origins = tuple([origin.derived(entry) for origin in node.origins])
            else:
                # Where the old nodes came from, the one whose value it is first.
                first = old.origins if old is not None else ()
                node.origins = tuple([derived[origin] for origin in dict.fromkeys((*first, *derived))])
            if old is None:
                node.meta = {**(shared or {}), **_own_notes(node)}
            else:
                _take_notes(node, old)


def _take_notes(node: Node, old: Node) -> None:
    if old._meta is not None or node._meta is not None:
        node.meta = {**notes_of(old), **_own_notes(node)}
    if node._type is None and old._type is not None:
        node.type = old.type


def _copy_to(graph: Graph, node: Node, values: dict[Node, Any]) -> Node:
    """Copy a call of a replacement as `Graph.node_copy` does, most of them with less ado."""
    if node._kwargs or node._meta is not None or not FLAT.issuperset(map(type, node._args)):
        return graph.node_copy(node, values.__getitem__)
    args = tuple([values[value] if value.__class__ is Node else value for value in node._args])
    copy = graph.create_node(node._op, node._target, args, None, node._name, node._type)
    copy._region, copy._origin = node._region, node._origin
    return copy


def _changes_of_memory(pattern: Template, replacement: Template) -> Iterator[MemoryChange]:
    """Yield what shares memory with other things in the replacement than in the pattern."""
    reads = pattern.graph.find_nodes(op="get_attr")
    computed: dict[Node, Any] = {}
    results = zip(pattern.results, replacement.results, strict=True)
    shared = zip(pattern.shared, replacement.shared, strict=True)
    always = zip(pattern.shared_always, replacement.shared_always, strict=True)
    for (wanted, new), (ours, theirs), (surely, theirs_surely) in zip(results, shared, always, strict=True):
        if not isinstance(wanted, Node):
            continue
        if wanted not in pattern.inputs:
            computed[wanted] = new
        changed = (ours ^ theirs) | (surely ^ theirs_surely)
        inputs = tuple(part for part in changed if isinstance(part, int) and part < len(pattern.inputs))
        if inputs or any(isinstance(part, str) for part in changed):
            yield MemoryChange((wanted, *(node for node in reads if node.target in changed)), inputs)
    for first, second in combinations(computed, 2):
        if pattern.share(first, second) is not replacement.share(computed[first], computed[second]):
            yield MemoryChange((first, second))


def _shared_inside(pattern: Template) -> Iterator[tuple[Node, Node]]:
    """Yield each result with the values inside of the pattern that may share memory with it."""
    calls = [node for node in pattern.calls() if node.op != "get_attr"]
    for wanted in dict.fromkeys(result for result in pattern.results if result in calls):
        memory = pattern.memory_of(wanted).intersection(calls)
        for inner in calls:
            if inner not in pattern.results and not memory.isdisjoint(pattern.memory_of(inner)):
                yield wanted, inner


def _use_instead(user: Node, old: Node, new: Argument) -> None:
    if new.__class__ is Node:
        user.replace_input_with(old, new)
        return

    def swap(used: Node) -> Argument:
        return new if used is old else used

    user.args = cast("tuple[Argument, ...]", map_arg(user.args, swap))
    user.kwargs = cast("dict[str, Argument]", map_arg(user.kwargs, swap))


def notes_of(node: Node) -> dict[str, Any]:
    """Return copies of the notes that hold for what takes the place of a node, too."""
    return {key: value for key, value in copy_meta(node.meta).items() if key not in RESULTS_OF_ANALYSES}


def _shared_notes(nodes: tuple[Node, ...]) -> dict[str, Any]:
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

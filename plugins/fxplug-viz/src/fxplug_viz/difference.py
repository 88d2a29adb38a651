"""What became of a graph: its nodes and those of another one, matched by where in the program they come from."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from fxplug.analyze import align
from fxplug.execute import fetch_path
from fxplug.ir import Node, iterate_leaves, qualified_name
from fxplug_viz.dot import parts_of
from fxplug_viz.labels import argument_row, counted, is_missing, parameter_text, target_text, value_text
from fxplug_viz.relations import related_pairs

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from fxplug.execute import GraphModule
    from fxplug.ir import Graph, Origin

__all__ = ["ChangeKind", "GraphDifference", "NodeChange", "diff"]

ChangeKind = Literal["same", "changed", "moved", "fused", "added", "removed"]
"""What became of a node. ``"fused"``: several nodes became one. ``"moved"``: nothing but its place changed."""


@dataclass(frozen=True)
class NodeChange:
    """What became of nodes."""

    kind: ChangeKind
    before: tuple[Node, ...]
    """Nodes of the first graph; none for what was added, several for what was fused."""
    after: Node | None
    """The node of the second graph; None for what was removed."""
    details: tuple[str, ...] = ()
    """What is different, and who made it so."""


@dataclass(frozen=True)
class GraphDifference:
    """Two graphs, node by node."""

    first: Graph
    second: Graph
    first_module: GraphModule | None
    second_module: GraphModule | None
    changes: tuple[NodeChange, ...]
    """Every node of both graphs in one entry: in the order of the second graph, removed ones where they stood."""

    def of_kind(self, kind: ChangeKind) -> tuple[NodeChange, ...]:
        """Return the changes of a kind."""
        return tuple(change for change in self.changes if change.kind == kind)

    def counts(self) -> dict[ChangeKind, int]:
        """Return how many changes there are of each kind."""
        counted = Counter(change.kind for change in self.changes)
        kinds: tuple[ChangeKind, ...] = get_args(ChangeKind)
        return {kind: counted[kind] for kind in kinds}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is different."""
        return all(change.kind == "same" for change in self.changes)

    @property
    def is_unrelated(self) -> bool:
        """Whether both graphs have nodes, and none of one belongs to any of the other."""
        kinds = {change.kind for change in self.changes}
        return kinds == {"added", "removed"}

    def summary(self) -> str:
        """Return in a line how many nodes there were and are, and what became of them."""
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts().items() if count)
        before, after = (counted(len(graph.nodes), "node") for graph in (self.first, self.second))
        head = f"{before} -> {after}: {counts or 'nothing to compare'}"
        return f"{head}; the two programs have nothing in common" if self.is_unrelated else head

    def text(self) -> str:
        """Return the difference for people: a line of numbers, and a line for each node that is not the same."""
        return "\n".join(
            [self.summary(), *(self.line(change) for change in self.changes if change.kind != "same")]
        )

    def line(self, change: NodeChange) -> str:
        """Return a change for people, in one line."""
        before = " + ".join(named(node, self.first_module) for node in change.before)
        after = "" if change.after is None else named(change.after, self.second_module)
        arrow = " -> " if before and after and change.kind in {"fused", "changed"} and before != after else ""
        middle = f"{before}{arrow}{after}" if arrow else before or after
        return f"{change.kind:<8} {middle}" + (f": {'; '.join(change.details)}" if change.details else "")


def named(node: Node, module: GraphModule | None) -> str:
    """Return name and target of a node."""
    target = target_text(node, module)
    if node.op == "call_module" and module is not None and not is_missing(node, module):
        return f"{node.name} ({type(fetch_path(module, node.target)).__name__})"
    return node.name if target == node.name else f"{node.name} ({target})"


def diff(first: GraphModule | Graph, second: GraphModule | Graph) -> GraphDifference:
    """Return what became of the nodes of a graph in another one, which passes made of it or of the same program.

    Nodes belong together where they come from the same lines and modules, or have the same name and target and stand
    between nodes that belong together. A node that has the origins of several others was fused from them. What belongs
    to nothing was removed or added: of two unrelated programs, everything.

    Args:
        first: The graph as it was.
        second: The graph as it is.

    Raises:
        InvalidArgumentError: Something else than a graph was given.

    Example:
        ::

            result = fxplug.optimize(model, inputs)
            print(fxplug_viz.diff(fxplug.symbolic_trace(model), result.graph_module).text())
    """
    first_module, before = parts_of(first)
    second_module, after = parts_of(second)
    return _Matching(before, after, first_module, second_module).difference()


class _Places:
    """Where nodes came from. Graphs of one process share code objects; what a file holds is known by its lines."""

    def __init__(self, graph: Graph) -> None:
        self._lines: dict[Origin, Hashable] = {}
        self._nodes: dict[Hashable, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            keys = [key for origin in node.origins for key in self._keys(origin)]
            for key in dict.fromkeys(keys):
                self._nodes[key].append(node)

    def _keys(self, origin: Origin) -> list[Hashable]:
        if origin.code is None:
            return []
        path = origin.module.path if origin.module is not None else ""
        if origin not in self._lines:
            self._lines[origin] = tuple(origin.frames())
        lines = (self._lines[origin], path)
        return [(id(origin.code), origin.offset, lines), lines]

    def nodes_at(self, origin: Origin) -> list[Node]:
        """Return the nodes that came from the place of an origin."""
        return next((self._nodes[key] for key in self._keys(origin) if key in self._nodes), [])

    def are_shared(self, first: Node, second: Node) -> bool:
        """Return whether two nodes have an origin in common."""
        known = {key for origin in first.origins for key in self._keys(origin)}
        return any(key in known for origin in second.origins for key in self._keys(origin))


class _Matching:
    def __init__(
        self, first: Graph, second: Graph, first_module: GraphModule | None, second_module: GraphModule | None
    ) -> None:
        self.first, self.second = first, second
        self.first_module, self.second_module = first_module, second_module
        self.places = _Places(first)
        self.before: dict[Node, tuple[Node, ...]] = {}
        self._match()
        self.after = {old: new for new, olds in self.before.items() for old in olds}
        self.moved = self._find_moved()

    def _match(self) -> None:
        partners = related_pairs(align(self.first, self.second).partner, self.places.are_shared)
        order = {node: index for index, node in enumerate(self.first.nodes)}
        taken = set(partners.values())
        for node in self.second.nodes:
            partner = partners.get(node)
            members = [] if partner is None else [partner]
            if len(node.origins) > 1 or partner is None:
                for origin in node.origins:
                    others = [other for other in self.places.nodes_at(origin) if other not in members]
                    is_known = any(other in members for other in self.places.nodes_at(origin))
                    free = [other for other in others if other not in taken]
                    if free and not is_known:
                        members.append(free[0])
                        taken.add(free[0])
            self.before[node] = tuple(sorted(members, key=order.__getitem__))

    def _find_moved(self) -> set[Node]:
        """Return the fewest nodes of the second graph without which the others stand in the order of the first."""
        order = {node: index for index, node in enumerate(self.first.nodes)}
        pairs = [
            (node, order[olds[-1]]) for node, olds in self.before.items() if olds and node.op != "placeholder"
        ]
        tails: list[int] = []
        lengths: list[int] = []
        for _, place in pairs:
            length = bisect_left(tails, place)
            tails[length : length + 1] = [place]
            lengths.append(length)
        moved: set[Node] = set()
        wanted, limit = len(tails) - 1, len(order)
        for (node, place), length in zip(reversed(pairs), reversed(lengths), strict=True):
            if length == wanted and place < limit:
                wanted, limit = wanted - 1, place
            else:
                moved.add(node)
        return moved

    def difference(self) -> GraphDifference:
        left = [node for node in self.first.nodes if node not in self.after]
        waiting: dict[Node | None, list[Node]] = defaultdict(list)
        anchor: Node | None = None
        gone = set(left)
        for node in self.first.nodes:
            if node in gone:
                waiting[anchor].append(node)
            else:
                anchor = self.after[node]
        changes: list[NodeChange] = [self._removed(node) for node in waiting[None]]
        for node in self.second.nodes:
            changes.append(self._change(node))
            changes += [self._removed(old) for old in waiting[node]]
        return GraphDifference(self.first, self.second, self.first_module, self.second_module, tuple(changes))

    def _removed(self, node: Node) -> NodeChange:
        return NodeChange("removed", (node,), None)

    def _change(self, node: Node) -> NodeChange:
        olds = self.before[node]
        makers = _makers(node, olds)
        if not olds:
            sources = [other.name for origin in node.origins for other in self.places.nodes_at(origin)]
            origin = [f"from {', '.join(dict.fromkeys(sources))}"] if sources else []
            return NodeChange("added", (), node, (*origin, *makers))
        details = self._differences(olds, node)
        if len(olds) > 1:
            return NodeChange("fused", olds, node, (*details, *makers))
        if details:
            moved = ["moved"] * (node in self.moved)
            return NodeChange("changed", olds, node, (*details, *moved, *makers))
        return NodeChange("moved" if node in self.moved else "same", olds, node)

    def _differences(self, olds: tuple[Node, ...], node: Node) -> list[str]:
        old, last = olds[0], olds[-1]
        found: list[str] = []
        for what, before, after in (
            ("opcode", old.op, node.op),
            ("target", _target(old), _target(node)),
            ("class", _class(old, self.first_module), _class(node, self.second_module)),
            ("parameters", parameter_text(old, self.first_module), parameter_text(node, self.second_module)),
            ("value", value_text(last), value_text(node)),
        ):
            # What only one of the two knows is no difference: shapes need not have been propagated in both.
            if before != after and (what in {"opcode", "target"} or (before and after)):
                found.append(f"{what} {before} -> {after}")
        arguments = self._argument_difference(olds, node)
        return [*found, arguments] if arguments else found

    def _argument_difference(self, olds: tuple[Node, ...], node: Node) -> str:
        ours = list(iterate_leaves((olds[0].args, olds[0].kwargs)))
        theirs = list(iterate_leaves((node.args, node.kwargs)))
        if len(ours) != len(theirs) or list(olds[0].kwargs) != list(node.kwargs):
            return f"arguments {_arguments(olds[0])} -> {_arguments(node)}"
        for mine, other in zip(ours, theirs, strict=True):
            if not self._is_same_argument(mine, other):
                return f"argument {_leaf(mine)} -> {_leaf(other)}"
        return ""

    def _is_same_argument(self, mine: Any, other: Any) -> bool:
        if isinstance(mine, Node) and isinstance(other, Node):
            return mine in self.before.get(other, ())
        return mine is other or (type(mine) is type(other) and repr(mine) == repr(other))


def _makers(node: Node, olds: Iterable[Node]) -> list[str]:
    known = {entry for old in olds for entry in old.history}
    names = [str(entry) for entry in node.history if entry not in known]
    return [f"by {', '.join(names)}"] if names else []


def _target(node: Node) -> str:
    return node.target if isinstance(node.target, str) else qualified_name(node.target)


def _class(node: Node, module: GraphModule | None) -> str:
    if node.op != "call_module" or module is None or is_missing(node, module):
        return ""
    return type(fetch_path(module, node.target)).__name__


def _arguments(node: Node) -> str:
    return argument_row(node) or f"({', '.join(f'%{used.name}' for used in node.all_input_nodes)})"


def _leaf(value: Any) -> str:
    return f"%{value.name}" if isinstance(value, Node) else repr(value)

"""Why a place of a graph is like a pattern, or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fxplug.errors import PatternError
from fxplug.rewrite.sweep import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.execute import GraphModule
    from fxplug.ir import Graph, Node
    from fxplug.rewrite.matcher import InternalMatch

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """Whether a pattern matches where it ends with a node, and why not."""

    match: InternalMatch | None
    """The place, None where there is none."""
    reasons: tuple[str, ...]
    """What stands against it: one sentence for each order of arguments, and each choice of nodes, that was tried."""

    def __bool__(self) -> bool:
        return self.match is not None

    def __str__(self) -> str:
        if self.match is not None:
            names = ", ".join(repr(node.name) for node in self.match.members)
            return f"The pattern matches {names}."
        return "\n".join(self.reasons)


def explain(pattern: Pattern | Callable[..., Any] | Graph | GraphModule, node: Node) -> Explanation:
    """Say whether a pattern matches where its result is computed by `node`, and what stands against it.

    Args:
        pattern: What is searched for.
        node: A node of a graph that belongs to a module; nothing is changed.

    Raises:
        PatternError: The pattern cannot be searched for, or the node stands in no graph.

    Example:
        ::

            print(fxplug.rewrite.explain(lambda x: torch.relu(x) + 1, node))
    """
    wanted = pattern if isinstance(pattern, Pattern) else Pattern(pattern)
    graph = cast("Graph", node.graph)
    if node not in graph.nodes:
        raise PatternError(f"Cannot explain node {node.name!r}: it does not stand in its graph any more.")
    reasons: list[str] = []
    search = wanted.matcher.search(graph, reasons=reasons)
    if node not in search.candidates():
        reasons.clear()
        search.refuse_callee(node)
        return Explanation(None, tuple(reasons))
    reasons.clear()
    match = next(search.matches_at(node), None)
    return Explanation(match, () if match is not None else tuple(dict.fromkeys(reasons)))

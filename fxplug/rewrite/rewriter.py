"""Replacing the places of a graph that are like a pattern."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fxplug.errors import InvalidArgumentError, PatternError
from fxplug.execute import GraphModule
from fxplug.ir.collector import paused_collection
from fxplug.rewrite.edits import Editor, ReplacedPatterns
from fxplug.rewrite.matcher import InternalMatch, SubgraphMatcher
from fxplug.rewrite.pattern import Template
from fxplug.rewrite.questions import asked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fxplug.ir import Graph, Node

__all__ = ["Match", "replace_pattern", "replace_pattern_with_filters"]


class Match(NamedTuple):
    """One place that was replaced."""

    anchor: Node
    """The node of the pattern from which the match was found."""
    nodes_map: dict[Node, Any]
    """Node of the pattern -> node of the graph that it stood for, or the plain value for a placeholder."""


def replace_pattern(
    gm: GraphModule,
    pattern: Callable[..., Any] | Graph | GraphModule,
    replacement: Callable[..., Any] | Graph | GraphModule,
) -> list[Match]:
    """Replace every place of a graph that is like `pattern` by `replacement`.

    See `replace_pattern_with_filters`, which this is the short form of.

    Args:
        gm: Changed in place.
        pattern: What to search for. The return value says what may be used outside.
        replacement: What to put there: the same parameters in the same order, as many results.

    Returns:
        The places, in order; empty when there was none.

    Raises:
        PatternError: Pattern and replacement cannot be used together. Nothing was changed.

    Example:
        ::

            def pattern(x, y):
                return torch.relu(x + y)

            def replacement(x, y):
                return torch.clamp(x + y, min=0)

            fxplug.replace_pattern(graph_module, pattern, replacement)
    """
    with paused_collection():  # Until the places are told in the shorter form, and the longer one is gone.
        replaced = replace_pattern_with_filters(gm, pattern, replacement)
        return [Match(place.anchor, place.nodes_map) for place in replaced]


def replace_pattern_with_filters(
    gm: GraphModule,
    pattern: Callable[..., Any] | Graph | GraphModule,
    replacement: Callable[..., Any] | Graph | GraphModule | None = None,
    match_filters: Sequence[Callable[[InternalMatch, Graph, Graph], bool]] | None = None,
    ignore_literals: bool = False,  # noqa: FBT001, FBT002
    replacement_callback: Callable[[InternalMatch, Graph, Graph], Any] | None = None,
    node_name_match: str = "",
) -> list[ReplacedPatterns]:
    """Replace the places of a graph that are like `pattern` and pass the filters.

    What a place that is like the pattern is, `SubgraphMatcher` says. A place is left alone when the replacement could
    not be put there without changing the order of effects, for example of a write in place and a read, or when it
    would return an input itself of which later nodes expect a copy that they may write to.

    The new nodes lie in the region of the old ones, and take over their origins and those of their notes that still
    hold. Parameters and submodules of the replacement are copied to free paths of `gm`, unless the pattern names
    the same path: then it is that of `gm`. Submodules that only replaced nodes used are removed when the
    replacement is a module.

    Args:
        gm: Changed in place.
        pattern: What to search for.
        replacement: What to put there. Parameters beyond those of the pattern need defaults.
        match_filters: Called with match, graph and graph of the pattern; all must return True.
        ignore_literals: Whether any plain value matches a plain value of the pattern.
        replacement_callback: Called with match, graph and graph of the pattern, before anything is changed; returns
            what to put there. Wins over `replacement`.
        node_name_match: Nodes whose name contains this text match the anchors whatever they call.

    Returns:
        The places, in order.

    Raises:
        PatternError: Pattern and replacement cannot be used together. Nothing was changed.
    """
    if not isinstance(gm, GraphModule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(
            f"Cannot replace a pattern in a {type(gm).__module__}.{type(gm).__qualname__}: pass a fxplug.GraphModule, "
            "such as fxplug.symbolic_trace(...) returns."
        )
    if replacement is None and replacement_callback is None:
        raise PatternError(
            "Cannot replace the pattern: there is no replacement. Pass replacement or replacement_callback."
        )
    with paused_collection():  # What is known about the places is gone before the collector may look at it.
        return _replace(
            gm,
            pattern,
            replacement,
            tuple(match_filters or ()),
            ignore_literals,
            replacement_callback,
            node_name_match,
        )


def _replace(
    gm: GraphModule,
    pattern: Callable[..., Any] | Graph | GraphModule,
    replacement: Callable[..., Any] | Graph | GraphModule | None,
    filters: tuple[Callable[[InternalMatch, Graph, Graph], bool], ...],
    ignore_literals: bool,  # noqa: FBT001
    replacement_callback: Callable[[InternalMatch, Graph, Graph], Any] | None,
    node_name_match: str,
) -> list[ReplacedPatterns]:
    wanted = Template.of(pattern, "pattern")
    matcher = SubgraphMatcher(wanted, ignore_literals=ignore_literals)
    editor = Editor(gm)
    common = editor.prepare(wanted, replacement) if replacement is not None else None

    def accepts(match: InternalMatch) -> bool:
        chosen = common
        if filters or replacement_callback is not None:
            given, node = (match, gm.graph, wanted.graph), match.members[-1]
            if not all(asked("filter", wants, given, node) for wants in filters):
                return False
            if replacement_callback is not None:
                chosen = editor.prepare(wanted, asked("callback", replacement_callback, given, node))
        return chosen is not None and editor.plan(match, chosen)

    plan = accepts
    if common is not None and not filters and replacement_callback is None:
        plan = partial(editor.plan, replacement=common)
    for _ in matcher.find(gm.graph, node_name_match=node_name_match, accepts=plan):
        pass
    return editor.apply()

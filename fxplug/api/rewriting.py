"""Replacing patterns, captured with whatever the installed plugins have to say about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.api.tracing import trace_symbolically
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.plugins import default_manager
from fxplug.rewrite import replace_pattern as replace_in_graph
from fxplug.rewrite.pattern import drop_checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.plugins import PluginManager
    from fxplug.rewrite import Match

__all__ = ["replace_pattern"]


def replace_pattern(
    gm: GraphModule,
    pattern: Callable[..., Any] | Graph | GraphModule,
    replacement: Callable[..., Any] | Graph | GraphModule,
    *,
    manager: PluginManager | None = None,
) -> list[Match]:
    """Replace every place of a graph that is like `pattern` by `replacement`.

    Functions and modules are captured as `symbolic_trace` captures the program, so that what is a leaf in one is a
    leaf in the other. `fxplug.rewrite.replace_pattern_with_filters` says what a match is, where a replacement is
    put, and offers conditions.

    Args:
        gm: Changed in place.
        pattern: What to search for. Its parameters stand for any values; what it returns may be used elsewhere.
        replacement: What to put there: the same parameters in the same order, as many results.
        manager: The plugins that take part in captures; by default those that are installed and selected.

    Returns:
        The places, in the order of the graph; empty when there was none.

    Raises:
        PatternError: Pattern and replacement cannot be used together. Nothing was changed.
        TraceError: One of them cannot be captured. Nothing was changed.

    Example:
        ::

            import fxplug as fx

            def pattern(x, y):
                return torch.relu(x + y)

            def replacement(x, y):
                return torch.clamp(x + y, min=0)

            fx.replace_pattern(graph_module, pattern, replacement)
    """
    wanted = _captured(pattern, manager)
    if wanted is not pattern:
        drop_checks(wanted if isinstance(wanted, Graph) else wanted.graph)
    return replace_in_graph(gm, wanted, _captured(replacement, manager))


def _captured(program: Any, manager: PluginManager | None) -> Any:
    if isinstance(program, (Graph, GraphModule)) or not callable(program):
        return program
    plugins = default_manager() if manager is None else manager
    # The parameters stand for any values.
    module = trace_symbolically(program, None, plugins, takes_defaults=False)
    # A function is no module: what a pattern finds there is not superfluous because of it.
    return module if isinstance(program, nn.Module) else module.graph

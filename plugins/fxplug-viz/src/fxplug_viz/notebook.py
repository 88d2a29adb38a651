"""Pictures for notebooks, and for whoever asks fxplug to represent a module."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from fxplug_viz.dot import dot_text
from fxplug_viz.rendering import render
from fxplug_viz.tree import tree_text

if TYPE_CHECKING:
    from fxplug.execute import GraphModule

__all__ = ["represent"]

_MOST_NODES = 2000
"""A cell of a notebook is no place for more."""


def represent(graph_module: GraphModule, format: str) -> str | bytes | None:  # noqa: A002 - as in hooks
    """Return a module as DOT text, picture or page; None for other formats.

    Raises:
        DrawingError: Graphviz is missing or failed.
    """
    if format == "dot":
        return dot_text(graph_module)
    if format == "svg":
        return render(dot_text(graph_module), "svg").decode("utf-8")
    if format == "png":
        return render(dot_text(graph_module), "png")
    if format == "pdf":
        return render(dot_text(graph_module), "pdf")
    return _page(graph_module) if format == "html" else None


def _page(module: GraphModule) -> str:
    if len(module.graph.nodes) > _MOST_NODES:
        content = f"<pre>{html.escape(tree_text(module))}</pre>"
    else:
        picture = render(dot_text(module), "svg").decode("utf-8")
        # A page has no place for the declarations in front.
        content = picture[picture.index("<svg") :]
    return f'<div style="overflow: auto; max-height: 40em; background: white; color: black">{content}</div>'

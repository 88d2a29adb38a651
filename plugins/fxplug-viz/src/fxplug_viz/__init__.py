"""Pictures of fxplug graphs: made by Graphviz, as text, and as pages for a browser."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fxplug_viz.difference import GraphDifference, NodeChange, diff
    from fxplug_viz.difference_picture import diff_dot_text, draw_diff
    from fxplug_viz.dot import dot_text
    from fxplug_viz.drawer import GraphDrawer
    from fxplug_viz.drawing import draw
    from fxplug_viz.errors import DrawingError
    from fxplug_viz.options import DrawOptions
    from fxplug_viz.pass_steps import PassStep, PassSteps, view_diff
    from fxplug_viz.tree import rich_tree, tree_text
    from fxplug_viz.viewer import view
    from fxplug_viz.viewer_overlays import Overlay

# Loaded when they are first used: only pictures need the package graphviz, and only pages Jinja.
_HOMES = {
    "DrawOptions": "options",
    "DrawingError": "errors",
    "GraphDifference": "difference",
    "GraphDrawer": "drawer",
    "NodeChange": "difference",
    "Overlay": "viewer_overlays",
    "PassStep": "pass_steps",
    "PassSteps": "pass_steps",
    "diff": "difference",
    "diff_dot_text": "difference_picture",
    "dot_text": "dot",
    "draw": "drawing",
    "draw_diff": "difference_picture",
    "rich_tree": "tree",
    "tree_text": "tree",
    "view": "viewer",
    "view_diff": "pass_steps",
}

__all__ = [
    "DrawOptions",
    "DrawingError",
    "GraphDifference",
    "GraphDrawer",
    "NodeChange",
    "Overlay",
    "PassStep",
    "PassSteps",
    "diff",
    "diff_dot_text",
    "dot_text",
    "draw",
    "draw_diff",
    "rich_tree",
    "tree_text",
    "view",
    "view_diff",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

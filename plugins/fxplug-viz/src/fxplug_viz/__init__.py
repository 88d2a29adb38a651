"""Pictures of fxplug graphs, as DOT text and as pages for a browser."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fxplug_viz.dot import dot_text

if TYPE_CHECKING:
    from fxplug_viz.viewer import view
    from fxplug_viz.viewer_overlays import Overlay

__all__ = ["Overlay", "dot_text", "view"]

# The viewer needs Jinja, which nothing else does.
_HOMES = {"Overlay": "fxplug_viz.viewer_overlays", "view": "fxplug_viz.viewer"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fxplug_viz' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

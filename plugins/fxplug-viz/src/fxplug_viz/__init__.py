"""Pictures of fxplug graphs, as DOT text."""

from __future__ import annotations

from fxplug_viz.dot import dot_text

__all__ = ["dot_text"]

"""Pictures of fxplug graphs, made by Graphviz, and as text."""

from __future__ import annotations

from fxplug_viz.dot import dot_text

__all__ = ["dot_text"]

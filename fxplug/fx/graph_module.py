"""The module whose forward is a graph."""

from __future__ import annotations

from fxplug.execute import GraphModule

__all__ = ["GraphModule"]

"""Finding the places of a graph that are like a pattern."""

from __future__ import annotations

from fxplug.rewrite import InternalMatch, SubgraphMatcher

__all__ = ["InternalMatch", "SubgraphMatcher"]

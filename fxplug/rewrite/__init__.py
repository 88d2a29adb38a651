"""Finding patterns in graphs and replacing them."""

from __future__ import annotations

from fxplug.rewrite.edits import ReplacedPatterns
from fxplug.rewrite.matcher import InternalMatch, SubgraphMatcher
from fxplug.rewrite.rewriter import Match, replace_pattern, replace_pattern_with_filters

__all__ = [
    "InternalMatch",
    "Match",
    "ReplacedPatterns",
    "SubgraphMatcher",
    "replace_pattern",
    "replace_pattern_with_filters",
]

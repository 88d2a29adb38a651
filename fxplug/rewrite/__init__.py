"""Finding patterns in graphs and replacing them."""

from __future__ import annotations

from fxplug.rewrite.decomposition import DecompositionRecord, decompose
from fxplug.rewrite.decompositions import BUILTIN_DECOMPOSITIONS
from fxplug.rewrite.edits import ReplacedPatterns
from fxplug.rewrite.matcher import InternalMatch, SubgraphMatcher
from fxplug.rewrite.rewriter import Match, replace_pattern, replace_pattern_with_filters

__all__ = [
    "BUILTIN_DECOMPOSITIONS",
    "DecompositionRecord",
    "InternalMatch",
    "Match",
    "ReplacedPatterns",
    "SubgraphMatcher",
    "decompose",
    "replace_pattern",
    "replace_pattern_with_filters",
]

"""Finding patterns in graphs and replacing them."""

from __future__ import annotations

from fxplug.rewrite.aten import decompose_to_aten
from fxplug.rewrite.aten_tables import aten_decompositions, core_decompositions
from fxplug.rewrite.decomposition import DecompositionRecord, decompose
from fxplug.rewrite.decompositions import BUILTIN_DECOMPOSITIONS
from fxplug.rewrite.edits import ReplacedPatterns
from fxplug.rewrite.elements import AnyOf, Const, Module, Wildcard
from fxplug.rewrite.explanation import Explanation, explain
from fxplug.rewrite.limits import Rewrite, RewriteLimit, allows_rewrite
from fxplug.rewrite.matcher import InternalMatch, SubgraphMatcher
from fxplug.rewrite.rewriter import Match, replace_pattern, replace_pattern_with_filters
from fxplug.rewrite.sweep import Pattern, Rewriter

__all__ = [
    "BUILTIN_DECOMPOSITIONS",
    "AnyOf",
    "Const",
    "DecompositionRecord",
    "Explanation",
    "InternalMatch",
    "Match",
    "Module",
    "Pattern",
    "ReplacedPatterns",
    "Rewrite",
    "RewriteLimit",
    "Rewriter",
    "SubgraphMatcher",
    "Wildcard",
    "allows_rewrite",
    "aten_decompositions",
    "core_decompositions",
    "decompose",
    "decompose_to_aten",
    "explain",
    "replace_pattern",
    "replace_pattern_with_filters",
]

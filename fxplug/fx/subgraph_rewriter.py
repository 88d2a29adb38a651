"""Replacing patterns."""

from __future__ import annotations

from fxplug.api import replace_pattern
from fxplug.rewrite import Match, ReplacedPatterns, replace_pattern_with_filters

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]

"""Regions: the contexts, such as ``no_grad`` or ``autocast``, inside which a node runs.

A region is an immutable stack, outermost entry first. The empty tuple is the plain surroundings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["PLAIN", "Region", "RegionEntry", "common_depth"]


@dataclass(frozen=True, slots=True)
class RegionEntry:
    """One context that is entered around a node."""

    context: Any
    """A callable that returns a context manager, e.g. ``torch.no_grad``."""
    arguments: tuple[Any, ...] = ()
    """Positional arguments of `context`; immediate values only."""


Region = tuple[RegionEntry, ...]
"""A stack of entries, outermost first."""

PLAIN: Region = ()


def common_depth(first: Region, second: Region) -> int:
    """Return how many outer entries two regions share."""
    depth = 0
    for ours, theirs in zip(first, second, strict=False):
        if ours != theirs:
            break
        depth += 1
    return depth

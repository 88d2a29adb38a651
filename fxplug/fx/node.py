"""The node and its arguments."""

from __future__ import annotations

from fxplug.ir import Argument, Node, Target, map_aggregate, map_arg
from fxplug.semantics import has_side_effect

__all__ = ["Argument", "Node", "Target", "has_side_effect", "map_aggregate", "map_arg"]

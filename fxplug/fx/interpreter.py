"""Running a graph node by node, and rewriting it in that way."""

from __future__ import annotations

from fxplug.capture import Transformer
from fxplug.execute import Interpreter

__all__ = ["Interpreter", "Transformer"]

"""The error of this plugin."""

from __future__ import annotations

from fxplug.errors import FxplugError

__all__ = ["DrawingError"]


class DrawingError(FxplugError, RuntimeError):
    """A picture could not be made: Graphviz is missing, or it failed."""

    code = "FXP-D000"

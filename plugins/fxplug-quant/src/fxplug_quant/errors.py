"""The error of this plugin."""

from __future__ import annotations

from fxplug.errors import FxplugError

__all__ = ["QuantizationError"]


class QuantizationError(FxplugError, RuntimeError):
    """A module could not be quantized, or a quantized one cannot do what was asked of it."""

    code = "FXP-Q000"

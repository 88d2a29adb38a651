"""The errors of this plugin, and those of fxplug that its layers raise."""

from __future__ import annotations

from fxplug.errors import ConfigError, FxplugError, UnknownNameError

__all__ = ["ConfigError", "QuantizationError", "UnknownNameError"]


class QuantizationError(FxplugError, RuntimeError):
    """A module could not be quantized, or a quantized one cannot do what was asked of it."""

    code = "FXP-Q000"

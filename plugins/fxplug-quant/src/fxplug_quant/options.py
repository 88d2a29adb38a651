"""The options of the passes, as configuration files and keyword arguments give them."""

from __future__ import annotations

from dataclasses import dataclass

from fxplug.errors import ConfigError

__all__ = ["DynamicInt8Options"]


@dataclass(frozen=True)
class DynamicInt8Options:
    """Options of ``quant:dynamic-int8``.

    Raises:
        ConfigError: A value is out of range.
    """

    min_features: int = 1
    """Layers with fewer input or output features stay float: where products are small, rounding the input
    costs more than they save."""

    def __post_init__(self) -> None:
        if self.min_features < 1:
            raise ConfigError(
                f"Cannot quantize with min_features={self.min_features}: every layer has at least 1 feature. Give 1 to "
                f"quantize all layers, or a larger number to leave small ones in float."
            )

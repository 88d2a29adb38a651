"""The options of the passes, as configuration files and keyword arguments give them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fxplug.errors import ConfigError
from fxplug_quant.config import QuantConfig

__all__ = [
    "CorrectBiasOptions",
    "DynamicInt8Options",
    "SmoothOptions",
    "StaticInt8Options",
    "WeightInt4Options",
    "WeightInt8Options",
]


@dataclass(frozen=True)
class DynamicInt8Options:
    """Options of ``quant:dynamic-int8``.

    Raises:
        ConfigError: A value is out of range.
    """

    min_features: int = 1
    """Layers with fewer input or output features stay float: where products are small, rounding the input
    costs more than they save."""
    per_channel: bool = True
    """Whether each output feature has a scale of its own for its weights; one for all is less exact and, with few rows,
    some per cent faster."""

    def __post_init__(self) -> None:
        if self.min_features < 1:
            raise ConfigError(
                f"Cannot quantize with min_features={self.min_features}: every layer has at least 1 feature. Give 1 to "
                f"quantize all layers, or a larger number to leave small ones in float."
            )


@dataclass(frozen=True)
class StaticInt8Options:
    """Options of ``quant:static-int8``.

    Raises:
        ConfigError: A value is out of range.
    """

    engine: str = "x86"
    """``"x86"`` takes the faster one of torch's int8 operators for each call, ``"onednn"``, ``"fbgemm"`` and
    ``"qnnpack"`` always the same. Convolutions are computed by oneDNN."""
    observer: str = "histogram"
    """What chooses the range of activations: ``"min-max"``, ``"moving-average"``, ``"histogram"`` or ``"percentile"``,
    the second and the last with a number if you like: ``"percentile:99.9"``."""
    per_channel: bool = True
    """Whether each output feature or channel has a scale of its own for its weights."""
    batches: int = 0
    """How many batches of the calibration data are used at most; 0: all."""
    rules: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """What differs for some calls: tables with ``path``, ``type``, ``function``, ``line`` or ``node``, and ``mode`` or
    ``observer``; the last word last."""

    def __post_init__(self) -> None:
        self.config()

    def config(self) -> QuantConfig:
        """Return what is wished."""
        return QuantConfig.of(
            {
                "engine": self.engine,
                "observer": self.observer,
                "per_channel": self.per_channel,
                "rules": tuple(self.rules),
            }
        )


@dataclass(frozen=True)
class WeightInt8Options:
    """Options of ``quant:weight-int8``."""

    rules: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """As for ``quant:static-int8``."""

    def __post_init__(self) -> None:
        self.config()

    def config(self) -> QuantConfig:
        """Return what is wished."""
        return QuantConfig.of({"mode": "weight-int8", "rules": tuple(self.rules)})


@dataclass(frozen=True)
class WeightInt4Options:
    """Options of ``quant:weight-int4``.

    Raises:
        ConfigError: A value is out of range.
    """

    group_size: int = 64
    """How many weights of a row share a scale: 32, 64, 128 or 256. Fewer are more exact and take more memory."""
    rules: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """As for ``quant:static-int8``."""

    def __post_init__(self) -> None:
        self.config()

    def config(self) -> QuantConfig:
        """Return what is wished."""
        return QuantConfig.of(
            {"mode": "weight-int4", "group_size": self.group_size, "rules": tuple(self.rules)}
        )


@dataclass(frozen=True)
class SmoothOptions:
    """Options of ``quant:smooth``.

    Raises:
        ConfigError: A value is out of range.
    """

    strength: float = 0.5
    """How much of the differences between channels moves from values into weights: 0 nothing, 1 everything."""
    batches: int = 0
    """How many batches of the calibration data are used at most; 0: all."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise ConfigError(
                f"Cannot smooth with strength={self.strength}: give a number from 0, which leaves values as they are, "
                f"to 1, which leaves all differences to the weights."
            )
        check_batches(self.batches)


@dataclass(frozen=True)
class CorrectBiasOptions:
    """Options of ``quant:correct-bias``.

    Raises:
        ConfigError: A value is out of range.
    """

    per_channel: bool = True
    """Whether the weights are going to have a scale for each output feature or channel, as by default."""
    batches: int = 0
    """How many batches of the calibration data are used at most; 0: all."""

    def __post_init__(self) -> None:
        check_batches(self.batches)


def check_batches(batches: int) -> None:
    """Check a number of batches.

    Raises:
        ConfigError: It is negative.
    """
    if batches < 0:
        raise ConfigError(f"Cannot use batches={batches}: give a number of batches, or 0 for all there are.")

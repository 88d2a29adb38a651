"""The options of the backend, as configuration files and keyword arguments give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fxplug.errors import ConfigError

__all__ = ["OpenVINOOptions", "Precision"]

Precision = Literal["default", "f32", "bf16", "f16"]
"""What OpenVINO computes in; ``"default"`` leaves the choice to it."""


@dataclass(frozen=True)
class OpenVINOOptions:
    """Options of the backend ``openvino``.

    Raises:
        ConfigError: A value is not allowed.
    """

    device: str = "CPU"
    """OpenVINO's name of the device."""
    precision: Precision = "default"
    """Hint for the precision of the computation."""

    def __post_init__(self) -> None:
        if not self.device:
            raise ConfigError(
                "Cannot use device='' for OpenVINO: it names no device. Give one such as 'CPU' or 'GPU.0'."
            )
        if self.precision not in get_args(Precision):
            known = ", ".join(repr(name) for name in get_args(Precision))
            raise ConfigError(
                f"Cannot use precision={self.precision!r} for OpenVINO: it is no precision hint. Use one of {known}."
            )

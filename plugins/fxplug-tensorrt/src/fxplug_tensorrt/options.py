"""The options of the backend, as configuration files and keyword arguments give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from fxplug.errors import ConfigError

__all__ = ["Precision", "TensorRTOptions"]

Precision = Literal["fp32", "fp16", "bf16"]
"""What the engine is to compute in."""


@dataclass(frozen=True)
class TensorRTOptions:
    """Options of the backend ``tensorrt``. They are checked, and will steer the building once there is any.

    Raises:
        ConfigError: A value is not allowed.
    """

    precision: Precision = "fp32"
    """What the engine is to compute in."""
    min_block_size: int = 1
    """Groups of fewer calls are to stay in PyTorch."""

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            known = ", ".join(repr(name) for name in get_args(Precision))
            raise ConfigError(
                f"Cannot use precision={self.precision!r} for TensorRT: it is no precision. Use one of {known}."
            )
        if self.min_block_size < 1:
            raise ConfigError(
                f"Cannot use min_block_size={self.min_block_size} for TensorRT: a group has at least 1 call. Give 1 to "
                f"take every group, or a larger number to leave small ones in PyTorch."
            )

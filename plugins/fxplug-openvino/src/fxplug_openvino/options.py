"""The options of the backend, as configuration files and keyword arguments give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from fxplug.errors import ConfigError

__all__ = ["Hint", "OpenVINOOptions", "Precision"]

Precision = Literal["default", "f32", "bf16", "f16"]
"""What OpenVINO computes in; ``"default"`` leaves the choice to it."""
Hint = Literal["latency", "throughput"]
"""What OpenVINO is tuned for."""


@dataclass(frozen=True)
class OpenVINOOptions:
    """Options of the backend ``openvino``.

    Raises:
        ConfigError: A value is not allowed.
    """

    device: str = "CPU"
    """OpenVINO's name of the device."""
    precision: Precision = "f32"
    """What is computed in. OpenVINO itself chooses bf16 on processors that have it, with errors of a few percent,
    and computes in eight bits on those whose sums saturate."""
    hint: Hint = "latency"
    """Whether one call is to be fast, or many at once."""
    threads: int = 0
    """How many threads run a call; 0 leaves the choice to OpenVINO."""
    dynamic_batch: bool = False
    """Whether the first dimension of all inputs may have any size."""
    cache_dir: str = ""
    """A folder in which OpenVINO keeps compiled models; empty for none."""

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
        if self.hint not in get_args(Hint):
            known = ", ".join(repr(name) for name in get_args(Hint))
            raise ConfigError(f"Cannot use hint={self.hint!r} for OpenVINO: use one of {known}.")
        if self.threads < 0:
            raise ConfigError(
                f"Cannot use threads={self.threads} for OpenVINO: give how many run a call, or 0 to leave it open."
            )

    def properties(self) -> dict[str, Any]:
        """Return OpenVINO's properties of a compiled model."""
        found: dict[str, Any] = {"PERFORMANCE_HINT": self.hint.upper()}
        if self.precision != "default":
            found["INFERENCE_PRECISION_HINT"] = self.precision
        if self.threads:
            found["INFERENCE_NUM_THREADS"] = self.threads
        if self.cache_dir:
            found["CACHE_DIR"] = self.cache_dir
        return found

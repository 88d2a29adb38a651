"""The options of the backend, as configuration files and keyword arguments give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from fxplug.errors import ConfigError

__all__ = ["Precision", "TensorRTOptions"]

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
"""What the engine computes in where the model has float32."""
_COMPUTED_IN = {"fp16": torch.float16, "bf16": torch.bfloat16}
_HIGHEST_LEVEL = 5


@dataclass(frozen=True)
class TensorRTOptions:
    """Options of the backend ``tensorrt``.

    Raises:
        ConfigError: A value is not allowed.
    """

    precision: Precision = "fp32"
    """What the engine computes in where the model has float32; ``"tf32"`` rounds the factors of products."""
    min_block_size: int = 1
    """Groups of fewer calls stay in PyTorch."""
    targets: tuple[str, ...] = ()
    """GPUs that the engine is for, by TensorRT's names, e.g. ``("SM86", "SM120")``; empty for the one at hand."""
    batch_sizes: tuple[int, ...] = ()
    """Smallest, usual and largest size of the first dimension of all inputs; empty for that of the examples."""
    workspace_mib: int = 0
    """The most memory that a layer may take for itself, in MiB; 0 leaves it to TensorRT."""
    optimization_level: int = -1
    """How long TensorRT looks for fast engines, 0 to 5; -1 leaves it to TensorRT."""
    timing_cache: str = ""
    """A file where TensorRT keeps what it measured while it built; empty for none. The RTX edition measures nothing."""
    cuda_graphs: bool = False
    """Whether the launches of an engine are recorded and replayed; TensorRT for RTX only."""
    refit: bool = False
    """Whether engines can be given new weights; needs a GPU while they are built, also for `targets`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        object.__setattr__(self, "batch_sizes", tuple(self.batch_sizes))
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
        self._check_numbers()

    def _check_numbers(self) -> None:
        sizes = self.batch_sizes
        if sizes and (len(sizes) != 3 or not 1 <= sizes[0] <= sizes[1] <= sizes[2]):
            raise ConfigError(
                f"Cannot use batch_sizes={sizes!r} for TensorRT: give the smallest, the usual and the largest size, "
                "such as (1, 8, 32)."
            )
        if self.workspace_mib < 0:
            raise ConfigError(
                f"Cannot use workspace_mib={self.workspace_mib} for TensorRT: give MiB, or 0 to leave it open."
            )
        if not -1 <= self.optimization_level <= _HIGHEST_LEVEL:
            raise ConfigError(
                f"Cannot use optimization_level={self.optimization_level} for TensorRT: give 0 to {_HIGHEST_LEVEL}, or "
                "-1 to leave it open."
            )

    @property
    def computed_in(self) -> torch.dtype:
        """What takes the place of float32 inside of engines."""
        return _COMPUTED_IN.get(self.precision, torch.float32)

"""How far the outputs of a quantized module are from those of the float one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fxplug.ir import map_aggregate
from fxplug_quant.errors import QuantizationError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["OutputComparison", "OutputError", "run_batch"]


@dataclass(frozen=True)
class OutputError:
    """The error of all outputs of all batches together."""

    sqnr: float
    """Signal to quantization noise, in decibels: the greater the better; infinite where nothing differs."""
    cosine: float
    """Cosine of the angle between the outputs: 1 where they point the same way."""
    max_error: float
    """The greatest absolute difference."""

    @property
    def relative_error(self) -> float:
        """The error as a share of the output, both as roots of summed squares: 0.01 is 40 dB."""
        return 10 ** (-self.sqnr / 20)

    def data(self) -> dict[str, float | str]:
        """Return plain values, for JSON, which has no infinity: that is text."""
        values = {"sqnr": self.sqnr, "cosine": self.cosine, "max_error": self.max_error}
        return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def _float_tensors(value: Any) -> list[Tensor]:
    """Return the floating-point tensors in what a module returned, in order."""
    found: list[Tensor] = []

    def take(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            found.append(leaf.detach())
        return leaf

    map_aggregate(value, take)
    return found


class OutputComparison:
    """Adds up what differs, batch after batch."""

    def __init__(self) -> None:
        self._signal = self._noise = self._product = self._found = self._largest = 0.0

    def add(self, expected: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """Compare the outputs for one batch. Where the float module gives no finite number, nothing is compared.

        Raises:
            QuantizationError: They are not as many, or not of the same shapes.
        """
        if [tensor.shape for tensor in expected] != [tensor.shape for tensor in found]:
            raise QuantizationError(
                f"Cannot compare outputs: the float module gives tensors of the shapes "
                f"{[tuple(tensor.shape) for tensor in expected]}, the quantized one "
                f"{[tuple(tensor.shape) for tensor in found]}. Give a module whose outputs have the same shapes at "
                f"every call.",
                code="FXP-Q010",
            )
        for left, right in zip(expected, found, strict=True):
            keep = left.isfinite()
            self._add(left[keep].double(), right[keep].double())

    def _add(self, expected: Tensor, found: Tensor) -> None:
        if not expected.numel():
            return
        difference = found - expected
        self._signal += float(expected.square().sum())
        self._noise += float(difference.square().sum())
        self._product += float((expected * found).sum())
        self._found += float(found.square().sum())
        self._largest = max(self._largest, float(difference.abs().nan_to_num(math.inf).max()))

    def error(self) -> OutputError:
        """Return the error of everything that was added."""
        if not math.isfinite(self._noise):
            return OutputError(-math.inf, 0.0, self._largest)
        if not self._noise:
            return OutputError(math.inf, 1.0, 0.0)
        lengths = math.sqrt(self._signal) * math.sqrt(self._found)
        ratio = self._signal / self._noise
        sqnr = 10 * math.log10(ratio) if ratio else -math.inf
        return OutputError(sqnr, min(1.0, self._product / lengths) if lengths else 0.0, self._largest)


def run_batch(module: torch.nn.Module, inputs: Sequence[Any]) -> list[Tensor]:
    """Return the floating-point outputs of a module, as copies: a program may return memory that it writes later."""
    return [tensor.clone() for tensor in _float_tensors(module(*inputs))]

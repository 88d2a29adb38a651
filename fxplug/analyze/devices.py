"""Devices, as their makers describe them, and how long a program would take on one at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.analyze.cost import CostTable, NodeCost

__all__ = ["BUILTIN_DEVICES", "DeviceRecord", "Estimate", "NodeEstimate", "estimate_time"]


@dataclass(frozen=True)
class DeviceRecord:
    """Describes a device by the figures that bound how fast it can be."""

    name: str
    """Lower-case words joined by hyphens, e.g. ``"acme-npu-2"``."""
    multiply_adds_per_second: Mapping[str, float]
    """Name of a dtype, e.g. ``"float16"`` -> the highest rate, half of what data sheets call operations per second."""
    bytes_per_second: float
    """Bandwidth of its memory."""
    memory_bytes: int
    """Size of its memory."""
    summary: str
    """One line for people."""
    source: str = ""
    """Where the figures come from."""


@dataclass(frozen=True)
class NodeEstimate:
    """The least time that one node takes."""

    cost: NodeCost
    compute_seconds: float
    """Its multiply-adds at the highest rate for its dtype."""
    memory_seconds: float
    """Its bytes at the bandwidth of the memory."""

    @property
    def seconds(self) -> float:
        """The longer of both."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> str:
        """What keeps it from being faster: ``"compute"`` or ``"memory"``."""
        return "compute" if self.compute_seconds > self.memory_seconds else "memory"


@dataclass(frozen=True)
class Estimate:
    """The least time that a program takes on a device: computed from figures of its maker, never measured."""

    device: DeviceRecord
    nodes: tuple[NodeEstimate, ...]
    """One entry for each call, in the order of the graph."""

    @property
    def seconds(self) -> float:
        """The sum over all nodes; what no formula knows counts with its bytes alone."""
        return sum(node.seconds for node in self.nodes)

    @property
    def unknown(self) -> tuple[NodeCost, ...]:
        """The calls that no formula knows."""
        return tuple(node.cost for node in self.nodes if node.cost.multiply_adds is None)

    def __str__(self) -> str:
        """Return the sum in a sentence that says what it is."""
        missing = f"; unknown: {', '.join(node.name for node in self.unknown)}" if self.unknown else ""
        return (
            f"at least {self.seconds * 1e3:.3g} ms on {self.device.name}, estimated from data-sheet figures, not "
            f"measured{missing}"
        )


def estimate_time(costs: CostTable, device: DeviceRecord) -> Estimate:
    """Return the least time for each node: that of its multiply-adds or of its bytes, whichever is longer.

    Calls are taken one after the other, each reading its inputs from memory. A dtype for which the device has no
    figure counts at its lowest rate.

    Args:
        costs: What the nodes cost.
        device: Where they would run.
    """
    rates = device.multiply_adds_per_second
    lowest = min(rates.values())
    return Estimate(
        device,
        tuple(
            NodeEstimate(
                node,
                (node.multiply_adds or 0) / rates.get(node.dtype, lowest),
                node.bytes / device.bytes_per_second,
            )
            for node in costs.nodes
        ),
    )


def _halved(**operations: float) -> dict[str, float]:
    """Return multiply-adds per second for tera-operations per second; a data sheet counts two for each."""
    return {dtype: count * 1e12 / 2 for dtype, count in operations.items()}


BUILTIN_DEVICES: tuple[DeviceRecord, ...] = (
    DeviceRecord(
        "nvidia-a100-sxm-80gb",
        _halved(float64=9.7, float32=19.5, float16=312, bfloat16=312, int8=624),
        2.039e12,
        80 * 10**9,
        "NVIDIA A100, SXM, 80 GB; float32 without TF32, no sparsity.",
        "NVIDIA A100 80GB Tensor Core GPU data sheet, peak figures.",
    ),
    DeviceRecord(
        "nvidia-h200-sxm",
        _halved(float64=34, float32=67, float16=1979 / 2, bfloat16=1979 / 2, int8=3958 / 2),
        4.8e12,
        141 * 10**9,
        "NVIDIA H200, SXM, 141 GB; float32 without TF32, no sparsity (half of the figures with it).",
        "NVIDIA H200 Tensor Core GPU data sheet, peak figures.",
    ),
)
"""The devices that fxplug itself knows, by the published figures of their makers."""

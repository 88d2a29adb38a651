"""What is known about a lowering: coverage, partitions, and why which calls stay behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LoweringReport", "MissingSupport", "NodeSupport", "PartitionReport"]


@dataclass(frozen=True)
class NodeSupport:
    """What backends say about one node."""

    name: str
    target: str
    ok: bool
    """Whether a backend can run it."""
    reason: str
    """Why it stays in PyTorch; also set where a backend could run it, and it is left all the same."""
    source: str
    """The line of the program that made the node; empty when not known."""
    partition: str = ""
    """The partition that runs it; empty where it stays in PyTorch."""


@dataclass(frozen=True)
class PartitionReport:
    """Calls that a backend runs as one."""

    name: str
    """The path of the submodule."""
    backend: str
    nodes: tuple[str, ...]
    compute_nodes: int
    """How many of them compute, instead of reading sizes, taking apart or reshaping."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    transfer_bytes: int | None = None
    """What goes in and out at a call with the example inputs; None when not known."""
    fallback: str = ""
    """Why it runs in PyTorch all the same; empty when the backend runs it, or nothing was built yet."""


@dataclass(frozen=True)
class MissingSupport:
    """What it would change if one more kind of call was supported."""

    target: str
    nodes: tuple[str, ...]
    """The calls of this kind."""
    partitions: int
    """How many partitions there would be."""


@dataclass(frozen=True)
class LoweringReport:
    """What backends can run of a module."""

    backend: str
    nodes: tuple[NodeSupport, ...]
    """One entry per call; inputs, outputs and parameters are not counted."""
    partitions: tuple[PartitionReport, ...] = ()
    missing: tuple[MissingSupport, ...] = ()
    """For every kind of call that no backend supports, what supporting it would change; what merges most is first."""

    @property
    def coverage(self) -> float:
        """Share of the calls that a backend supports, from 0 to 1."""
        return sum(node.ok for node in self.nodes) / len(self.nodes) if self.nodes else 1.0

    @property
    def unsupported(self) -> tuple[NodeSupport, ...]:
        """The calls that no backend supports."""
        return tuple(node for node in self.nodes if not node.ok)

    @property
    def eager(self) -> tuple[NodeSupport, ...]:
        """The calls that run in PyTorch: what is not supported, left, or could not be built."""
        failed = {partition.name for partition in self.partitions if partition.fallback}
        return tuple(node for node in self.nodes if not node.partition or node.partition in failed)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        supported = len(self.nodes) - len(self.unsupported)
        yield f"{self.backend}: {supported} of {len(self.nodes)} calls supported ({self.coverage:.0%})"
        yield f"partitions: {len(self.partitions)}"
        for part in self.partitions:
            moved = "" if part.transfer_bytes is None else f", {part.transfer_bytes} bytes in and out"
            failed = f"; stays in PyTorch: {part.fallback}" if part.fallback else ""
            yield (
                f"  {part.name} ({part.backend}): {len(part.nodes)} calls, of which {part.compute_nodes} compute{moved}"
                f"{failed}"
            )
        stays = [node for node in self.nodes if not node.partition]
        if stays:
            yield f"in PyTorch: {len(stays)}"
        for node in stays:
            at = f" at {node.source}" if node.source else ""
            yield f"  {node.name} ({node.target}){at}: {node.reason or 'no reason given'}"
        for entry in self.missing:
            if entry.partitions < len(self.partitions):
                yield f"with {entry.target} supported: {entry.partitions} partitions"

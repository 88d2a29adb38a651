"""Handing a module to a backend, with a report that says what it can run and why the rest stays behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.errors import BackendError, LoweringError
from fxplug.lower.backend import Backend, LoweringContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from fxplug.execute import GraphModule

__all__ = ["Lowered", "LoweringReport", "NodeSupport", "lower", "plan_lowering"]


@dataclass(frozen=True)
class NodeSupport:
    """What a backend says about one node."""

    name: str
    target: str
    ok: bool
    reason: str
    source: str
    """The line of the program that made the node; empty when not known."""


@dataclass(frozen=True)
class LoweringReport:
    """What a backend can run of a module."""

    backend: str
    nodes: tuple[NodeSupport, ...]
    """One entry per call; inputs, outputs and parameters are not counted."""

    @property
    def coverage(self) -> float:
        """Share of the calls that the backend supports, from 0 to 1."""
        return sum(node.ok for node in self.nodes) / len(self.nodes) if self.nodes else 1.0

    @property
    def unsupported(self) -> tuple[NodeSupport, ...]:
        """The calls that stay behind."""
        return tuple(node for node in self.nodes if not node.ok)


@dataclass(frozen=True)
class Lowered:
    """The result of lowering."""

    module: nn.Module
    """What runs: the backend's module, or the unchanged one."""
    report: LoweringReport
    fallback: str = ""
    """Why the module stayed eager; empty when the backend runs it."""


def plan_lowering(
    module: GraphModule, backend: Backend, name: str, example_inputs: tuple[Any, ...] | None = None
) -> LoweringReport:
    """Ask a backend about every call of a module without building anything.

    Args:
        module: Not changed.
        backend: Who is asked.
        name: The backend's name, for the report.
        example_inputs: Inputs of the module, where they are known.
    """
    context = LoweringContext(module, example_inputs)
    entries: list[NodeSupport] = []
    for node in module.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        support = backend.supports(node, context)
        frame = node.origins[0].source() if node.origins else None
        target = (
            node.target
            if isinstance(node.target, str)
            else getattr(node.target, "__name__", repr(node.target))
        )
        source = f"{frame.filename}:{frame.line}" if frame is not None else ""
        entries.append(NodeSupport(node.name, target, support.ok, support.reason, source))
    return LoweringReport(name, tuple(entries))


def lower(
    module: GraphModule,
    backend: Backend,
    example_inputs: tuple[Any, ...],
    *,
    name: str,
    options: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> Lowered:
    """Let a backend run a module as a whole.

    The backend runs the module only if it supports every call in it; otherwise, or when it cannot build, the
    module stays eager and the reason is reported.

    Args:
        module: Not changed.
        backend: Who runs it.
        example_inputs: Inputs of the module.
        name: The backend's name, for reports and errors.
        options: Validated options of the backend.
        strict: Whether staying eager is an error.

    Raises:
        LoweringError: The module would stay eager and `strict` is set.
    """
    report = plan_lowering(module, backend, name, example_inputs)
    missing = report.unsupported
    if missing:
        first = missing[0]
        at = f" at {first.source}" if first.source else ""
        reason = (
            f"{len(missing)} of {len(report.nodes)} calls are not supported by {name!r}, the first is "
            f"{first.name!r}{at}: {first.reason or 'no reason given'}"
        )
        return _stay_eager(module, report, reason, None, strict=strict)
    try:
        return Lowered(backend.compile(module, example_inputs, dict(options or {})), report)
    except BackendError as error:
        return _stay_eager(module, report, error.message, error, strict=strict)
    except Exception as error:
        reason = f"the backend failed while it compiled: {type(error).__name__}: {error}"
        return _stay_eager(module, report, reason, error, strict=strict)


def _stay_eager(
    module: GraphModule, report: LoweringReport, reason: str, cause: Exception | None, *, strict: bool
) -> Lowered:
    if strict:
        raise LoweringError(f"Cannot lower the module to {report.backend!r}: {reason}") from cause
    return Lowered(module, report, reason)

"""Lowering: backends, what they support, and handing modules to them."""

from __future__ import annotations

from fxplug.lower.backend import Backend, BackendRecord, LoweringContext, Support
from fxplug.lower.eager import EagerBackend
from fxplug.lower.lowering import Lowered, LoweringReport, NodeSupport, lower, plan_lowering

__all__ = [
    "BUILTIN_BACKENDS",
    "Backend",
    "BackendRecord",
    "EagerBackend",
    "Lowered",
    "LoweringContext",
    "LoweringReport",
    "NodeSupport",
    "Support",
    "lower",
    "plan_lowering",
]

BUILTIN_BACKENDS: tuple[BackendRecord, ...] = (
    BackendRecord("eager", EagerBackend, "Runs graphs in PyTorch itself; the reference for all others."),
)

"""The front door: capture, optimise, save and load."""

from __future__ import annotations

from fxplug.api.comparison import Check, Comparison, MismatchError, Tolerance
from fxplug.api.events import OptimizationEvent
from fxplug.api.latency import Latency
from fxplug.api.optimization import DEFAULT_PIPELINE, ExampleError, OptimizationResult, optimize
from fxplug.api.rewriting import replace_pattern
from fxplug.api.tracing import symbolic_trace, trace
from fxplug.storage import load, save

__all__ = [
    "DEFAULT_PIPELINE",
    "Check",
    "Comparison",
    "ExampleError",
    "Latency",
    "MismatchError",
    "OptimizationEvent",
    "OptimizationResult",
    "Tolerance",
    "load",
    "optimize",
    "replace_pattern",
    "save",
    "symbolic_trace",
    "trace",
]

"""The front door: capture, optimise, save and load."""

from __future__ import annotations

from fxplug.api.comparison import Check, Comparison, MismatchError, Tolerance
from fxplug.api.events import OptimizationEvent
from fxplug.api.explaining import LeafExplanation, NodeExplanation, explain_leaf, explain_node
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
    "LeafExplanation",
    "MismatchError",
    "NodeExplanation",
    "OptimizationEvent",
    "OptimizationResult",
    "Tolerance",
    "explain_leaf",
    "explain_node",
    "load",
    "optimize",
    "replace_pattern",
    "save",
    "symbolic_trace",
    "trace",
]

"""The front door: capture, optimise, save and load."""

from __future__ import annotations

from fxplug.analyze.comparison import Check, Comparison, MismatchError, Tolerance
from fxplug.analyze.layers import LayerComparison, ModuleComparison
from fxplug.api.bisecting import BisectResult, NodeCulprit, PassCulprit, RewriteCulprit, bisect
from fxplug.api.comparing import compare
from fxplug.api.costing import cost, estimate
from fxplug.api.decomposing import decompose
from fxplug.api.events import OptimizationEvent
from fxplug.api.explaining import LeafExplanation, NodeExplanation, explain_leaf, explain_node
from fxplug.api.exporting import export_python
from fxplug.api.extraction import extract
from fxplug.api.latency import Latency
from fxplug.api.optimization import DEFAULT_PIPELINE, ExampleError, OptimizationResult, optimize
from fxplug.api.planning import plan
from fxplug.api.profiling import profile
from fxplug.api.representation import represent
from fxplug.api.reproduction import reproduce
from fxplug.api.rewriting import replace_pattern
from fxplug.api.shapes import NodeShape, ShapeTable, shapes
from fxplug.api.storing import load, save
from fxplug.api.subgraphs import extract_subgraph
from fxplug.api.tracing import symbolic_trace, trace

__all__ = [
    "DEFAULT_PIPELINE",
    "BisectResult",
    "Check",
    "Comparison",
    "ExampleError",
    "Latency",
    "LayerComparison",
    "LeafExplanation",
    "MismatchError",
    "ModuleComparison",
    "NodeCulprit",
    "NodeExplanation",
    "NodeShape",
    "OptimizationEvent",
    "OptimizationResult",
    "PassCulprit",
    "RewriteCulprit",
    "ShapeTable",
    "Tolerance",
    "bisect",
    "compare",
    "cost",
    "decompose",
    "estimate",
    "explain_leaf",
    "explain_node",
    "export_python",
    "extract",
    "extract_subgraph",
    "load",
    "optimize",
    "plan",
    "profile",
    "replace_pattern",
    "represent",
    "reproduce",
    "save",
    "shapes",
    "symbolic_trace",
    "trace",
]

"""fxplug: program capture and transformation for PyTorch in which everything that differs between users is a plugin.

Names are loaded when they are first used: importing fxplug loads neither a plugin nor anything that only
plugins, config files or the command line need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fxplug.analyze import CallCost, DeviceRecord, FlopFormulaRecord
    from fxplug.api import (
        BisectResult,
        ModuleComparison,
        OptimizationResult,
        bisect,
        compare,
        cost,
        decompose,
        estimate,
        export_python,
        extract,
        extract_subgraph,
        load,
        optimize,
        plan,
        profile,
        replace_pattern,
        represent,
        save,
        shapes,
        symbolic_trace,
        trace,
    )
    from fxplug.capture import (
        PH,
        Attribute,
        ConstantRecord,
        Proxy,
        ProxyableClassMeta,
        TraceContext,
        TraceEvent,
        TracePolicy,
        Tracer,
        Transformer,
        is_tracing,
        wrap,
    )
    from fxplug.codegen import CodeGen
    from fxplug.errors import FxplugError, GraphError, GuardError, PassError, PluginError, TraceError
    from fxplug.execute import GraphModule, Interpreter
    from fxplug.fx import graph as graph
    from fxplug.fx import graph_module as graph_module
    from fxplug.fx import immutable_collections as immutable_collections
    from fxplug.fx import interpreter as interpreter
    from fxplug.fx import node as node
    from fxplug.fx import proxy as proxy
    from fxplug.fx import subgraph_rewriter as subgraph_rewriter
    from fxplug.ir import Effect, Graph, Node, PythonCode, map_arg
    from fxplug.lower import Backend, BackendRecord, LoweringContext, Support
    from fxplug.passes import (
        Pass,
        PassContext,
        PassEvent,
        PassRecord,
        PassResult,
        Pipeline,
        fold_submodule,
        inline_submodule,
        load_original_state_dict,
        split_by,
        split_by_size,
        split_module,
        state_origins,
    )
    from fxplug.plugins import (
        CommandRecord,
        EffectRecord,
        ReportSectionRecord,
        hookimpl,
        hookspec,
        pipeline_overrides,
    )
    from fxplug.rewrite import DecompositionRecord
    from fxplug.semantics import has_side_effect
    from fxplug.storage import StorageTargetRecord

__version__ = "0.1.0"

_HOMES = {
    "fxplug.analyze": ("CallCost", "DeviceRecord", "FlopFormulaRecord"),
    "fxplug.api": (
        "BisectResult",
        "ModuleComparison",
        "OptimizationResult",
        "bisect",
        "compare",
        "cost",
        "decompose",
        "estimate",
        "export_python",
        "extract",
        "extract_subgraph",
        "load",
        "optimize",
        "plan",
        "profile",
        "replace_pattern",
        "represent",
        "save",
        "shapes",
        "symbolic_trace",
        "trace",
    ),
    "fxplug.capture": (
        "PH",
        "Attribute",
        "ConstantRecord",
        "Proxy",
        "ProxyableClassMeta",
        "TraceContext",
        "TraceEvent",
        "TracePolicy",
        "Tracer",
        "Transformer",
        "is_tracing",
        "wrap",
    ),
    "fxplug.codegen": ("CodeGen",),
    "fxplug.errors": ("FxplugError", "GraphError", "GuardError", "PassError", "PluginError", "TraceError"),
    "fxplug.execute": ("GraphModule", "Interpreter"),
    "fxplug.ir": ("Effect", "Graph", "Node", "PythonCode", "map_arg"),
    "fxplug.lower": ("Backend", "BackendRecord", "LoweringContext", "Support"),
    "fxplug.passes": (
        "Pass",
        "PassContext",
        "PassEvent",
        "PassRecord",
        "PassResult",
        "Pipeline",
        "fold_submodule",
        "inline_submodule",
        "load_original_state_dict",
        "split_by",
        "split_by_size",
        "split_module",
        "state_origins",
    ),
    "fxplug.plugins": (
        "CommandRecord",
        "EffectRecord",
        "ReportSectionRecord",
        "hookimpl",
        "hookspec",
        "pipeline_overrides",
    ),
    "fxplug.rewrite": ("DecompositionRecord",),
    "fxplug.semantics": ("has_side_effect",),
    "fxplug.storage": ("StorageTargetRecord",),
}
_MODULES = frozenset(
    {"graph", "graph_module", "immutable_collections", "interpreter", "node", "proxy", "subgraph_rewriter"}
)
"""Modules of torch.fx that programs reach as attributes, ``fx.proxy.GraphAppendingTracer``; see `fxplug.fx`."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "PH",
    "Attribute",
    "Backend",
    "BackendRecord",
    "BisectResult",
    "CallCost",
    "CodeGen",
    "CommandRecord",
    "ConstantRecord",
    "DecompositionRecord",
    "DeviceRecord",
    "Effect",
    "EffectRecord",
    "FlopFormulaRecord",
    "FxplugError",
    "Graph",
    "GraphError",
    "GraphModule",
    "GuardError",
    "Interpreter",
    "LoweringContext",
    "ModuleComparison",
    "Node",
    "OptimizationResult",
    "Pass",
    "PassContext",
    "PassError",
    "PassEvent",
    "PassRecord",
    "PassResult",
    "Pipeline",
    "PluginError",
    "Proxy",
    "ProxyableClassMeta",
    "PythonCode",
    "ReportSectionRecord",
    "StorageTargetRecord",
    "Support",
    "TraceContext",
    "TraceError",
    "TraceEvent",
    "TracePolicy",
    "Tracer",
    "Transformer",
    "__version__",
    "bisect",
    "compare",
    "cost",
    "decompose",
    "estimate",
    "export_python",
    "extract",
    "extract_subgraph",
    "fold_submodule",
    "has_side_effect",
    "hookimpl",
    "hookspec",
    "inline_submodule",
    "is_tracing",
    "load",
    "load_original_state_dict",
    "map_arg",
    "optimize",
    "pipeline_overrides",
    "plan",
    "profile",
    "replace_pattern",
    "represent",
    "save",
    "shapes",
    "split_by",
    "split_by_size",
    "split_module",
    "state_origins",
    "symbolic_trace",
    "trace",
    "wrap",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if name == "fx":  # As torch.fx is there once torch is imported.
        return importlib.import_module("fxplug.fx")
    if name in _MODULES:
        return importlib.import_module(f"fxplug.fx.{name}")
    if home is None:
        raise AttributeError(f"module 'fxplug' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

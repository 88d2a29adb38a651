"""Capturing programs: proxies, the symbolic tracer and the policy that customises it."""

from __future__ import annotations

import fxplug.semantics  # noqa: F401 # pyright: ignore[reportUnusedImport] - tells what torch calls mean
from fxplug.capture.concrete import PH, PHBase, PHWithMeta
from fxplug.capture.foreign import ConstantRecord, lifting
from fxplug.capture.parameters import ParameterProxy
from fxplug.capture.policy import TraceContext, TraceEvent, TracePolicy, is_leaf_by_class
from fxplug.capture.proxy import Attribute, GraphAppendingTracer, Proxy, TracerBase
from fxplug.capture.proxyable import ProxyableClassMeta
from fxplug.capture.scopes import Scope, ScopeContextManager
from fxplug.capture.tracer import Tracer, is_tracing
from fxplug.capture.transformer import Transformer
from fxplug.capture.wrapping import wrap

__all__ = [
    "PH",
    "Attribute",
    "ConstantRecord",
    "GraphAppendingTracer",
    "PHBase",
    "PHWithMeta",
    "ParameterProxy",
    "Proxy",
    "ProxyableClassMeta",
    "Scope",
    "ScopeContextManager",
    "TraceContext",
    "TraceEvent",
    "TracePolicy",
    "Tracer",
    "TracerBase",
    "Transformer",
    "is_leaf_by_class",
    "is_tracing",
    "lifting",
    "wrap",
]

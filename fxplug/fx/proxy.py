"""The stand-ins for traced values."""

from __future__ import annotations

from fxplug.capture import (
    Attribute,
    GraphAppendingTracer,
    ParameterProxy,
    Proxy,
    Scope,
    ScopeContextManager,
    TracerBase,
)
from fxplug.errors import TraceError

__all__ = [
    "Attribute",
    "GraphAppendingTracer",
    "ParameterProxy",
    "Proxy",
    "Scope",
    "ScopeContextManager",
    "TraceError",
    "TracerBase",
]

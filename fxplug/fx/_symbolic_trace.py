"""What is commonly taken from torch.fx's private module of this name."""

from __future__ import annotations

from fxplug.api import symbolic_trace
from fxplug.capture import PH, PHBase, PHWithMeta, ProxyableClassMeta, Tracer, wrap
from fxplug.capture import is_tracing as is_fx_symbolic_tracing
from fxplug.capture import is_tracing as is_fx_tracing

__all__ = [
    "PH",
    "PHBase",
    "PHWithMeta",
    "ProxyableClassMeta",
    "Tracer",
    "is_fx_symbolic_tracing",
    "is_fx_tracing",
    "symbolic_trace",
    "wrap",
]

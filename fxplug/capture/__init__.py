"""Capturing programs: proxies, the symbolic tracer and the policy that customises it."""

from __future__ import annotations

import fxplug.semantics  # noqa: F401 # pyright: ignore[reportUnusedImport] - tells what torch calls mean
from fxplug.capture.policy import TraceContext, TraceEvent, TracePolicy
from fxplug.capture.proxy import Attribute, Proxy
from fxplug.capture.tracer import Tracer, is_tracing
from fxplug.capture.transformer import Transformer

__all__ = [
    "Attribute",
    "Proxy",
    "TraceContext",
    "TraceEvent",
    "TracePolicy",
    "Tracer",
    "Transformer",
    "is_tracing",
]

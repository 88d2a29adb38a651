"""The backends that fxplug itself brings."""

from __future__ import annotations

from fxplug.lower.backend import BackendRecord
from fxplug.lower.eager import EagerBackend
from fxplug.lower.inductor import InductorBackend, InductorOptions

__all__ = ["BUILTIN_BACKENDS"]

BUILTIN_BACKENDS: tuple[BackendRecord, ...] = (
    BackendRecord("eager", EagerBackend, "Runs graphs in PyTorch itself; the reference for all others."),
    BackendRecord(
        "inductor",
        InductorBackend,
        "Compiles each part of a graph with torch.compile; needs a C++ compiler.",
        options=InductorOptions,
    ),
)

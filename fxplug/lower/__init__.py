"""Lowering: backends, what they support, and handing parts of modules to them."""

from __future__ import annotations

from fxplug.lower.backend import Backend, BackendRecord, LoweringContext, Support
from fxplug.lower.cache import DEFAULT_SIZE_LIMIT, ArtefactCache, CacheEntry
from fxplug.lower.eager import EagerBackend
from fxplug.lower.inductor import InductorBackend, InductorOptions
from fxplug.lower.lowered import LoweredPartition, OnMismatch, lowered_partitions
from fxplug.lower.lowering import Lowered, lower, lower_to_several, plan_lowering
from fxplug.lower.planning import EAGER_PIN, Choices
from fxplug.lower.profile import InputProfile, Profile
from fxplug.lower.report import LoweringReport, MissingSupport, NodeSupport, PartitionReport
from fxplug.lower.stored import Engines, restored_partition, stored_partition

__all__ = [
    "BUILTIN_BACKENDS",
    "DEFAULT_SIZE_LIMIT",
    "EAGER_PIN",
    "ArtefactCache",
    "Backend",
    "BackendRecord",
    "CacheEntry",
    "Choices",
    "EagerBackend",
    "Engines",
    "InductorBackend",
    "InductorOptions",
    "InputProfile",
    "Lowered",
    "LoweredPartition",
    "LoweringContext",
    "LoweringReport",
    "MissingSupport",
    "NodeSupport",
    "OnMismatch",
    "PartitionReport",
    "Profile",
    "Support",
    "lower",
    "lower_to_several",
    "lowered_partitions",
    "plan_lowering",
    "restored_partition",
    "stored_partition",
]

BUILTIN_BACKENDS: tuple[BackendRecord, ...] = (
    BackendRecord("eager", EagerBackend, "Runs graphs in PyTorch itself; the reference for all others."),
    BackendRecord(
        "inductor",
        InductorBackend,
        "Compiles each part of a graph with torch.compile; needs a C++ compiler.",
        options=InductorOptions,
    ),
)

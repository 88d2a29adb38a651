"""Lowering: backends, what they support, and handing parts of modules to them."""

from __future__ import annotations

from fxplug.lower.backend import Backend, BackendRecord, LoweringContext, Support
from fxplug.lower.cache import DEFAULT_SIZE_LIMIT, ArtefactCache, CacheEntry
from fxplug.lower.calls import CallRow, CallTable
from fxplug.lower.converters import Conversion, ConverterRecord, ConverterTable, EngineValue
from fxplug.lower.converting import ConverterHost, ConvertingBackend
from fxplug.lower.eager import EagerBackend
from fxplug.lower.inductor import InductorBackend, InductorOptions
from fxplug.lower.lowered import LoweredPartition, OnMismatch, lowered_partitions
from fxplug.lower.lowering import Lowered, lower, lower_to_several, plan_lowering
from fxplug.lower.planning import EAGER_PIN, Choices
from fxplug.lower.profile import InputProfile, Profile
from fxplug.lower.report import LoweringReport, MissingSupport, NodeSupport, PartitionReport
from fxplug.lower.results import Slot, fill_results, read_results, results_data
from fxplug.lower.stored import Engines, restored_partition, stored_partition
from fxplug.lower.writing import AtenProgram, Place, Written, write_program

__all__ = [
    "BUILTIN_BACKENDS",
    "DEFAULT_SIZE_LIMIT",
    "EAGER_PIN",
    "ArtefactCache",
    "AtenProgram",
    "Backend",
    "BackendRecord",
    "CacheEntry",
    "CallRow",
    "CallTable",
    "Choices",
    "Conversion",
    "ConverterHost",
    "ConverterRecord",
    "ConverterTable",
    "ConvertingBackend",
    "EagerBackend",
    "EngineValue",
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
    "Place",
    "Profile",
    "Slot",
    "Support",
    "Written",
    "fill_results",
    "lower",
    "lower_to_several",
    "lowered_partitions",
    "plan_lowering",
    "read_results",
    "restored_partition",
    "results_data",
    "stored_partition",
    "write_program",
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

"""Lowering: backends, what they support, and handing parts of modules to them.

Loaded when they are first used: the cache of engines, which the configuration speaks of, needs no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fxplug.lower.backend import Backend, BackendRecord, LoweringContext, Support
    from fxplug.lower.builtin import BUILTIN_BACKENDS
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

_HOMES = {
    "backend": (
        "Backend",
        "BackendRecord",
        "LoweringContext",
        "Support",
    ),
    "builtin": ("BUILTIN_BACKENDS",),
    "cache": (
        "DEFAULT_SIZE_LIMIT",
        "ArtefactCache",
        "CacheEntry",
    ),
    "calls": (
        "CallRow",
        "CallTable",
    ),
    "converters": (
        "Conversion",
        "ConverterRecord",
        "ConverterTable",
        "EngineValue",
    ),
    "converting": (
        "ConverterHost",
        "ConvertingBackend",
    ),
    "eager": ("EagerBackend",),
    "inductor": (
        "InductorBackend",
        "InductorOptions",
    ),
    "lowered": (
        "LoweredPartition",
        "OnMismatch",
        "lowered_partitions",
    ),
    "lowering": (
        "Lowered",
        "lower",
        "lower_to_several",
        "plan_lowering",
    ),
    "planning": (
        "EAGER_PIN",
        "Choices",
    ),
    "profile": (
        "InputProfile",
        "Profile",
    ),
    "report": (
        "LoweringReport",
        "MissingSupport",
        "NodeSupport",
        "PartitionReport",
    ),
    "results": (
        "Slot",
        "fill_results",
        "read_results",
        "results_data",
    ),
    "stored": (
        "Engines",
        "restored_partition",
        "stored_partition",
    ),
    "writing": (
        "AtenProgram",
        "Place",
        "Written",
        "write_program",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

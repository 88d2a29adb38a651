"""The plugin host: hooks, records, configuration, and the manager that finds and asks plugins.

Loaded when they are first used: what finds plugins and reads the configuration needs no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fxplug.plugins.checking import ConfigReport, check_config
    from fxplug.plugins.config import load_config
    from fxplug.plugins.default import default_manager, reset_default_manager
    from fxplug.plugins.discovery import PluginCandidate, discover
    from fxplug.plugins.explanations import Decision, PassExplanation, PassPlace, explain_pass
    from fxplug.plugins.manager import PluginManager
    from fxplug.plugins.markers import hookimpl, hookspec
    from fxplug.plugins.offers import (
        BackendOffer,
        CommandOffer,
        DeviceOffer,
        Offer,
        PassOffer,
        ReportSectionOffer,
    )
    from fxplug.plugins.options import OptionInfo
    from fxplug.plugins.overrides import PipelineOverrides, pipeline_overrides
    from fxplug.plugins.records import (
        BackendRecord,
        CommandRecord,
        ConstantRecord,
        DecompositionRecord,
        DeviceRecord,
        EffectRecord,
        FlopFormulaRecord,
        HookFailure,
        PassEvent,
        PassRecord,
        PluginInfo,
        PluginStatus,
        RecordInfo,
        ReportContext,
        ReportSectionRecord,
        StorageTargetRecord,
        TraceContext,
        TraceEvent,
    )
    from fxplug.plugins.refusal import PluginWarning
    from fxplug.plugins.resolved import ResolvedValue, resolved_values
    from fxplug.plugins.settings import (
        CacheConfig,
        Config,
        ConfigFinding,
        ConfigSource,
        PipelineConfig,
        PluginsConfig,
        Settings,
        TraceConfig,
    )

__all__ = [
    "BackendOffer",
    "BackendRecord",
    "CacheConfig",
    "CommandOffer",
    "CommandRecord",
    "Config",
    "ConfigFinding",
    "ConfigReport",
    "ConfigSource",
    "ConstantRecord",
    "Decision",
    "DecompositionRecord",
    "DeviceOffer",
    "DeviceRecord",
    "EffectRecord",
    "FlopFormulaRecord",
    "HookFailure",
    "Offer",
    "OptionInfo",
    "PassEvent",
    "PassExplanation",
    "PassOffer",
    "PassPlace",
    "PassRecord",
    "PipelineConfig",
    "PipelineOverrides",
    "PluginCandidate",
    "PluginInfo",
    "PluginManager",
    "PluginStatus",
    "PluginWarning",
    "PluginsConfig",
    "RecordInfo",
    "ReportContext",
    "ReportSectionOffer",
    "ReportSectionRecord",
    "ResolvedValue",
    "Settings",
    "StorageTargetRecord",
    "TraceConfig",
    "TraceContext",
    "TraceEvent",
    "check_config",
    "default_manager",
    "discover",
    "explain_pass",
    "hookimpl",
    "hookspec",
    "load_config",
    "pipeline_overrides",
    "reset_default_manager",
    "resolved_values",
]

_HOMES = {
    "checking": (
        "ConfigReport",
        "check_config",
    ),
    "config": ("load_config",),
    "default": (
        "default_manager",
        "reset_default_manager",
    ),
    "discovery": (
        "PluginCandidate",
        "discover",
    ),
    "explanations": (
        "Decision",
        "PassExplanation",
        "PassPlace",
        "explain_pass",
    ),
    "manager": ("PluginManager",),
    "markers": (
        "hookimpl",
        "hookspec",
    ),
    "offers": (
        "BackendOffer",
        "CommandOffer",
        "DeviceOffer",
        "Offer",
        "PassOffer",
        "ReportSectionOffer",
    ),
    "options": ("OptionInfo",),
    "overrides": (
        "PipelineOverrides",
        "pipeline_overrides",
    ),
    "records": (
        "BackendRecord",
        "CommandRecord",
        "ConstantRecord",
        "DecompositionRecord",
        "DeviceRecord",
        "EffectRecord",
        "FlopFormulaRecord",
        "HookFailure",
        "PassEvent",
        "PassRecord",
        "PluginInfo",
        "PluginStatus",
        "RecordInfo",
        "ReportContext",
        "ReportSectionRecord",
        "StorageTargetRecord",
        "TraceContext",
        "TraceEvent",
    ),
    "refusal": ("PluginWarning",),
    "resolved": (
        "ResolvedValue",
        "resolved_values",
    ),
    "settings": (
        "CacheConfig",
        "Config",
        "ConfigFinding",
        "ConfigSource",
        "PipelineConfig",
        "PluginsConfig",
        "Settings",
        "TraceConfig",
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

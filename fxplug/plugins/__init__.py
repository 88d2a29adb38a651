"""The plugin host: hooks, records, configuration, and the manager that finds and asks plugins."""

from __future__ import annotations

from fxplug.plugins.config import load_config
from fxplug.plugins.default import default_manager, reset_default_manager
from fxplug.plugins.discovery import PluginCandidate, discover
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
    PluginWarning,
    ReportContext,
    ReportSectionRecord,
    StorageTargetRecord,
    TraceContext,
    TraceEvent,
)
from fxplug.plugins.settings import Config, ConfigSource, PipelineConfig, PluginsConfig, Settings, TraceConfig

__all__ = [
    "BackendOffer",
    "BackendRecord",
    "CommandOffer",
    "CommandRecord",
    "Config",
    "ConfigSource",
    "ConstantRecord",
    "DecompositionRecord",
    "DeviceOffer",
    "DeviceRecord",
    "EffectRecord",
    "FlopFormulaRecord",
    "HookFailure",
    "Offer",
    "PassEvent",
    "PassOffer",
    "PassRecord",
    "PipelineConfig",
    "PluginCandidate",
    "PluginInfo",
    "PluginManager",
    "PluginStatus",
    "PluginWarning",
    "PluginsConfig",
    "ReportContext",
    "ReportSectionOffer",
    "ReportSectionRecord",
    "Settings",
    "StorageTargetRecord",
    "TraceConfig",
    "TraceContext",
    "TraceEvent",
    "default_manager",
    "discover",
    "hookimpl",
    "hookspec",
    "load_config",
    "reset_default_manager",
]

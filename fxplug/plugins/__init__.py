"""The plugin host: hooks, records, configuration, and the manager that finds and asks plugins."""

from __future__ import annotations

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
    PluginWarning,
    RecordInfo,
    ReportContext,
    ReportSectionRecord,
    StorageTargetRecord,
    TraceContext,
    TraceEvent,
)
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

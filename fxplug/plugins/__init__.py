"""The plugin host: hooks, records, configuration, and the manager that finds and asks plugins."""

from __future__ import annotations

from fxplug.plugins.checking import ConfigReport, check_config
from fxplug.plugins.config import load_config
from fxplug.plugins.default import default_manager, reset_default_manager
from fxplug.plugins.discovery import PluginCandidate, discover
from fxplug.plugins.explanations import Decision, PassExplanation, PassPlace, explain_pass
from fxplug.plugins.manager import PluginManager
from fxplug.plugins.markers import hookimpl, hookspec
from fxplug.plugins.offers import BackendOffer, CommandOffer, Offer, PassOffer
from fxplug.plugins.options import OptionInfo
from fxplug.plugins.records import (
    BackendRecord,
    CommandRecord,
    EffectRecord,
    HookFailure,
    PassEvent,
    PassRecord,
    PluginInfo,
    PluginStatus,
    PluginWarning,
    TraceContext,
    TraceEvent,
)
from fxplug.plugins.resolved import ResolvedValue, resolved_values
from fxplug.plugins.settings import (
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
    "CommandOffer",
    "CommandRecord",
    "Config",
    "ConfigFinding",
    "ConfigReport",
    "ConfigSource",
    "Decision",
    "EffectRecord",
    "HookFailure",
    "Offer",
    "OptionInfo",
    "PassEvent",
    "PassExplanation",
    "PassOffer",
    "PassPlace",
    "PassRecord",
    "PipelineConfig",
    "PluginCandidate",
    "PluginInfo",
    "PluginManager",
    "PluginStatus",
    "PluginWarning",
    "PluginsConfig",
    "ResolvedValue",
    "Settings",
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
    "reset_default_manager",
    "resolved_values",
]

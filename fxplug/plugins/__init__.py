"""The plugin host: hooks, records, configuration, and the manager that finds and asks plugins."""

from __future__ import annotations

from fxplug.plugins.config import load_config
from fxplug.plugins.default import default_manager, reset_default_manager
from fxplug.plugins.discovery import PluginCandidate, discover
from fxplug.plugins.manager import PluginManager
from fxplug.plugins.markers import hookimpl, hookspec
from fxplug.plugins.offers import BackendOffer, CommandOffer, Offer, PassOffer
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
    RecordInfo,
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
    "EffectRecord",
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
    "RecordInfo",
    "Settings",
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

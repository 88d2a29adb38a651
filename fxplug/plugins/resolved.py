"""Every value that is in force, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from fxplug.plugins.backend_options import backend_key
from fxplug.plugins.call_log import CALL_LOG_VARIABLE
from fxplug.plugins.config import CONFIG_VARIABLE, STRICT_VARIABLE, flag_from_environment
from fxplug.plugins.offers import CORE
from fxplug.plugins.overrides import without_overrides
from fxplug.plugins.pipelines import PASS_SETTINGS
from fxplug.plugins.selection import DISABLE_VARIABLE, LOAD_VARIABLE
from fxplug.plugins.settings import PipelineConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fxplug.plugins.manager import PluginManager
    from fxplug.plugins.settings import Config

__all__ = ["VARIABLES", "ResolvedValue", "resolved_values"]

VARIABLES = {
    CONFIG_VARIABLE: "The configuration file, instead of the one that would be found; empty = none.",
    LOAD_VARIABLE: "Plugins that are loaded, and no others, joined by commas; empty = none.",
    DISABLE_VARIABLE: "Plugins that are not loaded, joined by commas; `*` = none is.",
    STRICT_VARIABLE: "`1` or `0`: prevails over `plugins.strict`.",
    CALL_LOG_VARIABLE: "`1`: every call of a hook is logged, with the answer and how long it took.",
}
"""Environment variable -> what it says."""


@dataclass(frozen=True)
class ResolvedValue:
    """One value."""

    key: str
    """Dotted, as in the configuration file."""
    value: Any
    source: str
    """``"FILE:LINE"``, the name of an environment variable, ``"default"``, or ``"default of DISTRIBUTION VERSION"``."""
    note: str = ""
    """Why it does not count, or not alone."""


def resolved_values(manager: PluginManager, environ: Mapping[str, str]) -> list[ResolvedValue]:
    """Return every value of the settings, of the options of passes and backends, and of the environment variables.

    Args:
        manager: Its configuration is looked at, and what its plugins offer.
        environ: Environment variables.

    Raises:
        FxplugError: A pipeline, a pass, a backend or one of their options does not exist or has a bad value.
    """
    with without_overrides():
        return [
            *_plugin_values(manager.config, environ),
            *_section("trace", manager.config),
            *_pipeline_values(manager),
            *_backend_values(manager),
            *_section("cache", manager.config),
        ]


def _section(name: str, config: Config) -> Iterator[ResolvedValue]:
    section = getattr(config, name)
    for entry in fields(section):
        key = f"{name}.{entry.name}"
        yield ResolvedValue(key, getattr(section, entry.name), str(config.source_of(key)))


def _plugin_values(config: Config, environ: Mapping[str, str]) -> Iterator[ResolvedValue]:
    notes: dict[str, str] = {}
    if LOAD_VARIABLE in environ:
        notes["plugins.disable"] = f"does not count: {LOAD_VARIABLE} decides"
    elif environ.get(DISABLE_VARIABLE):
        notes["plugins.disable"] = f"besides {DISABLE_VARIABLE}={environ[DISABLE_VARIABLE]}"
    flag = flag_from_environment(environ, STRICT_VARIABLE)
    for value in _section("plugins", config):
        if value.key == "plugins.strict" and flag is not None:
            yield ResolvedValue(value.key, flag, STRICT_VARIABLE)
        else:
            yield ResolvedValue(value.key, value.value, value.source, notes.get(value.key, ""))


def _pipeline_values(manager: PluginManager) -> Iterator[ResolvedValue]:
    config = manager.config
    for name in manager.pipelines():
        key = f"pipelines.{name}"
        pipeline = manager.resolve_pipeline(name)
        yield ResolvedValue(
            f"{key}.passes", [step.name for step in pipeline.steps], str(config.source_of(f"{key}.passes"))
        )
        for position, entry in enumerate(manager.pipeline_entries(name)):
            (step,) = manager.resolve_pipeline([entry.entry]).steps
            given = {key: getattr(step, key) for key in PASS_SETTINGS if getattr(step, key) is not None}
            for option, value in {**step.options, **given}.items():
                place = f"{key}.passes.{position}.{option}"
                is_given = place in config.sources
                source = str(config.sources[place]) if is_given else f"default of {step.provider}"
                yield ResolvedValue(place, value, source)
        for entry in fields(PipelineConfig):
            if entry.name != "passes":
                place = f"{key}.{entry.name}"
                yield ResolvedValue(place, getattr(pipeline, entry.name), str(config.source_of(place)))


def _backend_values(manager: PluginManager) -> Iterator[ResolvedValue]:
    config = manager.config
    for name in config.backends:  # One that nobody offers is an error.
        manager.find_backend(name)
    for offer in manager.backends().values():
        key = f"backends.{backend_key(offer, config)}"
        for option, value in manager.backend_options(offer.name).items():
            given = config.sources.get(f"{key}.{option}")
            owner = "" if offer.plugin == CORE else f" of {offer.provider}"
            yield ResolvedValue(f"{key}.{option}", value, f"default{owner}" if given is None else str(given))

"""Looking for everything that is wrong in a configuration, in one go."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fxplug.errors import ConfigError, FxplugError, did_you_mean
from fxplug.plugins.call_log import CALL_LOG_VARIABLE
from fxplug.plugins.config import STRICT_VARIABLE, examine_config, flag_from_environment
from fxplug.plugins.discovery import PluginCandidate, discover
from fxplug.plugins.leaf_functions import reason_against
from fxplug.plugins.manager import PluginManager
from fxplug.plugins.overrides import without_overrides
from fxplug.plugins.policy import ModuleGlobs, class_paths
from fxplug.plugins.records import PluginWarning
from fxplug.plugins.selection import DISABLE_VARIABLE, LOAD_VARIABLE, Selection
from fxplug.plugins.settings import Config, ConfigFinding, ConfigSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

__all__ = ["ConfigReport", "ExaminedHost", "check_config", "examine_host"]

HIDDEN_SELECTION = (
    "No plugin was imported: which ones are switched off cannot be told until the configuration is corrected."
)


@dataclass(frozen=True)
class ConfigReport:
    """What a check of the configuration found."""

    file: Path | None
    """None when there is no configuration."""
    findings: tuple[ConfigFinding, ...]
    checked: tuple[str, ...]
    """What was looked at, one text for each part."""

    @property
    def errors(self) -> tuple[ConfigFinding, ...]:
        """The findings that have to be corrected."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


def check_config(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    start: Path | None = None,
    candidates: Sequence[PluginCandidate] | None = None,
    version: str | None = None,
    root: nn.Module | None = None,
) -> ConfigReport:
    """Check keys, values, names of plugins, required plugins, passes with options and order, backends, and globs.

    Nothing that is wrong ends the check; only a file that is no TOML leaves nothing to be checked.

    Args:
        path: The file, instead of the one that is found (see `load_config`).
        environ: Environment variables; by default those of the process.
        start: Where the search for a file begins.
        candidates: The plugins there are; by default those that are installed.
        version: The version of fxplug that plugins must accept; by default the running one.
        root: A model; globs of modules have to match one of its modules.
    """
    host = examine_host(path, environ=environ, start=start, candidates=candidates, version=version)
    if host.is_unreadable:
        return ConfigReport(None, host.findings[:1], ())
    findings = [*host.findings, *_failed_plugins(host), *host.manager.config_findings(host.config)]
    findings += _leaf_functions(host.config)
    findings += [] if root is None else _module_globs(host.config, root)
    return ConfigReport(host.config.file, tuple(findings), tuple(_checked(host.config, host.manager)))


@dataclass(frozen=True)
class ExaminedHost:
    """The plugins that take part as far as that can be told, and what is wrong with what says so."""

    config: Config
    """The configuration without what is wrong in it."""
    manager: PluginManager
    """It requires no plugin."""
    strict: bool
    findings: tuple[ConfigFinding, ...]
    is_unreadable: bool
    """Whether the file could not be read, or is no TOML."""


def examine_host(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    start: Path | None = None,
    candidates: Sequence[PluginCandidate] | None = None,
    version: str | None = None,
) -> ExaminedHost:
    """Load the plugins that take part, however much is wrong in configuration and environment.

    What can be understood counts: a plugin that is switched off is not imported because something else is wrong. When
    nobody can tell which plugins were switched off, none is imported.

    Args:
        path: As for `check_config`, like all the others.
        environ: Environment variables.
        start: Where the search for a file begins.
        candidates: The plugins there are.
        version: The version of fxplug.
    """
    variables = dict(os.environ if environ is None else environ)
    is_unreadable = False
    try:
        config, findings = examine_config(path, environ=variables, start=start)
    except ConfigError as error:
        config, is_unreadable = Config(), True
        findings = [ConfigFinding("error", error.message, hides_selection=True)]
    found = list(discover() if candidates is None else candidates)
    strict = bool(_flag(STRICT_VARIABLE, variables, findings, default=config.plugins.strict))
    _flag(CALL_LOG_VARIABLE, variables, findings, default=False)
    selected, known_variables = _without_unknown_plugins(config, variables, found, findings)
    # That variable alone decides where it is set.
    is_hidden = LOAD_VARIABLE not in variables and any(finding.hides_selection for finding in findings)
    if is_hidden and found:
        findings.append(ConfigFinding("warning", HIDDEN_SELECTION))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # The status of each plugin says the same.
        manager = PluginManager(
            config=replace(selected, plugins=replace(selected.plugins, require=())),
            load=() if is_hidden else None,
            strict=False,
            candidates=found,
            environ=known_variables,
            version=version,
        )
    return ExaminedHost(config, manager, strict, tuple(findings), is_unreadable)


def _flag(variable: str, variables: dict[str, str], findings: list[ConfigFinding], *, default: bool) -> bool:
    """Return what a yes-or-no variable says; one that says neither is noted and taken out."""
    try:
        flag = flag_from_environment(variables, variable)
    except ConfigError as error:
        findings.append(ConfigFinding("error", error.message, ConfigSource(variable=variable)))
        del variables[variable]
        flag = None
    return default if flag is None else flag


def _without_unknown_plugins(
    config: Config,
    variables: dict[str, str],
    found: Sequence[PluginCandidate],
    findings: list[ConfigFinding],
) -> tuple[Config, dict[str, str]]:
    """Return the selection without names that mean no plugin, which are noted."""
    unknown: set[str] = set()
    for source, error in Selection(config, variables).unknown_names(found):
        unknown.add(error.name)
        findings.append(ConfigFinding("error", error.message, source))
    disable = tuple(name for name in config.plugins.disable if name not in unknown)
    left = dict(variables)
    for variable in (LOAD_VARIABLE, DISABLE_VARIABLE):
        if variable in left:
            left[variable] = ",".join(
                name for name in left[variable].split(",") if name.strip() not in unknown
            )
    return replace(config, plugins=replace(config.plugins, disable=disable)), left


def _failed_plugins(host: ExaminedHost) -> Iterator[ConfigFinding]:
    for info in host.manager.plugin_infos():
        if info.status in {"failed", "incompatible"}:
            yield ConfigFinding(
                "error" if host.strict else "warning",
                f"Plugin {info.name!r} ({info.distribution} {info.version}) is {info.status}: "
                f"{info.explanation}",
            )


def _leaf_functions(config: Config) -> Iterator[ConfigFinding]:
    folders = [str(folder) for folder in (_working_directory(), config.file and config.file.parent) if folder]
    for position, pattern in enumerate(config.trace.leaf_functions):
        reason = reason_against(pattern, folders)
        if reason:
            yield ConfigFinding(
                "warning",
                f"'trace.leaf_functions' holds {pattern!r}, which names nothing: {reason}",
                config.source_of(f"trace.leaf_functions.{position}"),
            )


def _module_globs(config: Config, root: nn.Module) -> Iterator[ConfigFinding]:
    modules = [(name, module) for name, module in root.named_modules(remove_duplicate=False) if name]
    known = {text for name, module in modules for text in (name, *class_paths(type(module)))}
    for key in ("through_modules", "leaf_modules"):
        for position, glob in enumerate(getattr(config.trace, key)):
            globs = ModuleGlobs([glob], [])
            if all(globs.answer(module, name) is None for name, module in modules):
                yield ConfigFinding(
                    "warning",
                    f"'trace.{key}' holds {glob!r}, which matches no module of {type(root).__name__}. "
                    f"{did_you_mean(glob, known)}",
                    config.source_of(f"trace.{key}.{position}"),
                )


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # It was removed.
        return None


def _checked(config: Config, manager: PluginManager) -> Iterator[str]:
    yield "no configuration file" if config.file is None else f"keys and values of {config.file}"
    names = [info.name for info in manager.plugin_infos()]
    yield f"plugins: {', '.join(names) or 'none installed'}"
    for name in manager.pipelines():
        try:
            with without_overrides():
                steps = manager.resolve_pipeline(name).steps
        except FxplugError:  # It is among the findings.
            continue
        yield f"pipeline {name}, its order and options: {', '.join(step.name for step in steps) or 'no passes'}"
    if config.backends:
        yield f"options of the backends {', '.join(config.backends)}"
    if config.trace.leaf_functions:
        yield f"leaf functions {', '.join(config.trace.leaf_functions)}"

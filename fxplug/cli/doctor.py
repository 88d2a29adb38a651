"""``fxplug doctor``."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click
from packaging.requirements import Requirement

import fxplug
from fxplug.cli.environment import environment, installed_version
from fxplug.cli.failures import FAILED, traceback_option
from fxplug.cli.host import config_option
from fxplug.cli.listings import STATUS_STYLES, needs_text
from fxplug.cli.terminal import print_table
from fxplug.errors import FxplugError
from fxplug.plugins import Config, PluginManager, PluginWarning, load_config

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["doctor"]

_LIBRARIES = (
    "torch",
    "pluggy",
    "pydantic",
    "safetensors",
    "click",
    "rich",
    "packaging",
    "importlib-metadata",
)
_VARIABLES = ("FXPLUG_CONFIG", "FXPLUG_LOAD_PLUGINS", "FXPLUG_DISABLE_PLUGINS", "FXPLUG_STRICT")


@dataclass
class _Findings:
    """What is broken, each with what to do."""

    problems: list[str] = field(default_factory=list[str])


@click.command(short_help="Look for what is broken in this installation, and say what to do.")
@config_option
@traceback_option
def doctor(config: Path | None) -> None:
    """Look at versions, configuration, plugins and backends; say what is broken and what to do about it.

    Exits with 1 if something is broken.
    """
    findings = _Findings()
    _show_environment(findings)
    manager = _manager(config, findings)
    _show_configuration(manager)
    _show_plugins(manager, findings)
    _show_backends(manager)
    _show_verdict(findings)
    if findings.problems:
        sys.exit(FAILED)


def _show(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo(click.style(title, bold=True))
    print_table(header, rows, STATUS_STYLES)
    click.echo()


def _show_environment(findings: _Findings) -> None:
    facts = environment()
    for requirement in _requirements():
        version = installed_version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            findings.problems.append(
                f"fxplug requires {requirement}, and {version or 'nothing'} is installed. Run: "
                f"pip install '{requirement.name}{requirement.specifier}'"
            )
    rows = [
        ("fxplug", f"{fxplug.__version__}, {Path(fxplug.__file__).parent}"),
        ("Python", f"{facts['python']}, {sys.executable}"),
        *((name, installed_version(name) or "MISSING") for name in _LIBRARIES),
        ("machine", f"{facts['processor']}, {facts['threads']} threads, {facts['platform']}"),
    ]
    _show("Environment", ("what", "version"), rows)


def _requirements() -> list[Requirement]:
    """Return what fxplug requires, as its metadata says it; nothing in a checkout that was never installed."""
    try:
        texts = metadata.requires("fxplug") or []
    except metadata.PackageNotFoundError:
        return []
    found = [Requirement(text) for text in texts]
    return [entry for entry in found if entry.marker is None or entry.marker.evaluate({"extra": ""})]


def _manager(config: Path | None, findings: _Findings) -> PluginManager:
    """Return a manager that knows as much as possible, however much is wrong."""
    settings = Config()
    try:
        settings = load_config(config)
        return _lenient_manager(settings)
    except FxplugError as error:
        findings.problems.append(error.message)
    # Without what selects plugins, which is what may be wrong.
    without_selection = {name: text for name, text in os.environ.items() if name not in _VARIABLES}
    return _lenient_manager(Config(), without_selection)


def _lenient_manager(settings: Config, environ: dict[str, str] | None = None) -> PluginManager:
    with warnings.catch_warnings():
        # The table of plugins says the same.
        warnings.simplefilter("ignore", PluginWarning)
        return PluginManager(config=settings, strict=False, environ=environ)


def _show_configuration(manager: PluginManager) -> None:
    rows = [("file", str(manager.config.file or "none"))]
    rows += [(name, repr(os.environ[name])) for name in _VARIABLES if name in os.environ]
    _show("Configuration", ("what", "value"), rows)


def _show_plugins(manager: PluginManager, findings: _Findings) -> None:
    infos = manager.plugin_infos()
    if not infos:
        click.echo(click.style("Plugins", bold=True))
        click.echo("none installed\n")
        return
    rows = [(info.name, f"{info.distribution} {info.version}", info.status, info.reason) for info in infos]
    _show("Plugins", ("plugin", "distribution", "status", "reason"), rows)
    findings.problems += [
        f"Plugin {info.name!r} ({info.distribution} {info.version}) is {info.status}: {info.reason}. {info.remedy}"
        for info in infos
        if info.status in {"failed", "incompatible"}
    ]


def _show_backends(manager: PluginManager) -> None:
    rows = [(offer.shown_name, needs_text(offer.record.requires)) for offer in manager.backends().values()]
    _show("Backends", ("backend", "engine"), rows)


def _show_verdict(findings: _Findings) -> None:
    if not findings.problems:
        click.echo(click.style("Nothing is broken.", fg="green", bold=True) + " Next:")
        click.echo("  fxplug optimize MODEL --example 1x3x224x224 --out optimised")
        click.echo("  fxplug passes list")
        return
    count = len(findings.problems)
    click.echo(
        click.style(f"{count} {'thing is' if count == 1 else 'things are'} broken:", fg="red", bold=True)
    )
    for problem in findings.problems:
        click.echo(f"  - {problem}")

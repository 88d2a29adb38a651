"""``fxplug doctor``."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from pathlib import Path

import click
from packaging.requirements import Requirement

import fxplug
from fxplug.cli.data import json_option, print_json
from fxplug.cli.environment import environment, installed_version
from fxplug.cli.failures import FAILED, traceback_option
from fxplug.cli.findings import Findings
from fxplug.cli.options import config_option
from fxplug.cli.torch_names import PROBES, missing_names

__all__ = ["doctor"]

_LIBRARIES = (
    "torch",
    "pluggy",
    "pydantic",
    "click",
    "rich",
    "packaging",
    "importlib-metadata",
)


@click.command(short_help="Look for what is broken in this installation, and say what to do.")
@json_option
@config_option
@traceback_option
def doctor(config: Path | None, *, as_json: bool) -> None:
    """Look at versions, PyTorch's inner names, configuration, plugins, backends and programs.

    Says what is broken and what to do about it, and what is missing without being broken. Exits with 1 if something
    is broken.
    """
    findings = Findings()
    _find_environment(findings)
    _find_torch_names(findings)
    _find_onednn(findings)
    _find_about_plugins(config, findings)
    if as_json:
        print_json(findings.as_data(_next_steps(findings)))
    else:
        _show(findings)
    if findings.problems:
        sys.exit(FAILED)


def _find_environment(findings: Findings) -> None:
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
    findings.sections["Environment"] = [{"what": what, "version": version} for what, version in rows]


def _requirements() -> list[Requirement]:
    """Return what fxplug requires, as its metadata says it; nothing in a checkout that was never installed."""
    try:
        texts = metadata.requires("fxplug") or []
    except metadata.PackageNotFoundError:
        return []
    found = [Requirement(text) for text in texts]
    return [entry for entry in found if entry.marker is None or entry.marker.evaluate({"extra": ""})]


def _find_torch_names(findings: Findings) -> None:
    missing = {probe.name for probe in missing_names()}
    findings.sections["Torch names"] = [
        {"name": probe.name, "needed for": probe.needed_for, "found": probe.name not in missing}
        for probe in PROBES
    ]
    findings.problems += [
        f"PyTorch {installed_version('torch')} has no {probe.name}, and fxplug needs it for: {probe.needed_for}. "
        f"Install a version of PyTorch that this fxplug was tested with, or a newer fxplug."
        for probe in PROBES
        if probe.name in missing
    ]


def _find_onednn(findings: Findings) -> None:
    try:
        fault: str = importlib.import_module("fxplug.execute.fused").onednn_fault()
    except ImportError:  # Which of torch's names is missing is said already.
        return
    if fault:
        findings.notes.append(
            f"The pass onednn-fuse does nothing here: oneDNN cannot be used, {fault}. Models run all the same, without "
            "what it would gain."
        )


def _find_about_plugins(config: Path | None, findings: Findings) -> None:
    # Not at the top: without one of torch's inner names the host cannot be imported, and that is to be said.
    try:
        host = importlib.import_module("fxplug.cli.host_findings")
    except ImportError as error:
        findings.problems.append(f"The plugin host cannot be imported: {error}.")
        return
    host.find_about_plugins(config, findings)


def _next_steps(findings: Findings) -> list[str]:
    if findings.problems:
        return ["fxplug plugins list --all", "fxplug doctor"]
    return ["fxplug optimize MODEL --example 1x3x224x224 --out optimised", "fxplug passes list"]


def _show(findings: Findings) -> None:
    for title in findings.sections:
        if title == "Torch names":
            rows = findings.sections[title]
            found = sum(bool(row["found"]) for row in rows)
            click.echo(f"{click.style(title, bold=True)}\n{found} of {len(rows)} private names found\n")
        elif title in {"Plugins", "Environment", "Configuration", "Backends"} or findings.sections[title]:
            findings.show_section(title, "none installed")
    for note in findings.notes:
        click.echo(click.style("Note: ", fg="yellow", bold=True) + note)
    _show_verdict(findings)


def _show_verdict(findings: Findings) -> None:
    if not findings.problems:
        click.echo(click.style("Nothing is broken.", fg="green", bold=True) + " Next:")
    else:
        count = len(findings.problems)
        verb = "thing is" if count == 1 else "things are"
        click.echo(click.style(f"{count} {verb} broken:", fg="red", bold=True))
        for problem in findings.problems:
            click.echo(f"  - {problem}")
        click.echo("Then:")
    for step in _next_steps(findings):
        click.echo(f"  {step}")

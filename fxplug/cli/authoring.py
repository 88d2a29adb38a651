"""``fxplug plugins check`` and ``fxplug plugins new``: for those who write plugins."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path
from string import Template

import click
from packaging.version import Version

import fxplug
import fxplug.testing
from fxplug.cli.failures import FAILED, traceback_option
from fxplug.cli.listings import plugins
from fxplug.cli.terminal import print_table
from fxplug.errors import ConfigError
from fxplug.plugins import discover
from fxplug.plugins.markers import PROJECT
from fxplug.plugins.refusal import Refused, in_sentences

__all__ = ["plugins"]

_LONGEST_NAME = 60

_STYLES = {"passed": "green", "skipped": "yellow", "failed": "bold red"}

_FILES = {
    "pyproject.toml.tmpl": "pyproject.toml",
    "README.md.tmpl": "README.md",
    "CHANGELOG.md.tmpl": "CHANGELOG.md",
    "LICENSE.tmpl": "LICENSE",
    "init.py.tmpl": "src/{package}/__init__.py",
    "plugin.py.tmpl": "src/{package}/plugin.py",
    "passes.py.tmpl": "src/{package}/passes.py",
    "tests.py.tmpl": "tests/test_{package}.py",
    "workflow.yml.tmpl": ".github/workflows/tests.yml",
}
"""File of the template -> where it goes."""


@plugins.command("check")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@traceback_option
def check_plugin(name: str, *, as_json: bool) -> None:
    """Check the installed plugin NAME against all that fxplug asks of plugins.

    It is loaded alone and without configuration, its import is watched in a process of its own, and its passes and
    backends run on small models. Exits with 1 if a check fails.
    """
    report = fxplug.testing.check_plugin(name)
    if as_json:
        click.echo(json.dumps(report.to_data(), indent=2))
    else:
        rows = [
            (finding.check, finding.subject, finding.outcome, in_sentences(finding.reason, finding.remedy))
            for finding in report.findings
        ]
        print_table(("check", "of", "outcome", "what was found, and what to do"), rows, _STYLES)
        passed = len(report.findings) - len(report.failures) - len(report.skipped)
        click.echo(
            f"\n{report.plugin} ({report.distribution} {report.version}): {passed} passed, "
            f"{len(report.skipped)} skipped, {len(report.failures)} failed."
        )
    if not report.passed:
        sys.exit(FAILED)


@plugins.command("new")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    help="Where the folder fxplug-NAME is made; by default here.",
)
@traceback_option
def new_plugin(name: str, directory: Path) -> None:
    """Write the distribution fxplug-NAME: a plugin with a pass, a leaf rule, tests, and a CI file.

    NAME is lower-case words joined by hyphens. Nothing that exists is overwritten.
    """
    from fxplug.cli.output import OutputError, OutputFolder  # noqa: PLC0415 - imports PyTorch; help does without

    _check_name(name)
    target = directory / f"fxplug-{name}"
    try:
        exists = target.exists() or target.is_symlink()
    except OSError as error:
        raise OutputError(
            f"Cannot write {str(target)!r}: {error.strerror}. Give another folder: --directory."
        ) from error
    if exists:
        raise OutputError(
            f"Cannot make the plugin {name!r}: {str(target)!r} exists already. Choose another name, remove it, or "
            f"give another folder: --directory."
        )
    with OutputFolder(target).writing() as folder:
        paths = _write(folder, name)
    click.echo(f"Wrote {target}: {', '.join(paths)}.\nNext:")
    click.echo(f"  pip install {_as_path(target)}\n  pytest {target}\n  fxplug plugins check {name}")


def _as_path(target: Path) -> str:
    """Return what pip takes for a folder and not for the name of a distribution."""
    return str(target) if target.is_absolute() else f"./{target.as_posix()}"


def _check_name(name: str) -> None:
    from fxplug.plugins.registration import check_plugin_name  # noqa: PLC0415 - imports PyTorch; help does without

    if name.startswith("fxplug-"):
        short = name.removeprefix("fxplug-")
        raise ConfigError(
            f"Cannot make a plugin named {name!r}: 'fxplug-' is put in front by itself. Run: fxplug plugins new {short}"
        )
    try:
        check_plugin_name(name)
    except Refused as refusal:
        reason = str(refusal).removeprefix("its entry point ")
        raise ConfigError(
            f"Cannot make a plugin that {reason}. Choose a name such as 'my-passes'."
        ) from refusal
    fault = _name_fault(name)
    if fault:
        raise ConfigError(f"Cannot make a plugin named {name!r}: {fault}. Choose a name such as 'my-passes'.")
    for candidate in discover():
        if candidate.is_called(name):
            raise ConfigError(
                f"Cannot make a plugin named {name!r}: {candidate.provider} is installed and has that name. Choose "
                f"another one, or uninstall it."
            )


def _name_fault(name: str) -> str:
    """Return what is wrong with a name that the host would take, a clause; empty for nothing."""
    if name == PROJECT:
        return "that is fxplug itself"
    if name[0].isdigit():
        return "names of the hooks that it could declare would begin with a digit"
    if len(name) > _LONGEST_NAME:
        return f"it has {len(name)} letters, and files are named after it; {_LONGEST_NAME} are enough"
    return ""


def _write(folder: Path, name: str) -> list[str]:
    values = {
        "name": name,
        "distribution": f"fxplug-{name}",
        "package": f"fxplug_{name.replace('-', '_')}",
        "requirement": _requirement(),
    }
    template = resources.files("fxplug.cli").joinpath("template")
    paths: list[str] = []
    for source, wanted in _FILES.items():
        path = wanted.format(package=values["package"])
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        # substitute, not safe_substitute: a value that is missing is an error.
        file.write_text(
            Template(template.joinpath(source).read_text(encoding="utf-8")).substitute(values),
            encoding="utf-8",
        )
        paths.append(path)
    return paths


def _requirement() -> str:
    """Return the range of fxplug for which a plugin that is written today is made."""
    version = Version(fxplug.__version__)
    end = f"{version.major + 1}" if version.major else f"0.{version.minor + 1}"
    return f"fxplug>={version.major}.{version.minor},<{end}"

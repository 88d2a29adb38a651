"""``fxplug config``: what is in force, whether it is right, and its schema."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from fxplug.cli.data import json_option, plain_data, print_json
from fxplug.cli.failures import FAILED, traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.references import load_model
from fxplug.cli.terminal import print_table
from fxplug.plugins.checking import check_config
from fxplug.plugins.resolved import VARIABLES, ResolvedValue, resolved_values
from fxplug.plugins.schema import config_schema

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug.plugins import ConfigFinding

__all__ = ["config"]


@click.group(short_help="The configuration: values in force, a check, a schema for editors.")
def config() -> None:
    """Show and check the configuration."""


@config.command("show")
@json_option
@config_option
@traceback_option
def show_config(config: Path | None, *, as_json: bool) -> None:
    """Show every value that is in force, and where it came from."""
    manager = manager_for(config)
    values = resolved_values(manager, os.environ)
    if as_json:
        print_json(
            {
                "file": manager.config.file,
                "values": values,
                "environment": {name: os.environ.get(name) for name in VARIABLES},
            }
        )
        return
    click.echo(f"configuration: {manager.config.file or 'none'}\n")
    print_table(("key", "value", "from"), [_row(value) for value in values])
    click.echo()
    rows = [(name, repr(os.environ[name]) if name in os.environ else "not set") for name in VARIABLES]
    print_table(("environment variable", "value"), rows)


def _row(value: ResolvedValue) -> tuple[str, str, str]:
    text = "not set" if value.value is None else json.dumps(plain_data(value.value), ensure_ascii=False)
    return value.key, text, f"{value.source} ({value.note})" if value.note else value.source


@config.command("check")
@click.option(
    "--model",
    metavar="MODEL",
    help="package.module:callable or path.py:callable: globs of modules have to match one of its modules.",
)
@json_option
@config_option
@traceback_option
@click.pass_context
def check(context: click.Context, model: str | None, config: Path | None, *, as_json: bool) -> None:
    """Look for everything that is wrong in the configuration.

    Looked at are keys and values, names of plugins, required plugins, names, options and order of the passes of every
    pipeline, names and options of backends, and globs of leaf functions; with --model, globs of modules, too. Exits
    with 1 if something has to be corrected.
    """
    report = check_config(config, root=None if model is None else load_model(context, model))
    if as_json:
        print_json({"file": report.file, "findings": report.findings, "checked": report.checked})
    else:
        for finding in report.findings:
            click.echo(_styled(finding))
        if report.findings:
            click.echo()
        click.echo("Checked:")
        for part in report.checked or ["nothing: the file could not be read"]:
            click.echo(f"  - {part}")
        click.echo(_verdict(len(report.errors), len(report.findings) - len(report.errors)))
    if report.errors:
        sys.exit(FAILED)


def _styled(finding: ConfigFinding) -> str:
    text = str(finding)
    word = f"{finding.severity}:"
    shown = click.style(word, fg="red" if finding.severity == "error" else "yellow", bold=True)
    return text.replace(word, shown, 1)


def _verdict(errors: int, warnings: int) -> str:
    if not errors and not warnings:
        return "Nothing is wrong."
    return f"{errors} {'error' if errors == 1 else 'errors'}, {warnings} {'warning' if warnings == 1 else 'warnings'}."


@config.command("schema", short_help="Print the JSON Schema of the configuration.")
@click.option("--pyproject", is_flag=True, help="For pyproject.toml instead of fxplug.toml.")
@config_option
@traceback_option
def schema(config: Path | None, *, pyproject: bool) -> None:
    """Print the JSON Schema of the configuration, with the passes and backends there are and their options."""
    found: dict[str, Any] = config_schema(manager_for(config), pyproject=pyproject)
    print_json(found)

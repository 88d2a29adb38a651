"""``fxplug pipelines``, and what a command line changes in a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fxplug.cli.data import json_option, plain_data, print_json
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.terminal import print_table
from fxplug.errors import FingerprintError
from fxplug.plugins import pipeline_overrides
from fxplug.plugins.config import toml_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fxplug.passes import Pipeline
    from fxplug.plugins import PipelineOverrides, PluginManager

__all__ = ["check_overrides", "command_overrides", "pipelines"]


@click.group(short_help="What a pipeline runs, with its fingerprint.")
def pipelines() -> None:
    """Show pipelines."""


@pipelines.command("show")
@click.argument("name")
@json_option
@config_option
@traceback_option
def show_pipeline(name: str, config: Path | None, *, as_json: bool) -> None:
    """Show what the pipeline NAME runs: passes in order with their options, settings, and the fingerprint.

    The fingerprint is the same wherever the same passes of the same versions run with the same options.
    """
    pipeline = manager_for(config).resolve_pipeline(name)
    settings = _settings(pipeline)
    fingerprint, reason = _fingerprint(pipeline)
    if as_json:
        passes = [
            {
                "name": step.name,
                "provider": step.provider,
                "options": dict(step.options),
                "time_limit": step.time_limit,
                "hard_time_limit": step.hard_time_limit,
            }
            for step in pipeline.steps
        ]
        print_json({"name": name, **settings, "passes": passes, "fingerprint": fingerprint})
        return
    print_table(
        ("", "pass", "options", "from"),
        [
            (str(number), step.name, ", ".join(_option_texts(step)) or "none", step.provider)
            for number, step in enumerate(pipeline.steps, 1)
        ],
    )
    click.echo()
    rows = [*settings.items(), ("fingerprint", fingerprint or reason)]
    for label, value in rows:
        click.echo(f"{label + ':':<17} {'none' if value is None else plain_data(value)}")


def _fingerprint(pipeline: Pipeline) -> tuple[str | None, str]:
    """Return the fingerprint, or why there is none."""
    try:
        return pipeline.fingerprint(), ""
    except FingerprintError as error:
        return None, f"none: {error.message}"


def _settings(pipeline: Pipeline) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(pipeline).items()
        if name not in {"name", "steps"} and name[0] != "_"
    }


def _option_texts(step: Any) -> Iterator[str]:
    for name, value in step.options.items():
        yield f"{name}={plain_data(value)!r}"
    for name in ("time_limit", "hard_time_limit"):
        if getattr(step, name) is not None:
            yield f"{name}={getattr(step, name)!r}"


# -- command lines -------------------------------------------------------------------------------------------


def command_overrides(disable: Sequence[str], settings: Sequence[str]) -> PipelineOverrides:
    """Return what a command line changes in its pipeline.

    Args:
        disable: Names of passes.
        settings: Each as ``"PASS.OPTION=VALUE"``.

    Raises:
        click.UsageError: A setting has another form.
    """
    options: dict[str, dict[str, Any]] = {}
    for text in settings:
        name, option, value = _parsed(text)
        options.setdefault(name, {})[option] = value
    override = pipeline_overrides(disable=disable, options=options)
    override.source = "the command line"
    given = [f"--disable {name}" for name in disable] + [f"--set {text}" for text in settings]
    override.shown = " ".join(given)
    return override


def check_overrides(manager: PluginManager, pipeline: Pipeline, settings: Sequence[str]) -> None:
    """Refuse a setting for a pass that does not run.

    Raises:
        click.UsageError: There is one; the message names it.
    """
    running = {step.name for step in pipeline.steps}
    for text in settings:
        name = _parsed(text)[0]
        if manager.find_pass(name).name not in running:
            raise click.UsageError(f"--set {text}: the pass {name!r} does not run. Leave the setting out.")


def _parsed(text: str) -> tuple[str, str, Any]:
    key, equals, value = text.partition("=")
    name, dot, option = key.strip().partition(".")
    if not (equals and dot and name and option):
        raise click.UsageError(f"Cannot read --set {text}: write PASS.OPTION=VALUE, such as fold.bits=4.")
    return name, option, toml_value(value)

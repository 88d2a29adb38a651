"""``fxplug plugins``, ``fxplug passes`` and ``fxplug backends``: what there is and who brought it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from fxplug.cli.data import json_option, print_json
from fxplug.cli.environment import installed_version
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option, manager_for, plugin_infos
from fxplug.cli.terminal import STATUS_STYLES, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug.plugins import PluginInfo

__all__ = ["backends", "passes", "plugins"]

_NAMED_HOOKS = frozenset({"fxplug_register_passes", "fxplug_register_backends", "fxplug_register_commands"})
"""Hooks whose offers the list names one by one."""


@click.group(short_help="The plugins there are, and what became of each.")
def plugins() -> None:
    """Show plugins."""


@plugins.command("list")
@json_option
@click.option("--all", "with_disabled", is_flag=True, help="Show those that are disabled, too.")
@config_option
@traceback_option
def list_plugins(config: Path | None, *, as_json: bool, with_disabled: bool) -> None:
    """List the installed plugins: what they offer, or why they take no part."""
    found = plugin_infos(config)
    infos = [info for info in found if with_disabled or info.status != "disabled"]
    if as_json:
        print_json([_plugin_data(info) for info in infos])
        return
    hidden = len(found) - len(infos)
    if infos:
        rows = [
            (info.name, f"{info.distribution} {info.version}", info.status, _plugin_notes(info))
            for info in infos
        ]
        print_table(("plugin", "distribution", "status", "offers, or reason"), rows, STATUS_STYLES)
    else:
        click.echo("No plugin takes part." if hidden else "No plugin is installed.")
    if hidden:
        click.echo(
            f"{hidden} disabled ({', '.join(info.name for info in found if info not in infos)}); --all shows why."
        )


def _plugin_notes(info: PluginInfo) -> str:
    if info.status != "active":
        return info.explanation
    parts = [
        f"{kind} {', '.join(names)}"
        for kind, names in (("passes", info.passes), ("backends", info.backends), ("commands", info.commands))
        if names
    ]
    answers = [hook for hook in info.hooks if hook not in _NAMED_HOOKS]
    if answers:
        parts.append(f"hooks {', '.join(hook.removeprefix('fxplug_') for hook in answers)}")
    return "; ".join(parts) or "nothing"


def _plugin_data(info: PluginInfo) -> dict[str, Any]:
    """Return everything that is known of a plugin as plain values."""
    data = {entry.name: getattr(info, entry.name) for entry in fields(info) if entry.name != "error"}
    data["records"] = [vars(record) for record in info.records]
    data["failures"] = [vars(failure) for failure in info.failures]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


@plugins.command("show")
@click.argument("name")
@json_option
@config_option
@traceback_option
def show_plugin(name: str, config: Path | None, *, as_json: bool) -> None:
    """Show everything that is known of one plugin; NAME is its own or that of its distribution."""
    info = manager_for(config).plugin_info(name)
    if as_json:
        print_json(_plugin_data(info))
        return
    for title, lines in _plugin_facts(info):
        for line in lines:
            click.echo(f"{click.style(title.ljust(15), bold=True)}{line}")
            title = ""  # noqa: PLW2901 - the lines that follow belong to the same title


def _plugin_facts(info: PluginInfo) -> list[tuple[str, list[str]]]:
    """Return title -> lines."""
    order = [f"before {name} (PLUGIN_BEFORE)" for name in info.before]
    order += [f"after {name} (PLUGIN_AFTER)" for name in info.after]
    place = [] if info.place is None else [f"{info.place}, {'; '.join(order) or 'by name'}"]
    offers = [
        (f"{record.hook.removeprefix('fxplug_register_')}: {record.name}", record.summary)
        for record in info.records
    ]
    records = [f"{name} - {summary}" if summary else name for name, summary in offers]
    answers = [hook for hook in info.hooks if not hook.startswith("fxplug_register_")]
    idle = [f"{hook} (nobody who takes part declares it)" for hook in info.idle_hooks]
    return [
        ("plugin", [info.name]),
        ("distribution", [f"{info.distribution} {info.version}"]),
        ("status", [f"{info.status}: {info.explanation}" if info.reason else info.status]),
        ("module", [f"{info.target}, {info.path}" if info.path else info.target]),
        ("requires", [f"fxplug {info.core_range}".strip() if info.core_range else "any fxplug"]),
        ("place", place),
        ("hooks", [*answers, *idle]),
        ("declares", list(info.declared_hooks)),
        ("offers", records),
        ("programs", [f"{program}: {purpose}" for program, purpose in info.programs.items()]),
        ("failures", [f"{failure.hook}: {failure.reason}" for failure in info.failures]),
    ]


@click.group(short_help="The passes and pipelines there are.")
def passes() -> None:
    """Show passes."""


@passes.command("list")
@json_option
@config_option
@traceback_option
def list_passes(config: Path | None, *, as_json: bool) -> None:
    """List the passes, and the pipelines with the passes that each one runs."""
    manager = manager_for(config)
    offers = list(manager.passes().values())
    pipelines = {
        name: [step.name for step in manager.resolve_pipeline(name).steps] for name in manager.pipelines()
    }
    if as_json:
        entries = [
            {
                "name": offer.name,
                "short_name": offer.alias,
                "phase": offer.record.phase,
                "summary": offer.record.summary,
                "provider": offer.provider,
            }
            for offer in offers
        ]
        print_json({"passes": entries, "pipelines": pipelines})
        return
    rows = [(offer.shown_name, offer.record.phase, offer.record.summary, offer.provider) for offer in offers]
    print_table(("pass", "phase", "what it does", "from"), rows)
    click.echo()
    print_table(("pipeline", "passes"), [(name, ", ".join(steps)) for name, steps in pipelines.items()])


@click.group(short_help="The backends there are, and what each one runs.")
def backends() -> None:
    """Show backends."""


@backends.command("list")
@json_option
@config_option
@traceback_option
def list_backends(config: Path | None, *, as_json: bool) -> None:
    """List the backends, and what each one needs that is not installed."""
    offers = list(manager_for(config).backends().values())
    if as_json:
        entries = [
            {
                "name": offer.name,
                "short_name": offer.alias,
                "summary": offer.record.summary,
                "provider": offer.provider,
                "requires": {name: installed_version(name) for name in offer.record.requires},
            }
            for offer in offers
        ]
        print_json(entries)
        return
    rows = [
        (offer.shown_name, offer.record.summary, needs_text(offer.record.requires), offer.provider)
        for offer in offers
    ]
    print_table(("backend", "what it does", "engine", "from"), rows)


@backends.command("show")
@click.argument("name")
@json_option
@config_option
@traceback_option
def show_backend(name: str, config: Path | None, *, as_json: bool) -> None:
    """Show the options of a backend, and the operators that it has converters for, with who brings them."""
    manager = manager_for(config)
    offer = manager.find_backend(name)
    options = manager.backend_options(name)
    operators = dict(offer.create(**options).operators())
    if as_json:
        entry = {"name": offer.name, "provider": offer.provider, "options": options, "operators": operators}
        print_json({"format": "fxplug-backend", "version": 1, **entry})
        return
    click.echo(f"{offer.name} of {offer.provider}: {offer.record.summary}")
    click.echo(f"engine: {needs_text(offer.record.requires)}")
    for option, value in options.items():
        click.echo(f"  {option} = {value!r}")
    click.echo()
    if operators:
        print_table(("operator", "converter from"), list(operators.items()))
        click.echo()
        click.echo(f"{len(operators)} operators; 'fxplug plan' says what is supported of a model.")
    else:
        click.echo(
            "It has no converters of single operators; 'fxplug plan' says what is supported of a model."
        )


def needs_text(requires: tuple[str, ...]) -> str:
    """Return which of the required distributions are there."""
    if not requires:
        return "built in"
    return ", ".join(f"{name} {installed_version(name) or 'is not installed'}" for name in requires)

"""``fxplug inspect`` and ``fxplug verify``: files as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fxplug.cli.data import json_option, print_json
from fxplug.cli.failures import FAILED, traceback_option
from fxplug.cli.host import config_option, manager_for
from fxplug.cli.models import allow_option, load_file
from fxplug.cli.terminal import print_table
from fxplug.cli.wording import for_command_line, size_text
from fxplug.errors import StorageError
from fxplug.ir import TABLE_HEADER, printable
from fxplug.storage import summarize

if TYPE_CHECKING:
    from pathlib import Path

    from fxplug.storage import FileSummary

__all__ = ["inspect", "verify"]


@click.command(short_help="What is in a file that fxplug wrote.", no_args_is_help=True)
@click.argument("file")
@click.option("--nodes", "form", flag_value="nodes", default=True, help="With a table of nodes.  [default]")
@click.option(
    "--code", "form", flag_value="code", help="With the program as Python; every name must be known."
)
@click.option("--summary", "form", flag_value="summary", help="Without the program.")
@json_option
@allow_option
@config_option
@traceback_option
@click.pass_context
def inspect(
    context: click.Context,
    file: str,
    form: str,
    config: Path | None,
    *,
    as_json: bool,
    allow: tuple[str, ...],
) -> None:
    """Show what is in FILE: versions, sizes, what it needs, guards and the program.

    It is read as data: no function that it names is looked up or imported, so a file can be looked at that cannot be
    loaded here. Only --code needs all names, as loading does.
    """
    summary = summarize(file)
    if as_json:
        print_json({"format": "fxplug-file", "version": 1, "file": summary})
        return
    for title, lines in _facts(summary):
        for line in lines:
            click.echo(f"{click.style(title.ljust(11), bold=True)}{printable(line)}")
            title = ""  # noqa: PLW2901 - the lines that follow belong to the same title
    if form == "code":
        click.echo()
        click.echo(load_file(context, file, allow, manager_for(config)).code.rstrip())
    elif form == "nodes":
        _show_graphs(summary)


def _facts(summary: FileSummary) -> list[tuple[str, list[str]]]:
    members = ", ".join(f"{name} {size_text(size)}" for name, size in summary.members.items())
    return [
        ("file", [f"{summary.path}, {size_text(summary.size)} ({members})"]),
        (
            "written by",
            [
                f"fxplug {summary.fxplug_version}, torch {summary.torch_version}, format {summary.format_version}"
            ],
        ),
        ("tensors", [f"{summary.tensors}, parameters with {summary.parameters:,} elements"]),
        ("modules", [f"{name} ({count})" if count > 1 else name for name, count in summary.modules.items()]),
        ("plugins", [f"{name}: {provider}" for name, provider in summary.plugins.items()] or ["none needed"]),
        ("engines", list(summary.engines)),
        ("allow", list(summary.allow)),
        ("guards", list(summary.guards) or ["none"]),
        ("left out", list(summary.left_out)),
    ]


def _show_graphs(summary: FileSummary) -> None:
    for graph in summary.graphs:
        click.echo()
        click.echo(click.style(graph.owner or "guards", bold=True))
        header: list[str] = list(TABLE_HEADER)
        rows = [_row(node) for node in graph.nodes]
        if any(node.region for node in graph.nodes):
            header.append("region")
            rows = [(*row, node.region) for row, node in zip(rows, graph.nodes, strict=True)]
        print_table(header, rows)


def _row(node: Any) -> tuple[str, ...]:
    return (node.op, node.name, node.target, node.args, node.kwargs)


@click.command(short_help="Check files that fxplug wrote, without running anything.", no_args_is_help=True)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@json_option
@allow_option
@config_option
@traceback_option
@click.pass_context
def verify(
    context: click.Context,
    files: tuple[str, ...],
    config: Path | None,
    *,
    as_json: bool,
    allow: tuple[str, ...],
) -> None:
    """Check each FILE: checksums, limits, structure, and that every name in it is known here.

    Exit code 0: all of them can be loaded; 1: one cannot, and what is wrong is named.
    """
    manager = manager_for(config)
    faults: dict[str, str | None] = {}
    for file in files:
        try:
            module = load_file(context, file, allow, manager)
            faults[file] = None
        except StorageError as error:
            faults[file] = for_command_line(str(error))
        if not as_json:
            fault = faults[file]
            found = f"sound, {len(list(module.graph.nodes))} nodes" if fault is None else fault  # pyright: ignore[reportPossiblyUnboundVariable] - there is no module where there is a fault
            click.echo(f"{file}: {found}")
    if as_json:
        entries = [{"file": file, "sound": fault is None, "fault": fault} for file, fault in faults.items()]
        print_json({"format": "fxplug-verification", "version": 1, "files": entries})
    if any(fault is not None for fault in faults.values()):
        context.exit(FAILED)

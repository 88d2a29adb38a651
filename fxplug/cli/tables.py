"""Tables of nodes, modules or kinds of calls: what ``fxplug cost`` and ``fxplug profile`` have in common."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fxplug.analyze.places import GROUPINGS
from fxplug.cli.data import json_option
from fxplug.cli.examples import mode_option
from fxplug.cli.failures import traceback_option
from fxplug.cli.host import config_option
from fxplug.cli.models import device_option, input_options
from fxplug.cli.terminal import print_table
from fxplug.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "TABLE_OPTIONS",
    "check_csv",
    "name_text",
    "place_text",
    "print_rows",
    "table_command",
    "write_csv",
]

SHOWN = 20
"""How many rows a table has where nobody says."""


TABLE_OPTIONS = ("by", "sort", "top", "csv_file")
"""Names of the parameters that `table_options` gives a command."""


def table_command(columns: Sequence[str], default: str) -> Any:
    """Return what gives a command MODEL, its inputs and device, and the options of a table; see `table_options`."""
    decorators = (
        click.argument("reference", metavar="MODEL"),
        input_options,
        mode_option("value"),
        device_option,
        table_options(columns, default),
        json_option,
        config_option,
        traceback_option,
        click.pass_context,
    )

    def decorate(function: Any) -> Any:
        for one in reversed(decorators):
            function = one(function)
        return function

    return decorate


def table_options(columns: Sequence[str], default: str) -> Any:
    """Return what gives a command the options of a table.

    Args:
        columns: Those by which it can be sorted.
        default: The one by which it is.
    """

    def decorate(function: Any) -> Any:
        for option in (
            click.option(
                "--csv",
                "csv_file",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Write the whole table to FILE, for programs.",
            ),
            click.option(
                "--top", type=click.IntRange(min=0), help=f"Rows to show; 0: all.  [default: {SHOWN}]"
            ),
            click.option(
                "--sort",
                type=click.Choice([*columns, "program"]),
                default=default,
                show_default=True,
                help="Sort by this column; program: in the order of the program.",
            ),
            click.option(
                "--by",
                type=click.Choice(GROUPINGS),
                default="node",
                show_default=True,
                help="What a row stands for: a node; a module, or all modules of a class, with what lies in them; what "
                "is called.",
            ),
        ):
            function = option(function)
        return function

    return decorate


def check_csv(path: Path | None) -> None:
    """Find out before the work whether a file can be written, leaving nothing behind.

    Raises:
        StorageError: It cannot.
    """
    if path is None:
        return
    is_new = not path.exists()
    try:
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error


def write_csv(path: Path, rows: Sequence[Any], columns: Sequence[str]) -> None:
    """Write rows, each an object with the columns as attributes.

    Raises:
        StorageError: The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(getattr(row, column)) for column in columns] for row in rows)
    try:
        path.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def _cell(value: Any) -> Any:
    """Return what a cell holds: names come from models, and a spreadsheet must not take one for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""What text begins with that spreadsheets compute."""


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"Cannot write {str(path)!r}: {error.strerror or error}. Name a file in a folder that can be written."
    )


def print_rows(header: Sequence[str], rows: Sequence[Sequence[str]], top: int | None) -> None:
    """Print the first rows, and say how many there are besides."""
    limit = len(rows) if top == 0 else SHOWN if top is None else top
    shown = rows[:limit]
    if shown:
        print_table(header, shown)
    if len(rows) > len(shown):
        click.echo(f"{len(rows) - len(shown)} more; --top 0 shows all.")
    click.echo()


def name_text(name: str, by: str) -> str:
    """Return the name of a row for people: names of modules may be any text, and a terminal obeys some."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return shown if name or by != "module" else "(root)"


def place_text(line: str) -> str:
    """Return a line of the program without the function and without the folders."""
    place = line.partition(" in ")[0]
    return place.replace("\\", "/").rpartition("/")[2]

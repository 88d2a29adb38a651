"""Writing for people: colours and frames on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["STATUS_STYLES", "arrow", "console", "print_table", "supports"]

STATUS_STYLES = {"active": "green", "disabled": "yellow", "failed": "bold red", "incompatible": "bold red"}
"""Status of a plugin -> how a terminal shows it."""


def console() -> Console:
    """Return the terminal; markup in texts is not interpreted."""
    return Console(markup=False, highlight=False, emoji=False)


def supports(text: str) -> bool:
    """Return whether standard output can show `text`."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def arrow() -> str:
    """Return an arrow that standard output can show."""
    return "→" if supports("→") else "->"


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], styles: dict[str, str] | None = None
) -> None:
    """Print a table.

    Args:
        header: Names of the columns.
        rows: Texts, as many in each as there are columns.
        styles: Text of a cell -> style that it has on a terminal.
    """
    screen = console()
    if screen.is_terminal:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for name in header:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell, (styles or {}).get(cell, "")) for cell in row))
        screen.print(table)
        return
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())

"""What a person sees while a model is optimised, and when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import click
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fxplug.cli.terminal import arrow, console, supports
from fxplug.cli.wording import bytes_text, change_text, node_text, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from fxplug.api import OptimizationEvent

__all__ = ["LiveView", "PlainView", "QuietView", "View", "make_view"]

_NAMES = {"run": "run eager", "trace": "trace", "check": "check", "measure": "measure"}
_NAME_WIDTH = 20
_SUMMARY_WIDTH = 27
_NODES_WIDTH = 17
_BAR_WIDTH = 20


class View(Protocol):
    """Shows an optimisation."""

    def title(self, lines: Sequence[str]) -> None:
        """Show what is going to be done."""
        ...

    def hear(self, event: OptimizationEvent) -> None:
        """Show a stage that starts, goes on or ends."""
        ...

    def stop(self) -> None:
        """Take away what moves."""
        ...

    def summary(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show what came of it, as pairs of name and text."""
        ...


def make_view(*, quiet: bool) -> View:
    """Return the view that fits standard output."""
    if quiet:
        return QuietView()
    screen = console()
    return LiveView(screen) if screen.is_terminal else PlainView()


class QuietView:
    """Shows nothing."""

    def title(self, lines: Sequence[str]) -> None:
        """Show nothing."""

    def hear(self, event: OptimizationEvent) -> None:
        """Show nothing."""

    def stop(self) -> None:
        """Have nothing to take away."""

    def summary(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show nothing."""


class PlainView:
    """Prints one line for each stage that ends."""

    def title(self, lines: Sequence[str]) -> None:
        """Print the lines."""
        for line in lines:
            click.echo(line)
        click.echo()

    def hear(self, event: OptimizationEvent) -> None:
        """Print a stage that has ended."""
        if event.state in {"finished", "failed"}:
            mark = "FAILED" if event.state == "failed" else "ok"
            name, summary, nodes, seconds, changes = _cells(event)
            line = f"{mark:<6} {name:<{_NAME_WIDTH}} {summary:<{_SUMMARY_WIDTH}} {nodes:<{_NODES_WIDTH}} {seconds:>8}"
            click.echo(f"{line}  {changes}".rstrip())

    def stop(self) -> None:
        """Have nothing to take away."""

    def summary(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print one line for each pair."""
        click.echo()
        for name, text in rows:
            click.echo(f"{name + ':':<{_NAME_WIDTH}} {text}")


class LiveView:
    """Shows the stage that runs with something that moves, and above it a line for each that has ended.

    Args:
        screen: The terminal.
    """

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._live: Live | None = None
        self._marks = {"finished": "✓", "failed": "✗"} if supports("✓✗") else {"finished": "+", "failed": "x"}
        self._spinner = "dots" if supports("⠋") else "line"
        self._bar = "━╌" if supports("━╌") else "#."

    def title(self, lines: Sequence[str]) -> None:
        """Show the lines, the first one as a title."""
        self._screen.print(Text(lines[0], "bold"))
        for line in lines[1:]:
            self._screen.print(Text(line, "dim"))
        self._screen.print()

    def hear(self, event: OptimizationEvent) -> None:
        """Show a stage that starts, goes on or ends."""
        if event.state == "started":
            # While latency is measured nothing else may run: the picture changes only between two measurements.
            moves = event.stage != "measure"
            self._live = Live(
                self._row(event),
                console=self._screen,
                transient=True,
                auto_refresh=moves,
                refresh_per_second=12,
            )
            self._live.start(refresh=True)
        elif event.state == "progress":
            if self._live is not None:
                self._live.update(self._row(event), refresh=True)
        else:
            self.stop()
            self._screen.print(self._row(event))

    def stop(self) -> None:
        """Take away the moving line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _row(self, event: OptimizationEvent) -> Table:
        name, summary, nodes, seconds, changes = _cells(event)
        if event.state in self._marks:
            style = "green" if event.state == "finished" else "red"
            mark: Text | Spinner = Text(self._marks[event.state], f"bold {style}")
        else:
            mark = Spinner(self._spinner, style="cyan")
            summary = _bar_text(*event.steps, self._bar) if event.steps[1] else ""
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(width=2)
        row.add_column(min_width=_NAME_WIDTH, no_wrap=True)
        row.add_column(min_width=_SUMMARY_WIDTH)
        row.add_column(min_width=_NODES_WIDTH, no_wrap=True)
        row.add_column(min_width=8, justify="right", no_wrap=True)
        row.add_column(style="dim")
        cells = (Text(summary), Text(nodes, "cyan"), Text(seconds, "dim"), Text(changes))
        row.add_row(mark, Text(name, "bold"), *cells)
        return row

    def summary(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show the pairs as a table."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in rows:
            table.add_row(f"  {name}", text)
        self._screen.print()
        self._screen.print(table)


def _cells(event: OptimizationEvent) -> tuple[str, str, str, str, str]:
    name = {"pass": event.subject, "lower": f"lower to {event.subject}"}.get(event.stage) or _NAMES[
        event.stage
    ]
    nodes = "" if event.nodes is None else node_text(*event.nodes, arrow())
    seconds = time_text(event.seconds) if event.seconds else ""
    return name, " ".join(event.summary.split()), nodes, seconds, _changes(event)


def _changes(event: OptimizationEvent) -> str:
    """Return what a pass changed; nothing where it changed nothing."""
    parts = [] if event.changes is None else [change_text(event.changes)]
    if event.bytes is not None and event.bytes[0] != event.bytes[1]:
        parts.append(bytes_text(*event.bytes, arrow()))
    return "; ".join(filter(None, parts))


def _bar_text(done: int, total: int, signs: str) -> str:
    full = _BAR_WIDTH * done // total
    return f"{signs[0] * full}{signs[1] * (_BAR_WIDTH - full)} {done}/{total}"

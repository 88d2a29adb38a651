"""What ``fxplug doctor`` found out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import click

from fxplug.cli.terminal import STATUS_STYLES, print_table

__all__ = ["Findings"]


@dataclass
class Findings:
    """Sections with rows, what is broken, and what is worth knowing."""

    sections: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, "list[dict[str, Any]]"])
    """Title -> rows, which have the same keys each."""
    problems: list[str] = field(default_factory=list[str])
    """What is broken, each with what to do."""
    notes: list[str] = field(default_factory=list[str])
    """What is missing or unsettled without being broken, each with what to do."""

    def show_section(self, title: str, empty: str = "none") -> None:
        """Print one section as a table."""
        click.echo(click.style(title, bold=True))
        rows = self.sections[title]
        if rows:
            print_table(tuple(rows[0]), [tuple(map(str, row.values())) for row in rows], STATUS_STYLES)
        else:
            click.echo(empty)
        click.echo()

    def as_data(self, next_steps: list[str]) -> dict[str, Any]:
        """Return plain values."""
        sections = {title.lower().replace(" ", "_"): rows for title, rows in self.sections.items()}
        return {**sections, "problems": self.problems, "notes": self.notes, "next": next_steps}

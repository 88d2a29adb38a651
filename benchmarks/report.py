"""What a run found out: rows of a table, as Markdown for people and as JSON for programs."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch

import fxplug
from benchmarks.timing import Ratio, paired_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.modes import Mode

__all__ = [
    "Bound",
    "Comparison",
    "Figure",
    "Report",
    "compare_samples",
    "describe_surroundings",
    "promised",
    "table",
]


@dataclass(frozen=True)
class Bound:
    """What the project promises about a row. It is printed beside what was measured, and nothing fails by it."""

    text: str
    """The promise as people read it, e.g. ``"at least 4"``."""
    least: float | None = None
    """The smallest value that keeps it."""
    most: float | None = None
    """The largest value that keeps it."""

    def holds(self, value: float) -> bool:
        """Return whether `value` keeps the promise."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class Comparison:
    """The same work done by torch.fx and by fxplug."""

    name: str
    unit: str
    """Of both costs, e.g. ``"ms"``."""
    torch_fx: float
    fxplug: float
    ratio: Ratio
    """torch.fx / fxplug: above 1, fxplug costs less."""
    bound: Bound | None = None
    """What is promised about the median of the ratio."""
    holds: bool | None = field(init=False, default=None)
    """Whether that is so; None where nothing is promised."""

    def __post_init__(self) -> None:
        """Compare the ratio with its bound."""
        if self.bound is not None:
            object.__setattr__(self, "holds", self.bound.holds(self.ratio.median))


@dataclass(frozen=True)
class Figure:
    """A cost that stands alone: a floor that nobody can get below, or something that torch.fx has no part in."""

    name: str
    unit: str
    value: float
    bound: Bound | None = None
    """What is promised about the value."""
    holds: bool | None = field(init=False, default=None)
    """Whether that is so; None where nothing is promised."""

    def __post_init__(self) -> None:
        """Compare the value with its bound."""
        if self.bound is not None:
            object.__setattr__(self, "holds", self.bound.holds(self.value))


@dataclass(frozen=True, kw_only=True)
class WayRow:
    """What one way of running a model took, beside what says which model and which way."""

    milliseconds: float | None = None
    """Median; None where the way is not available."""
    speed: Ratio | None = None
    """Time of eager / time of this, round by round."""
    error: float | None = None
    """How far the result is from that of eager."""
    note: str = ""
    """Why it is not available."""
    bound: str = ""
    """What the project promises about it."""
    holds: bool | None = None
    """Whether that is so in this run; None where nothing is promised."""

    def judgement(self) -> tuple[str, str]:
        """Return what is promised and whether it holds, for a table."""
        return self.bound, "" if self.holds is None else "yes" if self.holds else "NO"


@dataclass
class Report:
    """Everything one run measured."""

    mode: str
    surroundings: dict[str, str | int]
    comparisons: list[Comparison] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    def as_markdown(self) -> str:
        """Return two tables with a heading, readable as plain text too."""
        facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.surroundings.items())
        rows = [
            (
                comparison.name,
                comparison.unit,
                _number(comparison.torch_fx),
                _number(comparison.fxplug),
                f"{comparison.ratio.median:.2f}",
                f"{comparison.ratio.low:.2f} to {comparison.ratio.high:.2f}",
                *_verdict(comparison),
            )
            for comparison in self.comparisons
        ]
        figures = [
            (figure.name, figure.unit, _number(figure.value), *_verdict(figure)) for figure in self.figures
        ]
        promised = ("bound", "holds")
        parts = [
            f"# Benchmarks, {self.mode}",
            facts,
            table(
                ("work", "unit", "torch.fx", "fxplug", "torch.fx / fxplug", "quartiles", *promised),
                rows,
                left=2,
            ),
            table(("floors and costs of its own", "unit", "value", *promised), figures, left=2),
        ]
        return "\n\n".join(parts) + "\n"

    def as_json(self) -> str:
        """Return the same as JSON."""
        content = {
            "mode": self.mode,
            **self.surroundings,
            "ratios": {comparison.name: round(comparison.ratio.median, 3) for comparison in self.comparisons},
            "comparisons": [asdict(comparison) for comparison in self.comparisons],
            "figures": [asdict(figure) for figure in self.figures],
        }
        return json.dumps(_rounded(content), indent=2) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write both forms to `folder`, in place of those of the last run in the same mode."""
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for suffix, text in ((".json", self.as_json()), (".md", self.as_markdown())):
            path = folder / f"{self.mode}{suffix}"
            path.write_text(text, encoding="utf-8")
            written.append(path)
        return written


def promised(mode: Mode, text: str, *, least: float | None = None, most: float | None = None) -> Bound | None:
    """Return a promise about a row; None in a mode that is too rough to judge by."""
    return Bound(text, least, most) if mode.judged else None


def compare_samples(
    name: str,
    unit: str,
    torch_fx: Sequence[float],
    ours: Sequence[float],
    scale: float = 1.0,
    bound: Bound | None = None,
) -> Comparison:
    """Return a row from the samples of both sides.

    Args:
        name: What was done.
        unit: Unit of a sample once it is multiplied by `scale`.
        torch_fx: Samples of torch.fx, one per round.
        ours: Samples of fxplug, one per round.
        scale: From the unit of the samples to `unit`.
        bound: What is promised about the ratio.
    """
    return Comparison(
        name,
        unit,
        statistics.median(torch_fx) * scale,
        statistics.median(ours) * scale,
        paired_ratio(torch_fx, ours),
        bound,
    )


def describe_surroundings() -> dict[str, str | int]:
    """Return what the figures depend on, and nothing that names the machine."""
    return {
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "fxplug": fxplug.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_count": os.cpu_count() or 1,
    }


def _verdict(row: Comparison | Figure) -> tuple[str, str]:
    """Return the last two cells of a row: what is promised, and whether it is so."""
    if row.bound is None:
        return "", ""
    return row.bound.text, "yes" if row.holds else "NO"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_rounded(element) for element in value]
    return value


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Return a Markdown table whose columns line up; the first `left` ones are text, the others numbers."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [_row(header, widths, left), _rule(widths, left), *(_row(row, widths, left) for row in rows)]
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    padded = [
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"


def _rule(widths: Sequence[int], left: int) -> str:
    dashes = [
        "-" * width if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths)
    ]
    return f"| {' | '.join(dashes)} |"

"""What came of the operator suite, for programs and for people."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from fxplug.testing.operators.case import DTYPES, dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fxplug.testing.operators.cells import OperatorCell

__all__ = ["CellOutcome", "CellResult", "OperatorCoverage", "OperatorResult"]

CellOutcome = Literal["equal", "refused", "different", "failed", "outside"]
"""Computed what eager computes; refused with a reason, so that it stays in PyTorch; computed something else; raised an
error; not asked, since the engine as a whole lacks what the cell needs."""

_SHORT = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "uint8": "u8",
    "bool": "bool",
}


@dataclass(frozen=True)
class CellResult:
    """What came of one cell."""

    cell: OperatorCell
    outcome: CellOutcome
    reason: str = ""
    """Empty where the outcome is ``"equal"``."""


@dataclass(frozen=True)
class OperatorResult:
    """What came of all cells of one operator."""

    operator: str
    """With its overload: ``"aten.add.Tensor"``."""
    results: tuple[CellResult, ...]

    @property
    def applicable(self) -> tuple[CellResult, ...]:
        """What the engine could be asked."""
        return tuple(result for result in self.results if result.outcome != "outside")

    @property
    def equal(self) -> tuple[CellResult, ...]:
        """What it computed as eager does."""
        return tuple(result for result in self.results if result.outcome == "equal")

    @property
    def is_covered(self) -> bool:
        """Whether every applicable cell equals eager, and there is one."""
        return 0 < len(self.equal) == len(self.applicable)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Short names of the dtypes in which every applicable cell equals eager."""
        left = {result.cell.dtype for result in self.applicable} - {
            result.cell.dtype for result in self.applicable if result.outcome != "equal"
        }
        return tuple(_SHORT[dtype_name(dtype)] for dtype in DTYPES if dtype in left)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why applicable cells do not equal eager, each reason once, with the first cell that it holds for."""
        found: dict[str, str] = {}
        for result in self.applicable:
            if result.outcome != "equal":
                cell = result.cell.name.removeprefix(f"{self.operator} ").removeprefix(f"{self.operator}, ")
                found.setdefault(result.reason, f"{result.outcome} ({cell}): {result.reason}")
        return tuple(found.values())


@dataclass(frozen=True)
class OperatorCoverage:
    """What came of a run of the operator suite."""

    backend: str
    results: tuple[CellResult, ...]
    """In the order in which they ran."""

    @cached_property
    def operators(self) -> tuple[OperatorResult, ...]:
        """The results, by operator."""
        found: dict[str, list[CellResult]] = {}
        for result in self.results:
            found.setdefault(result.cell.case.operator, []).append(result)
        return tuple(OperatorResult(operator, tuple(results)) for operator, results in found.items())

    @property
    def covered(self) -> tuple[OperatorResult, ...]:
        """The operators that count: every applicable cell was run and equals eager."""
        return tuple(entry for entry in self.operators if entry.is_covered)

    @property
    def wrong(self) -> tuple[CellResult, ...]:
        """What computes something else than eager, or raises an error after the backend said that it supports it."""
        return tuple(result for result in self.results if result.outcome in {"different", "failed"})

    @property
    def summary(self) -> str:
        """One line for people."""
        asked = [result for result in self.results if result.outcome != "outside"]
        equal = sum(result.outcome == "equal" for result in asked)
        return (
            f"{self.backend}: {len(self.covered)} of {len(self.operators)} operators are covered, {equal} of "
            f"{len(asked)} applicable cells equal eager, {len(self.wrong)} do not; "
            f"{len(self.results) - len(asked)} do not apply"
        )

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield operator, dtypes, how many applicable cells are equal, and what the others are."""
        for entry in self.operators:
            cells = f"{len(entry.equal)} of {len(entry.applicable)}" if entry.applicable else "does not apply"
            yield entry.operator, " ".join(entry.dtypes), cells, "; ".join(entry.reasons)

    def outside(self) -> tuple[str, ...]:
        """Return why cells do not apply, each reason once."""
        reasons = (result.reason for result in self.results if result.outcome == "outside")
        return tuple(dict.fromkeys(reasons))

    def to_markdown(self) -> str:
        """Return a summary and a table, for a page of documentation."""
        lines = [
            f"{self.summary}.",
            "",
            *[f"- {reason}" for reason in self.outside()],
            *([""] if self.outside() else []),
            "| operator | dtypes | cells that equal eager | others |",
            "|---|---|---|---|",
            *[f"| {' | '.join(_escaped(row))} |" for row in self.rows()],
        ]
        return "\n".join(lines) + "\n"

    def to_data(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "backend": self.backend,
            "covered": [entry.operator for entry in self.covered],
            "operators": {
                entry.operator: [
                    {
                        "case": result.cell.case.note,
                        "dtype": dtype_name(result.cell.dtype),
                        "rank": result.cell.rank,
                        "dynamic": result.cell.dynamic,
                        "outcome": result.outcome,
                        "reason": result.reason,
                    }
                    for result in entry.results
                ]
                for entry in self.operators
            },
        }


def _escaped(row: Sequence[str]) -> list[str]:
    name, *rest = (text.replace("|", "\\|").replace("\n", " ") for text in row)
    return [f"`{name}`", *rest]

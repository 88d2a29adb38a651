"""The page of a plugin that says which operators its backend runs, made from what came of the operator suite."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fxplug.testing import OperatorCoverage

__all__ = ["version_of", "write_page"]

_PLUGINS = Path(__file__).resolve().parents[1] / "plugins"


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution, without what says how it was built."""
    return metadata.version(distribution).partition("+")[0].partition("-")[0]


def write_page(plugin: str, introduction: str, coverage: OperatorCoverage) -> None:
    """Write the page, and say in short what is on it.

    Args:
        plugin: Its distribution.
        introduction: What comes before the table.
        coverage: What came of the suite.
    """
    page = _PLUGINS / plugin / "docs" / "operators.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(introduction + coverage.to_markdown(), encoding="utf-8")
    print(coverage.summary)
    for result in coverage.wrong:
        print(result.cell.name, result.outcome, result.reason)

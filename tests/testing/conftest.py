"""A site for plugins that are written for one test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fxplug.testing import FakeSite, importing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def seen_of_nothing() -> dict[str, Any]:
    """What importing an empty module in a process of its own does; filled by the first test that sees it."""
    return {}


@pytest.fixture(autouse=True)
def one_process_for_empty_modules(seen_of_nothing, monkeypatch):
    """Start a process for an empty module once: such a process takes seconds, and it sees the same every time."""
    probe = importing._probe

    def probe_once(target, engines):
        found = importlib.util.find_spec(target)
        if engines or found is None or Path(found.origin).read_text():
            return probe(target, engines)
        if not seen_of_nothing:
            seen_of_nothing["seen"] = probe(target, engines)
        return seen_of_nothing["seen"]

    monkeypatch.setattr(importing, "_probe", probe_once)


@pytest.fixture
def site(tmp_path) -> Iterator[FakeSite]:
    with FakeSite(tmp_path / "site") as fake:
        yield fake

"""A site for plugins that are written for one test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fxplug.testing import FakeSite

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def site(tmp_path) -> Iterator[FakeSite]:
    with FakeSite(tmp_path / "site") as fake:
        yield fake

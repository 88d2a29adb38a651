"""Fixtures for the tests of plugins. Name it: ``pytest -p fxplug.testing.pytest_plugin``.

It is never loaded by itself, and loads fxplug only when a fixture is used, so that coverage sees all of a plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import fxplug.testing

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from fxplug.plugins import PluginManager
    from fxplug.testing import FakeDistribution, FakeSite, IsolatedHost

__all__ = ["fake_distribution", "fake_site", "load_plugin", "plugin_host", "plugin_manager"]


@pytest.fixture
def fake_site(tmp_path: Path) -> Generator[FakeSite]:
    """A folder on the path into which a test installs distributions."""
    with fxplug.testing.FakeSite(tmp_path / "site-packages") as site:
        yield site


@pytest.fixture
def fake_distribution(fake_site: FakeSite) -> Callable[..., FakeDistribution]:
    """Writes a distribution with a plugin: ``fake_distribution("demo", source, version="1.0", requires=[...])``."""
    return fake_site.install


@pytest.fixture
def plugin_host(fake_site: FakeSite) -> Generator[IsolatedHost]:
    """A host that refuses to look at what is installed and configured on the machine."""
    with fxplug.testing.isolated_host(fake_site) as host:
        yield host


@pytest.fixture
def plugin_manager(plugin_host: IsolatedHost) -> Callable[..., PluginManager]:
    """Makes a manager of modules, candidates and fake distributions: ``plugin_manager(module, strict=True)``."""
    return plugin_host.manager


@pytest.fixture
def load_plugin(plugin_host: IsolatedHost) -> Callable[..., PluginManager]:
    """Lets a plugin take part in every trace of the test: ``load_plugin(module, name="demo")``."""
    return plugin_host.load

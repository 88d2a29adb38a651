"""Fake distributions: folders of metadata and one module each, in a folder that is on the path."""

from __future__ import annotations

import importlib
import sys
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from fxplug.plugins import Config, PluginCandidate, PluginManager, discover, load_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

PREFIX = "fake_plugin_"


class FakeSite:
    """A folder of installed distributions.

    Attributes:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def install(
        self,
        name: str,
        source: str = "",
        *,
        distribution: str | None = None,
        version: str = "1.0",
        requires: Sequence[str] = (),
        target: str | None = None,
    ) -> str:
        """Write a distribution whose plugin is called `name`; return the name of the plugin's module."""
        owner = distribution or f"fxplug-{name}"
        module = PREFIX + owner.replace("-", "_").replace(".", "_")
        (self.folder / f"{module}.py").write_text(
            "import fxplug\nfrom fxplug import hookimpl\n" + dedent(source)
        )
        info = self.folder / f"{owner.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needed = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {owner}\nVersion: {version}\n{needed}")
        (info / "entry_points.txt").write_text(f"[fxplug]\n{name} = {target or module}\n")
        importlib.invalidate_caches()
        return module

    def candidates(self) -> list[PluginCandidate]:
        return discover([str(self.folder)])

    def manager(self, **arguments: Any) -> PluginManager:
        """Return a manager of what is installed here, deaf to the environment of the test run."""
        return PluginManager(
            **{"candidates": self.candidates(), "environ": {}, "version": "0.1.0", **arguments}
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    fake = FakeSite(tmp_path / "site")
    monkeypatch.syspath_prepend(str(fake.folder))
    yield fake
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


@pytest.fixture
def plugin_module() -> Callable[..., ModuleType]:
    """Makes a plugin module of functions, without a file."""

    def make(name: str, **members: Any) -> ModuleType:
        module = ModuleType(f"{PREFIX}{name}")
        for attribute, value in members.items():
            setattr(module, attribute, value)
        return module

    return make


@pytest.fixture
def manager_of(plugin_module: Callable[..., ModuleType]) -> Callable[..., PluginManager]:
    """Makes a manager of plugins given as name -> functions of the hooks, marked or not."""

    def make(plugins: dict[str, dict[str, Any]], **arguments: Any) -> PluginManager:
        candidates = [
            PluginCandidate.of_module(plugin_module(name, **members), name, version="1.0")
            for name, members in plugins.items()
        ]
        return PluginManager(**{"candidates": candidates, "environ": {}, "version": "0.1.0", **arguments})

    return make


@pytest.fixture
def config_file(tmp_path: Path) -> Callable[[str], Config]:
    """Writes a ``pyproject.toml`` and returns what it says."""

    def write(text: str) -> Config:
        path = tmp_path / "pyproject.toml"
        path.write_text(dedent(text))
        return load_config(path)

    return write

"""A plugin host that knows only what a test gives it, and distributions that exist only for a test."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fxplug.errors import PluginError
from fxplug.plugins import Config, PluginCandidate, PluginManager, discover, discovery
from fxplug.plugins.default import default_manager_is
from fxplug.plugins.discovery import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

__all__ = ["FakeDistribution", "FakeSite", "IsolatedHost", "IsolationError", "isolated_host", "make_plugin"]

_VARIABLES = "FXPLUG_"


class IsolationError(PluginError):
    """A test that is isolated asked for installed plugins, or for the configuration or environment of the machine."""

    code = "FXP-H020"


# -- fake distributions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FakeDistribution:
    """A distribution in the folder of a `FakeSite`."""

    name: str
    """Name of the plugin."""
    distribution: str
    version: str
    module: str
    """Name of its entry module, which can be imported."""
    folder: Path
    """What is on the path."""

    def candidate(self) -> PluginCandidate:
        """Return the plugin as discovery finds it."""
        found = discover([str(self.folder)])
        return next(candidate for candidate in found if candidate.distribution == self.distribution)


class FakeSite:
    """A folder of installed distributions, which is on the path while the context lasts.

    Afterwards the path is as before, and nothing that was imported from the folder is left.

    Args:
        folder: Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> FakeSite:  # noqa: PYI034 - typing.Self is newer than the oldest Python
        self.folder.mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(self.folder))
        return self

    def __exit__(self, *_: object) -> None:
        if str(self.folder) in sys.path:
            sys.path.remove(str(self.folder))
        for name in [name for name, module in sys.modules.items() if self._holds(module)]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def _holds(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and self.folder in Path(file).parents

    def install(
        self,
        name: str,
        source: str = "",
        *,
        distribution: str | None = None,
        version: str = "1.0",
        requires: Sequence[str] = (),
        target: str | None = None,
    ) -> FakeDistribution:
        """Write a distribution with one plugin: a module, and the metadata that pip would write.

        Args:
            name: Name of the entry point.
            source: Text of the entry module, indented as suits the test.
            distribution: By default ``fxplug-`` and the name.
            version: Version of the distribution.
            requires: What it requires, such as ``"fxplug>=0.1,<0.2"``.
            target: What the entry point names, if not the module that is written.
        """
        owner = distribution or f"fxplug-{name}"
        module = canonical(owner).replace("-", "_")
        (self.folder / f"{module}.py").write_text(dedent(source), encoding="utf-8")
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        needed = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {owner}\nVersion: {version}\n{needed}", encoding="utf-8"
        )
        (info / "entry_points.txt").write_text(f"[fxplug]\n{name} = {target or module}\n", encoding="utf-8")
        (info / "RECORD").write_text(f"{module}.py,,\n", encoding="utf-8")
        (info / "INSTALLER").write_text("fxplug.testing\n", encoding="utf-8")
        importlib.invalidate_caches()
        return FakeDistribution(name, owner, version, module, self.folder)


def make_plugin(name: str, *implementations: Callable[..., Any], **attributes: Any) -> ModuleType:
    """Return an entry module of functions that a test or a notebook defines.

    Args:
        name: Name of the plugin.
        implementations: Functions marked by `fxplug.hookimpl`, each with the name of its hook.
        attributes: What else the module holds, such as ``PLUGIN_BEFORE``.
    """
    module = ModuleType(f"fxplug_{name.replace('-', '_')}")
    vars(module).update({function.__name__: function for function in implementations}, **attributes)
    return module


# -- the host ------------------------------------------------------------------------------------------------


class IsolatedHost:
    """Makes plugin managers of what it is given; made by `isolated_host`."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._loaded: list[PluginCandidate] = []

    def manager(
        self, *plugins: ModuleType | PluginCandidate | FakeDistribution, **arguments: Any
    ) -> PluginManager:
        """Return a manager of these plugins and no others.

        Args:
            plugins: Entry modules (called as `fxplug.testing.check_plugin` calls them), candidates, and fake
                distributions.
            arguments: For `fxplug.plugins.PluginManager`, such as ``config``, ``environ`` and ``strict``; by default
                there are no configuration and no variables.
        """
        candidates = [_candidate(plugin, None) for plugin in plugins]
        isolated: dict[str, Any] = {"candidates": candidates, "environ": {}, "config": Config()}
        return PluginManager(**{**isolated, **arguments})

    def load(
        self, plugin: ModuleType | PluginCandidate | FakeDistribution, name: str | None = None
    ) -> PluginManager:
        """Let a plugin, and those loaded so before, take part where no manager is named, and return the manager.

        ``fxplug.symbolic_trace(model)`` and its like use it until the host ends.

        Args:
            plugin: What is loaded.
            name: Name of a plugin that is given as a module.

        Raises:
            PluginError: It cannot be loaded.
        """
        candidates = [*self._loaded, _candidate(plugin, name)]
        manager = PluginManager(candidates=candidates, environ={}, config=Config(), strict=True)
        self._stack.enter_context(default_manager_is(manager))
        self._loaded = candidates
        return manager


def _candidate(plugin: ModuleType | PluginCandidate | FakeDistribution, name: str | None) -> PluginCandidate:
    if isinstance(plugin, FakeDistribution):
        return plugin.candidate()
    if isinstance(plugin, PluginCandidate):
        return plugin
    return PluginCandidate.of_module(plugin, name or plugin_name(plugin))


def plugin_name(module: ModuleType) -> str:
    """Return what a plugin is called by default: its top module without ``fxplug_``."""
    return canonical(module.__name__.partition(".")[0]).removeprefix("fxplug-")


@contextmanager
def isolated_host(*sites: FakeSite) -> Generator[IsolatedHost]:
    """Yield a host for which there are no installed plugins, no configuration, and no environment variables.

    Whatever asks for one of them while the context lasts gets an error, instead of an answer that depends on the
    machine: ``discover()``, ``default_manager()`` before a plugin was loaded, and reading ``FXPLUG_...`` variables.

    Args:
        sites: Folders in which discovery may look all the same.
    """
    allowed = [site.folder for site in sites]
    with ExitStack() as stack:
        stack.enter_context(default_manager_is(None))
        stack.enter_context(_no_discovery(allowed))
        stack.enter_context(_no_variables())
        yield IsolatedHost(stack)


@contextmanager
def _no_discovery(allowed: Sequence[Path]) -> Generator[None]:
    former = discovery.importlib_metadata
    discovery.importlib_metadata = _Metadata(former, allowed)
    try:
        yield
    finally:
        discovery.importlib_metadata = former


class _Metadata(ModuleType):
    """Stands for ``importlib_metadata``: knows the distributions of some folders, and the version of fxplug."""

    def __init__(self, real: Any, allowed: Sequence[Path]) -> None:
        super().__init__(real.__name__)
        self._real = real
        self._allowed = {folder.resolve() for folder in allowed}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def distributions(self, *, path: Sequence[str]) -> Any:
        foreign = [entry for entry in path if Path(entry).resolve() not in self._allowed]
        if foreign:
            raise IsolationError(
                f"Cannot look for installed plugins in a test that is isolated from them (asked for {foreign[0]!r}"
                f"{' and others' if len(foreign) > 1 else ''}). Make a manager of the plugins that the test is about: "
                f"plugin_manager(module), or load one for the whole test: load_plugin(module)."
            )
        return self._real.distributions(path=path)


@contextmanager
def _no_variables() -> Generator[None]:
    former = os.environ
    os.environ = _Variables(former)  # noqa: B003 - put back below
    try:
        yield
    finally:
        os.environ = former  # noqa: B003 - puts back what it was


class _Variables(MutableMapping[str, str]):
    """The environment, without the variables that configure fxplug."""

    def __init__(self, real: MutableMapping[str, str]) -> None:
        self._real = real

    def __getitem__(self, name: str) -> str:
        if name.startswith(_VARIABLES):
            raise IsolationError(
                f"Cannot read {name} in a test that is isolated from the environment. Say what the variables are: "
                f'plugin_manager(module, environ={{"{name}": ...}}), or give the configuration that is meant: '
                f"config=load_config(path, environ={{}})."
            )
        return self._real[name]

    def __setitem__(self, name: str, value: str) -> None:
        self._real[name] = value

    def __delitem__(self, name: str) -> None:
        del self._real[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._real if not name.startswith(_VARIABLES))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, str]:
        """Return a dict of what can be read, as `os.environ` does."""
        return dict(self)

"""Which plugins are installed, read from the metadata of distributions alone: nothing is imported here."""

from __future__ import annotations

import json
import re
import site
import sys
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit
from urllib.request import url2pathname

import importlib_metadata

from fxplug.errors import PluginLoadError
from fxplug.plugins.markers import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from packaging.requirements import Requirement

__all__ = [
    "PluginCandidate",
    "canonical",
    "core_ranges",
    "core_version",
    "discover",
    "excluding_range",
    "foreign_working_directory",
    "is_path_of_installations",
    "place_of",
    "shadowing_file",
]


@dataclass(frozen=True)
class PluginCandidate:
    """A plugin that could be loaded."""

    name: str
    """Name of the entry point."""
    distribution: str
    version: str
    target: str
    """The module that the entry point names."""
    load: Callable[[], object]
    """Imports the module."""
    requires: tuple[str, ...] = ()
    """What the distribution requires, as its metadata says it."""
    location: str = ""
    """The folder in which it is installed; empty for a module that was never installed."""
    sources: str = ""
    """The folder of the sources that an editable installation uses; empty for any other."""

    @classmethod
    def of_module(
        cls,
        module: ModuleType,
        name: str,
        *,
        distribution: str = "",
        version: str = "0",
        requires: Sequence[str] = (),
    ) -> PluginCandidate:
        """Return a candidate for a module that is imported already, as tests and applications have it.

        Args:
            module: The plugin.
            name: The name that an entry point would have.
            distribution: By default ``fxplug-`` and the name.
            version: Version of the distribution.
            requires: What the distribution would require.
        """
        owner = distribution or f"{PROJECT}-{name}"
        return cls(name, owner, version, module.__name__, lambda: module, tuple(requires))

    @property
    def provider(self) -> str:
        """Distribution and version, for messages."""
        return f"{self.distribution} {self.version}"

    @property
    def package(self) -> str:
        """The top-level package, or the module, that the entry point leads into."""
        return self.target.partition(":")[0].partition(".")[0].strip()

    def is_called(self, name: str) -> bool:
        """Return whether `name` means this plugin: its own name or that of its distribution."""
        return canonical(name) in {canonical(self.name), canonical(self.distribution)}


def canonical(name: str) -> str:
    """Return the form in which names of plugins and distributions are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def discover(path: Sequence[str] | None = None) -> list[PluginCandidate]:
    """Return the installed plugins, sorted by name, then by distribution.

    What is found only because the working directory is on the path is left out, and so is a distribution that
    another one of the same name hides.

    Args:
        path: Where to look; by default ``sys.path``.
    """
    seen: set[str] = set()
    found: list[PluginCandidate] = []
    for distribution in importlib_metadata.distributions(path=_without_working_directory(path)):
        text = distribution.read_text("entry_points.txt")
        if text is None or f"[{PROJECT}]" not in text:  # Spares the parsing of most.
            continue
        candidates = _candidates(distribution)
        if candidates and canonical(candidates[0].distribution) not in seen:
            seen.add(canonical(candidates[0].distribution))
            found.extend(candidates)
    return sorted(found, key=lambda candidate: (candidate.name, canonical(candidate.distribution)))


def _candidates(distribution: Any) -> list[PluginCandidate]:
    name = "unknown"
    try:
        name = distribution.name
        return [
            PluginCandidate(
                name=entry_point.name,
                distribution=name,
                version=distribution.version,
                target=entry_point.value,
                load=entry_point.load,
                requires=tuple(distribution.requires or ()),
                location=str(distribution.locate_file("")),
                sources=_editable_sources(distribution),
            )
            for entry_point in distribution.entry_points.select(group=PROJECT)
        ]
    except Exception as error:  # One damaged distribution must not hide the others.
        return [_unreadable(name, error)]


def _editable_sources(distribution: Any) -> str:
    text = distribution.read_text("direct_url.json")
    origin: Any = json.loads(text) if text else {}
    if not origin.get("dir_info", {}).get("editable"):
        return ""
    return url2pathname(urlsplit(origin["url"]).path)


def _unreadable(name: str, error: Exception) -> PluginCandidate:
    def load() -> NoReturn:
        raise PluginLoadError(f"The metadata of {name!r} cannot be read: {error}.") from error

    short = canonical(name).removeprefix(f"{PROJECT}-")
    return PluginCandidate(short, name, "(unknown version)", "its entry point", load)


def _without_working_directory(path: Sequence[str] | None) -> list[str]:
    entries = [entry for entry in (sys.path if path is None else path) if entry]
    here = _working_directory()
    if here is None or here in _installation_folders():
        return entries
    return [entry for entry in entries if Path(entry).resolve() != here]


def _working_directory() -> Path | None:
    try:
        return Path.cwd().resolve()
    except FileNotFoundError:  # It was removed.
        return None


def shadowing_file(candidate: PluginCandidate) -> str | None:
    """Return the file or folder in the working directory that Python would import instead of a plugin's module.

    The working directory is often on the path, so that a file of the user there can have the name of a package that
    is installed. Nothing is imported here. Sources of an editable installation shadow nothing: they are the plugin.
    """
    here = foreign_working_directory(candidate)
    if here is None:
        return None
    try:
        spec = find_spec(candidate.package)
    except (ImportError, ValueError):
        return None
    return place_of(spec, here)


def foreign_working_directory(candidate: PluginCandidate) -> Path | None:
    """Return the working directory if nothing that belongs to a plugin is installed there, otherwise None.

    Args:
        candidate: The plugin.
    """
    here = _working_directory()
    if not candidate.location or here is None or here in _installation_folders():
        return None
    if candidate.sources and here.is_relative_to(Path(candidate.sources).resolve()):
        return None
    return here


def place_of(spec: ModuleSpec | None, folder: Path) -> str | None:
    """Return the file or folder right in `folder` that a module would come from, None when it comes from elsewhere."""
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return next((place for place in places if place and Path(place).resolve().parent == folder), None)


def is_path_of_installations(folder: Path) -> bool:
    """Return whether a file in the folders of installed packages puts a folder on the path, as editable ones do."""
    for installed in _installation_folders():
        for file in installed.glob("*.pth") if installed.is_dir() else ():
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            if any((installed / line.strip()).resolve() == folder for line in lines if _is_path(line)):
                return True
    return False


def _is_path(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(("#", "import ", "import\t"))


def _installation_folders() -> set[Path]:
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return {Path(folder).resolve() for folder in folders}


def core_version() -> str:
    """Return the version of the fxplug that is running, whatever metadata lies around."""
    # The package around this module is loaded already; none of the names that it hands on is asked for.
    return sys.modules[PROJECT].__version__


def excluding_range(candidate: PluginCandidate, version: str) -> str | None:
    """Return the range by which a plugin excludes a version of fxplug, None when it accepts that version."""
    for wanted in _core_requirements(candidate):
        if isinstance(wanted, str):
            return wanted
        if not wanted.specifier.contains(version, prereleases=True):
            return str(wanted.specifier)
    return None


def core_ranges(candidate: PluginCandidate) -> str:
    """Return the range of fxplug that a plugin requires, as its metadata says it; empty when it names none."""
    ranges = [
        wanted if isinstance(wanted, str) else str(wanted.specifier)
        for wanted in _core_requirements(candidate)
    ]
    return ",".join(filter(None, ranges))


def _core_requirements(candidate: PluginCandidate) -> Iterator[Requirement | str]:
    """Yield what a plugin requires of fxplug; as text where it cannot be understood."""
    # Only who has plugins pays for the parser.
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415

    for text in candidate.requires:
        if not canonical(text).startswith(PROJECT):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            yield text
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonical(requirement.name) == PROJECT and applies:
            yield requirement

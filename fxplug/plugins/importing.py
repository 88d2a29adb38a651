"""Importing the entry module of a plugin so that one that is refused leaves nothing behind."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import warnings
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from fxplug.plugins.discovery import (
    foreign_working_directory,
    is_path_of_installations,
    place_of,
    shadowing_file,
)
from fxplug.plugins.registration import Refused

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from importlib.machinery import ModuleSpec

    from fxplug.plugins.discovery import PluginCandidate

__all__ = ["forget_modules", "import_plugin", "unchanged_filters"]


def import_plugin(candidate: PluginCandidate) -> tuple[ModuleType, frozenset[str]]:
    """Return the entry module of a plugin, and the names of the modules of its own package that were imported for it.

    When the import fails, those modules are forgotten, so that a repaired plugin can be imported by the same process.

    Args:
        candidate: The plugin.

    Raises:
        Refused: It cannot be imported, would come from the working directory, or is no module.
        KeyboardInterrupt: The user does not want to wait.
    """
    shadow = shadowing_file(candidate)
    if shadow is not None:
        raise Refused(
            f"{shadow} in the working directory has the name of its package, and nothing is loaded from there; "
            f"rename that file, or work in another directory"
        )
    former = set(sys.modules)
    process = _ProcessState()
    try:
        with unchanged_filters(), _without_working_directory(candidate):
            module = candidate.load()
    except BaseException as error:
        forget_modules(_brought(candidate, former))
        process.restore()
        if isinstance(error, KeyboardInterrupt):
            raise
        # Libraries with compiled parts raise what is no Exception, and leaving the process is not theirs to decide.
        text = str(error).rstrip(".") or "no message"
        raise Refused(f"importing {candidate.target} raised {type(error).__name__}: {text}") from error
    brought = _brought(candidate, former)
    if not isinstance(module, ModuleType):
        forget_modules(brought)
        process.restore()
        raise Refused(f"its entry point {candidate.target!r} gives {module!r}, which is not a module")
    return module, brought


class _ProcessState:
    """What a module may change for the whole process while it is imported: where Python searches, and settings."""

    def __init__(self) -> None:
        self._lists: list[tuple[list[Any], list[Any]]] = [
            (kept, list(kept)) for kept in (sys.path, sys.meta_path, sys.path_hooks)
        ]
        self._environment = dict(os.environ)
        self._dtype = torch.get_default_dtype()

    def restore(self) -> None:
        """Put back what differs."""
        for kept, entries in self._lists:
            if kept != entries:
                kept[:] = entries
        if os.environ != self._environment:
            for name in os.environ.keys() - self._environment.keys():
                del os.environ[name]
            os.environ.update(self._environment)
        if torch.get_default_dtype() is not self._dtype:
            torch.set_default_dtype(self._dtype)


def _brought(candidate: PluginCandidate, former: set[str]) -> frozenset[str]:
    top = candidate.package
    return frozenset(name for name in set(sys.modules) - former if name == top or name.startswith(f"{top}."))


def forget_modules(names: Iterable[str]) -> None:
    """Let the next import of these modules run them again."""
    for name in names:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


@contextmanager
def unchanged_filters() -> Generator[None]:
    """Put the filters for warnings back at the end: what is shown is for the user to decide, and no plugin."""
    filters = list(warnings.filters)
    try:
        yield
    finally:
        if warnings.filters != filters:
            warnings.resetwarnings()
            warnings.filters.extend(filters)  # pyright: ignore[reportAttributeAccessIssue] - a list, typed as a sequence


@contextmanager
def _without_working_directory(candidate: PluginCandidate) -> Generator[None]:
    """Let nothing that a plugin imports come from the working directory, unless it is installed there."""
    here = foreign_working_directory(candidate)
    if here is None or is_path_of_installations(here):
        yield
        return
    finder = _FinderElsewhere(here)
    place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
    sys.meta_path.insert(place, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _FinderElsewhere:
    """Finds what Python would find in a folder somewhere else on the path, or not at all.

    Only for the thread that made it: others may want their own modules meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a top-level module is if it would come from the folder, otherwise None: others find it."""
        if path is not None or threading.get_ident() != self._thread:
            return None
        place = place_of(PathFinder.find_spec(name, None, target), self._folder)
        if place is None:
            return None
        elsewhere = [entry for entry in sys.path if Path(entry).resolve() != self._folder]
        found = PathFinder.find_spec(name, elsewhere, target)
        # Some editable installations bring a finder of their own instead of an entry of the path.
        others = (finder for finder in sys.meta_path if finder is not self and finder is not PathFinder)
        found = found or next(filter(None, (finder.find_spec(name, None, target) for finder in others)), None)
        if found is None:
            raise ModuleNotFoundError(
                f"No module named {name!r} is installed; {place} in the working directory does not count",
                name=name,
            )
        return found

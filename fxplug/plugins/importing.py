"""Importing the entry module of a plugin so that one that is refused leaves nothing behind."""

from __future__ import annotations

import importlib
import sys
import warnings
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from fxplug.plugins.discovery import shadowing_file
from fxplug.plugins.registration import Refused

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

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
    try:
        with unchanged_filters():
            module = candidate.load()
        if not isinstance(module, ModuleType):
            raise Refused(f"its entry point {candidate.target!r} gives {module!r}, which is not a module")
    except BaseException as error:
        forget_modules(_brought(candidate, former))
        if isinstance(error, (KeyboardInterrupt, Refused)):
            raise
        # Libraries with compiled parts raise what is no Exception, and leaving the process is not theirs to decide.
        text = str(error).rstrip(".") or "no message"
        raise Refused(f"importing {candidate.target} raised {type(error).__name__}: {text}") from error
    return module, _brought(candidate, former)


def _brought(candidate: PluginCandidate, former: set[str]) -> frozenset[str]:
    top = candidate.package
    return frozenset(
        name for name in set(sys.modules) - former if name == top or name.startswith(f"{top}.")
    )


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

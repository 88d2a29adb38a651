"""Importing the entry module of a plugin so that an import that fails leaves nothing behind."""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

from fxplug.plugins.discovery import shadowing_file
from fxplug.plugins.registration import Refused

if TYPE_CHECKING:
    from fxplug.plugins.discovery import PluginCandidate

__all__ = ["import_plugin"]


def import_plugin(candidate: PluginCandidate) -> ModuleType:
    """Return the entry module of a plugin.

    When the import fails, the modules of the plugin's own package that it brought are forgotten, so that a repaired
    plugin can be imported by the same process, and so are the filters for warnings that it set.

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
    modules, filters = set(sys.modules), list(warnings.filters)
    try:
        module = candidate.load()
    except BaseException as error:
        _forget(candidate, modules)
        if warnings.filters != filters:
            warnings.resetwarnings()
            warnings.filters.extend(filters)  # pyright: ignore[reportAttributeAccessIssue] - a list, typed as a sequence
        if isinstance(error, KeyboardInterrupt):
            raise
        # Libraries with compiled parts raise what is no Exception, and leaving the process is not theirs to decide.
        text = str(error).rstrip(".") or "no message"
        raise Refused(f"importing {candidate.target} raised {type(error).__name__}: {text}") from error
    if not isinstance(module, ModuleType):
        raise Refused(f"its entry point {candidate.target!r} gives {module!r}, which is not a module")
    return module


def _forget(candidate: PluginCandidate, former: set[str]) -> None:
    top = candidate.target.partition(":")[0].partition(".")[0]
    for name in set(sys.modules) - former:
        if name == top or name.startswith(f"{top}."):
            del sys.modules[name]
    importlib.invalidate_caches()

"""The functions that the configuration keeps as calls, found by their names among the modules that are loaded."""

from __future__ import annotations

import fnmatch
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fxplug.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["functions_named"]

_GLOB = frozenset("*?[")


def functions_named(patterns: Sequence[str]) -> list[Callable[..., Any]]:
    """Return the functions that patterns name.

    A pattern is ``package.module:name`` or ``package.module.name``; both parts may be globs. A glob means the public
    functions that are defined below the module, whatever it imports left out. Nothing is imported: what is not loaded
    cannot be called by a program that is traced now.

    Args:
        patterns: As they stand in the configuration.

    Raises:
        ConfigError: A module is loaded that does not have the function that is named.
    """
    functions: dict[int, Callable[..., Any]] = {}
    for pattern in patterns:
        for function in _matches(pattern):
            functions[id(function)] = function
    return list(functions.values())


def _matches(pattern: str) -> Iterator[Callable[..., Any]]:
    home, separator, name = pattern.partition(":")
    if not separator:
        home, _, name = pattern.rpartition(".")
    for module in _modules(home):
        if _GLOB.isdisjoint(name):
            yield _function(module, name, pattern)
            continue
        for found, value in list(vars(module).items()):
            is_own = str(getattr(value, "__module__", "")).startswith(module.__name__.partition(".")[0])
            if (
                not found.startswith("_")
                and _is_function(value)
                and is_own
                and fnmatch.fnmatchcase(found, name)
            ):
                yield value


def _modules(home: str) -> Iterator[ModuleType]:
    names = [home] if _GLOB.isdisjoint(home) else fnmatch.filter(list(sys.modules), home)
    for name in names:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            yield module


def _function(module: ModuleType, name: str, pattern: str) -> Callable[..., Any]:
    holder: Any = module
    for part in name.split("."):
        holder = getattr(holder, part, None)
    if not callable(holder):
        known = [found for found, value in vars(module).items() if _is_function(value)]
        raise ConfigError(
            f"Cannot keep the calls that trace.leaf_functions names as {pattern!r}: {module.__name__} has no function "
            f"{name!r}. {did_you_mean(name, known)}"
        )
    return holder


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)

"""The functions that the configuration keeps as calls, found by their names among the modules that are loaded."""

from __future__ import annotations

import fnmatch
import sys
from itertools import zip_longest
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fxplug.errors import ConfigError, did_you_mean
from fxplug.plugins.static_names import module_exists, names_of_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["functions_named", "pattern_of", "reason_against"]

_GLOB = frozenset("*?[")
_KEY = "trace.leaf_functions"


def functions_named(patterns: Sequence[str], places: Sequence[str] = ()) -> list[Callable[..., Any]]:
    """Return the functions that patterns name.

    A pattern is ``package.module:name`` or ``package.module.name``; both parts may be globs. A glob means the public
    functions that are defined below the module, whatever it imports left out. Nothing is imported: what is not loaded
    cannot be called by a program that is traced now.

    Args:
        patterns: As they stand in the configuration.
        places: Where each of them stands, for errors.

    Raises:
        ConfigError: A module is loaded that does not have the function that is named.
    """
    functions: dict[int, Callable[..., Any]] = {}
    for pattern, place in zip_longest(patterns, places, fillvalue=_KEY):
        for function in _matches(pattern, place):
            functions[id(function)] = function
    return list(functions.values())


def pattern_of(function: object, patterns: Sequence[str]) -> int | None:
    """Return the position of the first pattern that names a function, None when none does."""
    for position, pattern in enumerate(patterns):
        if any(found is function for found in _matches(pattern)):
            return position
    return None


def reason_against(pattern: str, folders: Sequence[str]) -> str:
    """Return why a pattern names no function, in sentences, as far as that is known without importing anything.

    Args:
        pattern: As it stands in the configuration.
        folders: Where modules are looked for before the places where Python looks.

    Returns:
        An empty text when nothing speaks against it.
    """
    home, name = _split(pattern)
    known_part = home
    while known_part and not _GLOB.isdisjoint(known_part):
        known_part = known_part.rpartition(".")[0]
    if not known_part:
        return ""
    if not module_exists(known_part, folders):
        return f"there is no module {known_part!r}. Correct the name, or install what it belongs to."
    names = names_of_module(known_part, folders) if known_part == home else None
    first = name.partition(".")[0]
    if names is None or first in names:
        return ""
    if not _GLOB.isdisjoint(first):
        if any(fnmatch.fnmatchcase(known, first) and not known.startswith("_") for known in names):
            return ""
        return f"{home} has no function like {name!r}. Correct the glob, or leave it out."
    near = [known for known in names if not known.startswith("_")]
    return f"{home} has no {name!r}. {did_you_mean(first, near)}"


def _split(pattern: str) -> tuple[str, str]:
    home, separator, name = pattern.partition(":")
    if not separator:
        home, _, name = pattern.rpartition(".")
    return home, name


def _matches(pattern: str, place: str = _KEY) -> Iterator[Callable[..., Any]]:
    home, name = _split(pattern)
    for module in _modules(home):
        if _GLOB.isdisjoint(name):
            yield _function(module, name, pattern, place)
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


def _function(module: ModuleType, name: str, pattern: str, place: str) -> Callable[..., Any]:
    holder: Any = module
    for part in name.split("."):
        holder = getattr(holder, part, None)
    if not callable(holder):
        known = [found for found, value in vars(module).items() if _is_function(value)]
        raise ConfigError(
            f"Cannot keep the calls that {place} names as {pattern!r}: {module.__name__} has no function "
            f"{name!r}. {did_you_mean(name, known)}"
        )
    return holder


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)

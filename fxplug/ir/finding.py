"""Names for pickles, of what is not found under the name that it gives itself: most of it can be called."""

from __future__ import annotations

import importlib
import inspect
import operator
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["by_name", "register_path"]

_PATHS: dict[type, Callable[[Any], tuple[str, str]]] = {}


def register_path(kind: type, path_of: Callable[[Any], tuple[str, str]]) -> None:
    """Let things of a type be pickled by their name.

    Args:
        kind: Their type, or one that it derives from.
        path_of: Gives the name of a module and the dotted path in it. It is used only if it leads back to the same
            object.
    """
    _PATHS[kind] = path_of


class _Named:
    """Stands in a pickle for what it names, which is what is unpickled."""

    __slots__ = ("module", "path")

    def __init__(self, module: str, path: str) -> None:
        self.module = module
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        return _find, (self.module, self.path)


def _find(module: str, path: str) -> Any:
    return operator.attrgetter(path)(importlib.import_module(module))


def by_name(value: Any) -> Any:
    """Return what is pickled in the place of a value: itself, unless pickle would look for it in a wrong place."""
    path_of = _PATHS.get(type(value))
    if path_of is None:
        if not callable(value):
            return value
        path_of = next((_PATHS[kind] for kind in inspect.getmro(type(value)) if kind in _PATHS), None)
    if path_of is None and "<locals>" not in getattr(value, "__qualname__", ""):
        return value
    try:
        # torch makes max_pool2d in a function of its own.
        module, path = path_of(value) if path_of is not None else (value.__module__, value.__name__)
        found = operator.attrgetter(path)(sys.modules[module])
    except (KeyError, AttributeError, TypeError):
        return value
    return _Named(module, path) if found is value else value

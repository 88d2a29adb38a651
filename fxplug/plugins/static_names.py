"""Which names a module has, found without importing anything: by where its file lies and what stands in it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec

__all__ = ["module_exists", "names_of_module"]


def module_exists(name: str, folders: Sequence[str]) -> bool:
    """Return whether Python would find a module; when that cannot be known without importing, it does.

    Args:
        name: Dotted.
        folders: Where to look before the places where Python looks.
    """
    return name in sys.modules or name in sys.builtin_module_names or _find(name, folders) is not None


def names_of_module(name: str, folders: Sequence[str]) -> set[str] | None:
    """Return the names that a module binds at its top level, None when that cannot be told from its source.

    Args:
        name: Dotted name of a module that exists.
        folders: See `module_exists`.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        return set(vars(loaded))
    spec = _find(name, folders)
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    names = set(_bound(tree.body))
    return None if "*" in names or "__getattr__" in names else names


def _find(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Return where a module lies; that of the package around it where no more can be known."""
    parts = name.split(".")
    spec = PathFinder.find_spec(parts[0], [*folders, *sys.path]) or _find_by_all_finders(parts[0])
    for number in range(2, len(parts) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        if spec.origin is None:  # A namespace: what belongs to it is known when it is imported.
            return spec
        spec = PathFinder.find_spec(".".join(parts[:number]), list(spec.submodule_search_locations))
    return spec


def _find_by_all_finders(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)  # Imports nothing, since the name has no dot.
    except (ImportError, ValueError):
        return None


def _bound(statements: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                yield alias.asname or alias.name.partition(".")[0]
        else:
            yield from (
                part.id
                for part in ast.walk(statement)
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            )
            inner = [part for part in ast.iter_child_nodes(statement) if isinstance(part, ast.stmt)]
            handlers = getattr(statement, "handlers", [])
            yield from _bound([*inner, *(part for handler in handlers for part in handler.body)])

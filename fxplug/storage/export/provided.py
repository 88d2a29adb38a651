"""What plugins have given a form that needs torch alone: packages that stand beside an exported program."""

from __future__ import annotations

import ast
import keyword
import sys
from typing import TYPE_CHECKING, Any

from fxplug.codegen import as_identifier
from fxplug.ir import is_plain_name
from fxplug.storage.faults import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug.storage.provisions import ProvidedTarget, Provision

__all__ = ["ProvidedPackages"]

_ALONE = frozenset({"torch", *sys.stdlib_module_names})
_TAKEN = frozenset({"model", "checks", "nn", "F", "pytree", "load"}) | _ALONE
"""What no folder is called: files of the package, and what they import or define."""


class ProvidedPackages:
    """The packages of plugins that one exported program needs.

    Args:
        provision: What plugins bring.
    """

    def __init__(self, provision: Provision) -> None:
        self._provision = provision
        self._texts: dict[str, Mapping[str, str]] = {}
        self._names: dict[str, set[str]] = {}

    def place_of(self, value: Any) -> tuple[str, str] | None:
        """Return the package that holds a function or class, and its name there; None where no plugin gives it one.

        Raises:
            Refusal: What the plugin gives is no such package.
        """
        top = (getattr(value, "__module__", None) or "").partition(".")[0]
        if not callable(value) or top in _ALONE:
            return None
        offer = self._provision.offer_of(value)
        if offer is None or offer.record.python is None:
            return None
        package = as_identifier(offer.plugin.replace("-", "_"))
        package += "_plugin" if package in _TAKEN or keyword.iskeyword(package) else ""
        if package not in self._texts:
            self._texts[package] = _package_of(offer)
            self._names[package] = _names_in(self._texts[package]["__init__.py"])
        name = str(getattr(value, "__name__", ""))
        if name not in self._names[package]:
            raise _wrong(offer, f"the package has no {name!r}")
        return package, name

    def files(self) -> dict[str, str]:
        """Return path -> text of every file of the packages that were asked for."""
        return {
            f"{package}/{name}": text
            for package, texts in self._texts.items()
            for name, text in texts.items()
        }

    def folders(self) -> list[str]:
        """Return the names of the packages."""
        return list(self._texts)


def _package_of(offer: ProvidedTarget) -> Mapping[str, str]:
    make: Any = offer.record.python
    try:
        texts: Any = make()
    except Exception as error:
        raise _wrong(offer, f"it raised {type(error).__name__}: {error}") from error
    if not isinstance(texts, dict) or "__init__.py" not in texts:
        raise _wrong(offer, "it returned no dict with an '__init__.py'")
    for name, text in texts.items():
        stem, _, ending = str(name).partition(".")
        if not is_plain_name(stem) or ending != "py" or not isinstance(text, str):
            raise _wrong(offer, f"{name!r} is not the name of a file of Python, or has no text")
        foreign = sorted(_imports_of(offer, name, text) - _ALONE)
        if foreign:
            raise _wrong(offer, f"{name!r} imports {', '.join(foreign)}")
    return texts


def _imports_of(offer: ProvidedTarget, name: str, text: str) -> set[str]:
    """Return the top-level names of what a file imports absolutely."""
    try:
        parts = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise _wrong(offer, f"{name!r} is not Python: {error}") from error
    paths = [alias.name for part in parts if isinstance(part, ast.Import) for alias in part.names]
    paths += [part.module or "" for part in parts if isinstance(part, ast.ImportFrom) and not part.level]
    return {path.partition(".")[0] for path in paths}


def _names_in(text: str) -> set[str]:
    """Return the names that the first level of a module binds."""
    found: set[str] = set()
    for statement in ast.parse(text).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name for alias in statement.names)
        elif isinstance(statement, (ast.ClassDef, ast.FunctionDef)):
            found.add(statement.name)
    return found


def _wrong(offer: ProvidedTarget, what: str) -> Refusal:
    return Refusal(
        f"'python' of the storage target {offer.record.name!r} gives no package that needs torch alone: {what}. Report "
        f"it to the authors of {offer.distribution} {offer.version}."
    )

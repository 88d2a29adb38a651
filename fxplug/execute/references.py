"""Objects as Python source that finds them again, where an import does."""

from __future__ import annotations

import builtins
import enum
import math
import sys
import types
from typing import Any

import torch

from fxplug.ir import is_plain_name, qualified_name

__all__ = ["UnreachableError", "definition", "path_expression"]


class UnreachableError(Exception):
    """No import finds an object; the text says what it is, to be put behind a subject."""


def _names_of(value: Any) -> tuple[str, str]:
    """Return the module in which an object can be found, and its path there."""
    module = getattr(value, "__module__", None)
    name = (
        getattr(value, "__qualname__", None)
        or getattr(value, "__name__", None)
        or getattr(value, "_name", None)
    )
    known, _, rest = qualified_name(value).rpartition(".") if callable(value) else ("", "", "")
    if _is_at(value, known, rest):
        return known, rest
    if not isinstance(module, str) or not isinstance(name, str):
        raise UnreachableError(f"is {_short(value)}, which has no name to import it by")
    module, name = str.__str__(module), str.__str__(name)
    if module == "__main__":
        raise UnreachableError(
            f"is {name!r} of the script that runs; move it to a module that can be imported"
        )
    if not _is_at(value, module, name):
        raise UnreachableError(f"is not what an import of {module}.{name} finds")
    return module, name


def _is_at(value: Any, module: str, name: str) -> bool:
    """Return whether an import of `module` gives something that has `value` at the path `name`."""
    if module == "__main__" or not all(
        is_plain_name(part) for part in (*module.split("."), *name.split("."))
    ):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _short(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def path_expression(value: Any) -> tuple[str, str]:
    """Return an import statement, and an expression that gives the object behind it.

    Raises:
        UnreachableError: No import finds it.
    """
    module, name = _names_of(value)
    return f"import {module}", f"{module}.{name}"


def definition(name: str, value: Any) -> list[str]:
    """Return statements that give a global its value.

    Args:
        name: An identifier.
        value: What generated code refers to under that name.

    Raises:
        UnreachableError: No source gives that value.
    """
    if getattr(builtins, name, None) is value:
        return []
    if isinstance(value, types.ModuleType):
        if sys.modules.get(value.__name__) is not value:
            raise UnreachableError(f"is the module {value.__name__!r}, which no import finds")
        return [
            f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
        ]
    if type(value) is float:
        return [f'{name} = float("{value!r}")' if not math.isfinite(value) else f"{name} = {value!r}"]
    if type(value) is int:
        return [f"{name} = {value:#x}"]
    if type(value) is complex:
        return [f"{name} = complex({str(value)!r})"]
    if type(value) is torch.device:
        return [f"{name} = _fxp_torch.device({str(value)!r})"]
    if isinstance(value, enum.Enum):
        return [*definition(name, type(value)), f"{name} = {name}[{str.__str__(value.name)!r}]"]
    module, path = _names_of(value)
    if "." not in path:
        return [f"from {module} import {path}" if path == name else f"from {module} import {path} as {name}"]
    top, _, rest = path.partition(".")
    return [f"from {module} import {top} as {name}", f"{name} = {name}.{rest}"]

"""Objects as Python source that finds them again, where an import does."""

from __future__ import annotations

import builtins
import enum
import math
import struct
import sys
import types
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fxplug.ir import is_class_method, is_plain_name, qualified_name

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = ["Libraries", "UnreachableError", "definition", "exact_number", "path_expression"]


class UnreachableError(Exception):
    """No import finds an object; the text says what it is, to be put behind a subject."""


def _names_of(value: Any) -> tuple[str, str]:
    """Return the module in which an object can be found, and its path there."""
    if is_class_method(value):
        module, name = _names_of(value.__self__)
        return module, f"{name}.{value.__name__}"
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


class Libraries:
    """Modules that written source needs for itself, under names that nothing else in it has.

    Args:
        taken: The names that are not free.
    """

    def __init__(self, taken: Container[str]) -> None:
        self._taken = taken
        self._names: dict[str, str] = {}

    def name(self, module: str) -> str:
        """Return the name by which the source reaches a module."""
        name = self._names.get(module)
        if name is None:
            name = f"_fxp_{module}"
            while name in self._taken:
                name = f"_{name}"
            self._names[module] = name
        return name

    def imports(self) -> list[str]:
        """Return statements that import what was asked for."""
        return [f"import {module} as {name}" for module, name in self._names.items()]


def _enumerator(name: str, value: enum.Enum) -> str:
    """Return an expression for a member of the enumeration that `name` stands for."""
    kind, held = type(value), value._value_
    known: Any = value._name_
    if isinstance(known, str) and kind.__members__.get(known) is value:
        return f"{name}[{str.__str__(known)!r}]"
    # Combinations of flags have no name to find them by.
    if isinstance(value, enum.Flag) and type(held) is int and kind(held) is value:
        return f"{name}({held:#x})"
    raise UnreachableError(
        f"is a member of {kind.__module__}.{kind.__qualname__} that the class does not find"
    )


class _Importer(Protocol):
    """Gives the names of modules that an expression needs."""

    def name(self, module: str) -> str:
        """Return the name by which the source reaches a module."""
        ...


def exact_number(value: complex, libraries: _Importer) -> str:
    """Return an expression for a float or complex number that has no literal.

    Args:
        value: The number.
        libraries: Gives the module that the expression may need.
    """
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    if not any(math.isnan(part) for part in parts):
        return f"{type(value).__name__}({str(value)!r})"
    # Text has neither the sign nor the other bits of a not-a-number.
    form = f">{len(parts)}d"
    numbers = f"{libraries.name('struct')}.unpack({form!r}, {struct.pack(form, *parts)!r})"
    return f"complex(*{numbers})" if isinstance(value, complex) else f"{numbers}[0]"


def _constant(value: Any, libraries: Libraries) -> str | None:
    if type(value) is int:
        return f"{value:#x}"
    if type(value) is float and math.isfinite(value):
        return repr(value)
    if type(value) in {float, complex}:
        return exact_number(value, libraries)
    if type(value) is torch.device:
        return f"{libraries.name('torch')}.device({str(value)!r})"
    return None


def definition(name: str, value: Any, libraries: Libraries) -> list[str]:
    """Return statements that give a global its value.

    Args:
        name: An identifier.
        value: What generated code refers to under that name.
        libraries: Gives the modules that the statements need.

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
    if isinstance(value, enum.Enum):
        return [*definition(name, type(value), libraries), f"{name} = {_enumerator(name, value)}"]
    constant = _constant(value, libraries)
    if constant is not None:
        return [f"{name} = {constant}"]
    module, path = _names_of(value)
    if "." not in path:
        return [f"from {module} import {path}" if path == name else f"from {module} import {path} as {name}"]
    top, _, rest = path.partition(".")
    return [f"from {module} import {top} as {name}", f"{name} = {name}.{rest}"]

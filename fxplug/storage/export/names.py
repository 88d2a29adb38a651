"""Values as expressions of a written file, and the imports that those need."""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import math
import operator
import sys
import types
import typing
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from fxplug.codegen.formatting import FixedName, dotted
from fxplug.execute.references import UnreachableError, exact_number, path_expression
from fxplug.ir import is_plain_name
from fxplug.semantics import checks
from fxplug.semantics.internals import OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fxplug.storage.export.provided import ProvidedPackages

__all__ = ["Names", "UnreachableError"]

_OWN = "fxplug"
_CHECKS = {
    function: function.__name__
    for function in (
        *checks.CHECKS,
        checks.are_distinct,
        checks.attribute_names,
        checks.same_value,
        checks.the_same,
    )
}
_AS_BUILTINS: dict[Any, str] = {checks.class_of: "type", checks.is_instance: "isinstance"}
"""Functions of checks that do what Python's own do."""
_ORIGINS: dict[Any, str] = {list: "list", tuple: "tuple", dict: "dict", set: "set"}
_DEEPEST = 50
_WIDTH = 88
_ANNOTATED = frozenset({"builtins", "torch"})


class Names:
    """The names that one file has for what is not its own.

    Args:
        taken: Names that no import may have: those of parameters.
        provided: What plugins have given a form that needs torch alone.
    """

    def __init__(self, taken: Iterable[str], provided: ProvidedPackages) -> None:
        self._taken = frozenset(taken)
        self._provided = provided
        self._relative: dict[str, set[str]] = {}
        self._imports: dict[str, str] = {}
        self._used: set[str] = set()
        self.checks: set[str] = set()
        """The functions of the file ``checks.py`` that are called."""
        self.distributions: set[str] = set()
        """Top-level names of what is imported besides torch and the standard library."""

    def used(self) -> set[str]:
        """Return every name that local variables may not have."""
        return {*self._used, *self.checks, "self"}

    def reserve(self, name: str) -> None:
        """Keep a name for something else in the file."""
        self._used.add(name)

    # -- what is imported

    def name(self, module: str) -> str:
        """Return the top-level name by which the file reaches a module."""
        self._import(f"import {module}", module.partition(".")[0])
        return module

    def _import(self, statement: str, name: str) -> str:
        self._imports[statement] = name
        self._used.add(name)
        return name

    def _short(self, statement: str, name: str, path: str) -> str:
        """Return a short name for a part of torch, or its path where a parameter has that name."""
        if name in self._taken:
            self.torch()
            return path
        return self._import(statement, name)

    def torch(self) -> str:
        """Return the name of torch."""
        return self._import("import torch", "torch")

    def nn(self) -> str:
        """Return the name of torch.nn."""
        return self._short("from torch import nn", "nn", "torch.nn")

    def functional(self) -> str:
        """Return the name of torch.nn.functional."""
        return self._short("from torch.nn import functional as F", "F", "torch.nn.functional")

    def builtin(self, name: str) -> ast.expr:
        """Return the expression for what Python itself has under a name, also where a parameter has that name."""
        return dotted(f"{self.name('builtins')}.{name}" if name in self._taken else name)

    def bound(self) -> set[str]:
        """Return every name that the imports of the file bind."""
        beside = {name for names in self._relative.values() for name in names}
        return {*self._imports.values(), *self.checks, *beside}

    def check(self, function: str) -> str:
        """Return the name of a function of the file ``checks.py``."""
        self.checks.add(function)
        return function

    def is_check(self, function: ast.expr) -> bool:
        """Return whether an expression is a function of ``checks.py`` that asks whether the program can run again."""
        return isinstance(function, FixedName) and function.id in {
            "check_true",
            "check_equal",
            "check_length",
            "check_like",
            "check_unchanged",
        }

    def at(self, path: list[str], value: Any) -> ast.expr:
        """Return the expression for what is at a path of a library, by the short name if it has one."""
        known = self._known(value) or self._beside(value)
        if known is not None:
            return dotted(known)
        if isinstance(value, (types.ModuleType, enum.Enum)):
            return self.reference(value)
        _refuse_own_operator(value)
        self.name(path[0])
        return dotted(".".join(path))

    def taken_imports(self) -> set[str]:
        """Return the names of imports that parameters have too, so that a function cannot reach the import."""
        return self.bound() & self._taken

    def import_lines(self, used: set[str]) -> list[str]:
        """Return the import statements, sorted and in groups as formatters have them.

        Args:
            used: The names that the file uses.
        """
        standard: list[str] = []
        further: dict[str, list[str]] = {}
        for statement, name in sorted(self._imports.items(), key=lambda item: _import_order(item[0])):
            if name in used:
                module = statement.split()[1].partition(".")[0]
                place = standard if module in sys.stdlib_module_names else further.setdefault(module, [])
                place.append(statement)
        groups = [standard, further.pop("torch", []), *(further[module] for module in sorted(further))]
        lines: list[str] = []
        for number, group in enumerate([*groups, self._relative_lines(used)]):
            if group:
                # Formatters sort the modules of a project behind others, and which ones are its own hangs on the folder
                # in which they run.
                is_split = 2 <= number < len(groups) and any(groups[1:number])
                lines += [*([""] if lines else []), *(["# isort: split"] if is_split else []), *group]
        return lines

    def _relative_lines(self, used: set[str]) -> list[str]:
        found = {"checks": self.checks, **self._relative}
        lines: list[str] = []
        for module in sorted(found, key=lambda name: "." if name == "" else name):
            names = sorted(found[module] if module == "checks" else found[module] & used)
            line = f"from .{module} import {', '.join(names)}"
            if names and len(line) > _WIDTH:
                lines += [f"from .{module} import (", *(f"    {name}," for name in names), ")"]
            elif names:
                lines.append(line)
        return lines

    # -- values

    def value(self, value: Any, depth: int = 0) -> ast.expr:
        """Return an expression that gives a value again.

        Raises:
            UnreachableError: There is none.
        """
        if depth > _DEEPEST:
            raise UnreachableError("is nested too deeply")
        kind = type(value)
        if value is None or kind in {bool, str, bytes} or value is ...:
            return ast.Constant(value)
        if kind in {int, float, complex}:
            return self._number(value)
        container = self._container(value, kind, depth)
        return self.reference(value) if container is None else container

    def _number(self, value: Any) -> ast.expr:
        if type(value) is not int and (isinstance(value, complex) or not math.isfinite(value)):
            if isinstance(value, float) and not math.isnan(value):
                return ast.Call(self.builtin("float"), [ast.Constant(str(value))], [])
            return _Fixed(self).visit(ast.parse(exact_number(value, self), mode="eval").body)
        return ast.Constant(value)

    def _container(self, value: Any, kind: type, depth: int) -> ast.expr | None:
        if isinstance(value, tuple):
            return self._tuple(cast("tuple[Any, ...]", value), depth)
        if isinstance(value, list) and str(kind.__module__).partition(".")[0] in {"builtins", _OWN}:
            return ast.List([self.value(part, depth + 1) for part in cast("list[Any]", value)])
        if kind is set and value:
            return ast.Set([self.value(part, depth + 1) for part in sorted(value, key=repr)])
        if kind in {set, frozenset}:
            parts = [self.value(sorted(value, key=repr), depth + 1)] if value else []
            return ast.Call(self.builtin(kind.__name__), parts, [])
        if isinstance(value, dict) and str(kind.__module__).partition(".")[0] in {"builtins", _OWN}:
            items = cast("dict[Any, Any]", value).items()
            keys: list[ast.expr | None] = [self.value(key, depth + 1) for key, _ in items]
            return ast.Dict(keys, [self.value(part, depth + 1) for _, part in items])
        if kind in {slice, range}:
            bounds = cast("slice", value)
            ends = [self.value(part, depth + 1) for part in (bounds.start, bounds.stop, bounds.step)]
            return ast.Call(self.builtin(kind.__name__), ends, [])
        return None

    def _tuple(self, value: tuple[Any, ...], depth: int) -> ast.expr:
        kind = type(value)
        inner: list[ast.expr] = [self.value(part, depth + 1) for part in value]
        if kind is tuple:
            return ast.Tuple(inner)
        maker = self.reference(kind)
        return ast.Call(maker, inner if hasattr(kind, "_fields") else [ast.Tuple(inner)], [])

    def reference(self, value: Any) -> ast.expr:
        """Return an expression that finds an object which has a name.

        Raises:
            UnreachableError: It has none, or not one that an import finds.
        """
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, enum.Enum):
            return self._enumerator(value)
        if isinstance(value, torch.device):
            return ast.Call(dotted(f"{self.torch()}.device"), [ast.Constant(str(value))], [])
        known = self._known(value) or self._beside(value)
        if known is not None:
            return dotted(known)
        if getattr(value, "__module__", None) == checks.__name__ and value in _AS_BUILTINS:
            return self.builtin(_AS_BUILTINS[value])
        if isinstance(value, (OpOverload, OpOverloadPacket)):
            return self._operator(value)
        statement, path = path_expression(value)
        module = statement.removeprefix("import ")
        if module.partition(".")[0] == _OWN:
            raise UnreachableError(f"is {path}, which exists in fxplug alone")
        if module == "builtins":
            head, _, rest = path.removeprefix("builtins.").partition(".")
            found = self.builtin(head)
            for part in rest.split(".") if rest else ():
                found = ast.Attribute(found, part)
            return found
        self.name(module)
        self._note(module)
        return dotted(path)

    def _operator(self, value: Any) -> ast.expr:
        _refuse_own_operator(value)
        path = f"torch.ops.{value}"
        found: Any = torch
        for part in path.split(".")[1:]:
            found = getattr(found, part, None) if is_plain_name(part) else None
        if found is not value:
            raise UnreachableError(f"is the operator {value}, which torch.ops does not have under its name")
        self.torch()
        self._note(path)
        return dotted(path)

    def _note(self, module: str) -> None:
        top = module.partition(".")[0]
        if top not in {"torch", *sys.stdlib_module_names}:
            self.distributions.add(top)

    def _known(self, value: Any) -> str | None:
        """Return the short path of what torch, the builtins or our own checks have."""
        checked = _CHECKS.get(value) if isinstance(value, types.FunctionType) else None
        if checked is not None:
            return self.check(checked)
        name = _known_names().get(id(value))
        if name is not None:
            head, _, rest = name.partition(":")
            makers = {"F": self.functional, "nn": self.nn, "torch": self.torch}
            if head == "builtins":
                return f"{self.name(head)}.{rest}" if rest in self._taken else rest
            return f"{makers[head]()}.{rest}"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)):
            self.torch()
            return str(value)
        return None

    def _beside(self, value: Any) -> str | None:
        """Return the name of what a plugin has put into a package beside the program."""
        place = self._provided.place_of(value)
        if place is None:
            return None
        package, name = place
        known = self._relative.setdefault(package, set())
        if name not in known and (name in self._taken or name in self._used or hasattr(builtins, name)):
            self._relative.setdefault("", set()).add(package)
            self._used.add(package)
            return f"{package}.{name}"
        known.add(name)
        self._used.add(name)
        return name

    def _module(self, value: types.ModuleType) -> ast.expr:
        if sys.modules.get(value.__name__) is not value:
            raise UnreachableError(f"is the module {value.__name__!r}, which no import finds")
        if value is functional:
            return dotted(self.functional())
        if value is nn:
            return dotted(self.nn())
        self._note(value.__name__)
        return dotted(self.name(value.__name__))

    def _enumerator(self, value: enum.Enum) -> ast.expr:
        kind, held, known = self.reference(type(value)), value._value_, cast("Any", value._name_)
        if isinstance(known, str) and type(value).__members__.get(known) is value:
            if is_plain_name(known) and getattr(type(value), known, None) is value:
                return ast.Attribute(kind, known)
            return ast.Subscript(kind, ast.Constant(known))
        if isinstance(value, enum.Flag) and type(held) is int and type(value)(held) is value:
            return ast.Call(kind, [ast.Constant(held)], [])
        raise UnreachableError(f"is a member of {type(value).__qualname__} that the class does not find")

    # -- annotations

    def annotation(self, value: Any, depth: int = 0) -> ast.expr | None:
        """Return an annotation as it is written today, None where it has no such form."""
        if value is None or value is type(None):
            return ast.Constant(None)
        if depth > _DEEPEST:
            return None
        origin, args = typing.get_origin(value), typing.get_args(value)
        if origin in {typing.Union, types.UnionType}:
            return self._union(args, depth)
        if origin in _ORIGINS and args:
            parts = [ast.Constant(...) if part is ... else self.annotation(part, depth + 1) for part in args]
            return None if None in parts else _generic(_ORIGINS[origin], cast("list[ast.expr]", parts))
        # Nothing is imported for the sake of an annotation.
        if (
            not isinstance(value, type)
            or origin is not None
            or str(value.__module__).partition(".")[0] not in _ANNOTATED
        ):
            return None
        try:
            return self.reference(value)
        except UnreachableError:
            return None

    def _union(self, args: tuple[Any, ...], depth: int) -> ast.expr | None:
        parts = [self.annotation(part, depth + 1) for part in args]
        found = parts[0]
        for part in parts[1:]:
            if found is None or part is None:
                return None
            found = ast.BinOp(found, ast.BitOr(), part)
        return found


def _refuse_own_operator(value: Any) -> None:
    if isinstance(value, (OpOverload, OpOverloadPacket)) and str(value).partition(".")[0] == _OWN:
        raise UnreachableError(
            f"is the operator {value}, which fxplug registers and torch alone does not have"
        )


class _Fixed(ast.NodeTransformer):
    def __init__(self, names: Names) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._names.builtin(node.id) if hasattr(builtins, node.id) else FixedName(node.id)


def _generic(name: str, parts: list[ast.expr]) -> ast.expr:
    return ast.Subscript(FixedName(name), parts[0] if len(parts) == 1 else ast.Tuple(parts))


def _import_order(statement: str) -> tuple[bool, str, str]:
    parts = statement.split()
    return parts[0] == "from", parts[1].lower(), statement


@functools.lru_cache(maxsize=1)
def _known_names() -> dict[int, str]:
    """Return id of a function or class -> where it is found at the shortest path."""
    holders: tuple[tuple[str, Any], ...] = (
        ("nn", nn),
        ("F", functional),
        ("torch", torch),
        ("builtins", builtins),
    )
    found: dict[int, str] = {}
    for head, holder in holders:
        for name, value in vars(holder).items():
            if not name.startswith("_") and callable(value) and _belongs(head, value):
                found[id(value)] = f"{head}:{name}"
    return found


def _belongs(head: str, value: Any) -> bool:
    module = getattr(value, "__module__", None) or ""
    if head == "builtins":
        return module in {"builtins", ""} or value is open
    if head == "nn":
        return isinstance(value, type) and module.startswith("torch.nn")
    return (
        not module.startswith(("typing", "functools", "warnings", "importlib"))
        and (head == "torch" or module.startswith("torch"))
        and value is not operator
    )

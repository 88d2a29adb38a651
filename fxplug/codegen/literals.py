"""Arguments as source text: exact builtin literals are printed, everything else is bound from a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from fxplug.codegen.linking import MARK
from fxplug.ir import Argument, Node, is_plain_name, qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug.codegen.globals import GlobalTable

__all__ = ["ArgumentPrinter", "Marks", "quoted_name"]

_LONGEST_INT = 10**300


class ArgumentPrinter:
    """Prints arguments.

    Args:
        table: Receives whatever cannot be printed.
        names: Local name of each node.
    """

    def __init__(self, table: GlobalTable, names: dict[Node, str]) -> None:
        self._table = table
        self._names = names

    def text(self, value: Argument) -> str:
        """Return an expression that evaluates to `value`, nodes standing for their values."""
        kind = type(value)
        if kind is Node:
            return self._names[value]
        if kind is bool or value is None or kind is str or kind is bytes:
            return repr(value)
        if kind is int:
            return repr(value) if -_LONGEST_INT < value < _LONGEST_INT else self._table.refer(value)
        if kind is float:
            return repr(value) if math.isfinite(value) else self._table.refer(value)
        if value is Ellipsis:
            return "..."
        return self._structure(value)

    def _structure(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._names[value]
        if isinstance(value, tuple):
            return self._tuple(cast("tuple[Any, ...]", value))
        if isinstance(value, list):
            return f"[{', '.join([self.text(element) for element in cast('list[Any]', value)])}]"
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value).items()
            return (
                "{" + ", ".join([f"{self._key(key)}: {self.text(element)}" for key, element in items]) + "}"
            )
        if type(value) is slice:
            parts = ", ".join([self.text(part) for part in (value.start, value.stop, value.step)])
            return f"{self._table.refer(slice)}({parts})"
        hint = qualified_name(value).replace(".", "_") if callable(value) else None
        return self._table.refer(value, hint)

    def _key(self, value: Any) -> str:
        """Return the text of a dict's key. Two NaN are two keys, so each stays the object that it is."""
        if isinstance(value, tuple):
            return self._tuple(cast("tuple[Any, ...]", value), self._key)
        if type(value) in {float, complex} and value != value:  # noqa: PLR0124 - NaN
            return self._table.refer_itself(value)
        return self.text(value)

    def _tuple(self, value: tuple[Any, ...], write: Callable[[Any], str] | None = None) -> str:
        inner = ", ".join([(write or self.text)(element) for element in value])
        kind = type(value)
        if kind is tuple:
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if hasattr(kind, "_fields"):
            return f"{self._table.refer(kind, kind.__name__)}({inner})"
        # torch.Size and its like take one iterable.
        return f"{self._table.refer(kind, kind.__name__)}(({inner}{',' if len(value) == 1 else ''}))"

    def operand(self, value: Argument) -> str:
        """Return an expression that may stand next to an operator: numbers that start with a sign get parentheses."""
        text = self.text(value)
        return f"({text})" if text.startswith("-") else text

    def call_arguments(self, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> str:
        """Return what stands between the parentheses of a call."""
        if not kwargs:
            if len(args) == 1:
                return self.text(args[0])
            return ", ".join([self.text(value) for value in args])
        parts = [self.text(value) for value in args]
        odd: list[str] = []
        for key, value in kwargs.items():
            # Behind the first name that is no identifier all go into the dict, so that their order is kept.
            if not odd and is_plain_name(key):
                parts.append(f"{key} = {self.text(value)}")
            else:
                odd.append(f"{key!r}: {self.text(value)}")
        if odd:
            parts.append("**{" + ", ".join(odd) + "}")
        return ", ".join(parts)

    def receiver(self, value: Argument) -> str:
        """Return an expression that may stand before a dot."""
        text = self.text(value)
        return text if isinstance(value, Node) else f"({text})"

    def attribute(self, base: str, name: str) -> str:
        """Return an expression that reads one attribute whose name may be any text."""
        if is_plain_name(name):
            return f"{base}.{name}"
        return f"{self._table.refer(getattr)}({base}, {quoted_name(name)})"


def quoted_name(name: str) -> str:
    """Return a literal for any text, in double quotes where it can be shown as it is."""
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if name.isprintable() else repr(name)


class Marks(dict[Node, str]):
    """The names of nodes, for an `ArgumentPrinter` that writes shapes: it writes marks, and the names are kept."""

    def __init__(self) -> None:
        super().__init__()
        self._met: list[str] = []

    def __missing__(self, node: Node) -> str:
        self._met.append(node.name)
        return MARK

    def taken(self) -> tuple[str, ...]:
        """Return the names of the nodes that were printed since this was asked last, in order."""
        met = tuple(self._met)
        self._met.clear()
        return met

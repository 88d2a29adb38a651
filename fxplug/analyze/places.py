"""Where in the program nodes belong: the modules around them and their lines, for tables by node, module and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fxplug.analyze.layers import line_of
from fxplug.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from fxplug.ir import Node

__all__ = ["GROUPINGS", "Placed", "called_name", "groups_of", "modules_around", "place_of", "sorted_rows"]

GROUPINGS = ("node", "module", "class", "kind")
"""What the rows of a table can stand for: a node; a module, or all modules of a class, with what lies in them; what is
called, a function or a class of modules that are one call."""


class Placed(Protocol):
    """What is known of one node."""

    @property
    def name(self) -> str:
        """Name of the node."""
        ...

    @property
    def target(self) -> str:
        """What it calls, for people."""
        ...

    @property
    def modules(self) -> tuple[tuple[str, str], ...]:
        """Path and class of every module that it lies in, from the root on."""
        ...


PlacedT = TypeVar("PlacedT", bound=Placed)
RowT = TypeVar("RowT")


def modules_around(node: Node) -> tuple[tuple[str, str], ...]:
    """Return path and class of every module that a node lies in, from the root on; that which it calls included."""
    scope = next((origin.module for origin in node.origins if origin.module is not None), None)
    if scope is None:
        return ()
    return tuple(
        (path, kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__)
        for path, kind in scope.stack().values()
    )


def called_name(node: Node, module: nn.Module | None) -> str:
    """Return what a node calls, for people: the class of the module that it calls, a method, or a function.

    Args:
        node: A call.
        module: What a ``call_module`` node calls.
    """
    if module is not None:
        return type(module).__name__
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", repr(target))


def place_of(node: Node) -> dict[str, Any]:
    """Return the modules and the line of a node, as the entries of tables hold them."""
    return {"modules": modules_around(node), "line": line_of(node)}


def groups_of(entries: Iterable[PlacedT], by: str) -> dict[tuple[str, str], list[PlacedT]]:
    """Return (name, kind) of every row of a table -> what it stands for, in the order of the first of each.

    Args:
        entries: In the order of the graph.
        by: One of `GROUPINGS`. By module and class an entry stands in one group for each that it lies in.

    Raises:
        UnknownNameError: There is no such grouping.
    """
    if by not in GROUPINGS:
        raise UnknownNameError("grouping", by, GROUPINGS)
    found: dict[tuple[str, str], list[PlacedT]] = {}
    entries = list(entries)
    # What a pass made of nothing lies in the root.
    root = next((entry.modules[0] for entry in entries if entry.modules), ("", ""))
    for entry in entries:
        if by == "node":
            keys = [(entry.name, entry.target)]
        elif by == "kind":
            keys = [(entry.target, entry.target)]
        elif by == "module":
            keys = list(entry.modules) or [root]
        else:
            keys = [(kind, kind) for _, kind in entry.modules or [root]]
        for key in dict.fromkeys(keys):
            found.setdefault(key, []).append(entry)
    return found


def sorted_rows(rows: Sequence[RowT], sort: str | None, columns: Sequence[str]) -> list[RowT]:
    """Return rows sorted by a column, numbers from the largest on, texts from A on; as they are where it is None.

    Raises:
        UnknownNameError: There is no such column.
    """
    if sort is None:
        return list(rows)
    if sort not in columns:
        raise UnknownNameError("column", sort, columns)
    if any(isinstance(getattr(row, sort), str) for row in rows):
        return sorted(rows, key=lambda row: getattr(row, sort))
    return sorted(
        rows, key=lambda row: -1 if getattr(row, sort) is None else getattr(row, sort), reverse=True
    )

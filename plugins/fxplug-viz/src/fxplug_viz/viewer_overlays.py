"""Overlays: numbers and words for each node that colour the picture and fill the table of a page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from fxplug.analyze import CostTable, Estimate
from fxplug.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Overlay", "overlays_of"]

Value = float | int | str


@dataclass(frozen=True)
class Overlay:
    """One number or word for each node."""

    title: str
    values: Mapping[str, Value]
    """By name of node; nodes without an entry have none."""
    unit: str = ""
    """``"s"`` and ``"B"`` are shown with their usual prefixes; others as they are."""
    aggregate: Literal["sum", "max"] = "sum"
    """What a folded module shows: the sum over its nodes, or the largest."""
    unmatched: tuple[str, ...] = field(default=())
    """Names in the table that no node has."""

    @property
    def is_category(self) -> bool:
        """Whether words are shown, not numbers."""
        return any(isinstance(value, str) for value in self.values.values())

    def to_data(self, positions: Mapping[str, int]) -> dict[str, Any]:
        """Return what a page holds of it.

        Args:
            positions: Name of each node -> its position.
        """
        words = self.is_category
        values = {
            positions[name]: str(value) if words else value
            for name, value in self.values.items()
            if name in positions
        }
        return {
            "title": self.title,
            "unit": self.unit,
            "aggregate": self.aggregate,
            "kind": "category" if words else "number",
            "values": [[position, values[position]] for position in sorted(values)],
            "unmatched": len(self.unmatched),
        }


def overlays_of(tables: Mapping[str, Any], names: Iterable[str]) -> list[Overlay]:
    """Return the overlays that tables hold.

    Args:
        tables: By title: what `fxplug.cost`, `fxplug.estimate` and `fxplug.profile` return, what a backend reports, an
            `Overlay`, or a mapping from names of nodes to a number or text, or to a mapping of several, by column.
        names: The names of the nodes.

    Returns:
        The overlays in order, without values that are no finite number.

    Raises:
        InvalidArgumentError: A table is none, or none of its names is that of a node.
    """
    known = set(names)
    return [_matched(overlay, known) for title, table in tables.items() for overlay in _read(title, table)]


def _matched(overlay: Overlay, known: set[str]) -> Overlay:
    unmatched = tuple(name for name in overlay.values if name not in known)
    if unmatched and len(unmatched) == len(overlay.values):
        raise InvalidArgumentError(
            f"Cannot lay {overlay.title!r} over the graph: no node is called {unmatched[0]!r}, nor like any other of "
            f"the {len(unmatched)} names of the table. Make the table from the module that is shown."
        )
    values = {
        name: value
        for name, value in overlay.values.items()
        if isinstance(value, str) or math.isfinite(value)
    }
    return Overlay(overlay.title, values, overlay.unit, overlay.aggregate, unmatched)


def _read(title: str, table: Any) -> Iterator[Overlay]:
    if isinstance(table, Overlay):
        yield table
    elif isinstance(table, CostTable):
        yield from _of_costs(title, table)
    elif isinstance(table, Estimate):
        yield Overlay(f"{title}: predicted time", {node.cost.name: node.seconds for node in table.nodes}, "s")
        yield Overlay(f"{title}: bound by", {node.cost.name: node.bound for node in table.nodes})
    elif isinstance(table, Mapping):
        yield from _of_mapping(title, cast("Mapping[str, Any]", table))
    elif hasattr(table, "whole_times") and hasattr(table, "nodes"):
        yield Overlay(f"{title}: measured time", {node.name: node.seconds for node in table.nodes}, "s")
        yield Overlay(f"{title}: result", {node.name: node.allocated_bytes for node in table.nodes}, "B")
    elif hasattr(table, "coverage") and hasattr(table, "nodes"):
        words = {node.name: "supported" if node.ok else node.reason for node in table.nodes}
        yield Overlay(f"{title}: support by {table.backend}", words)
    else:
        raise InvalidArgumentError(
            f"Cannot lay {title!r} over the graph: it is a {type(table).__name__}. Give a mapping from names of nodes "
            f"to numbers or texts, or what fxplug.cost, fxplug.profile or fxplug.estimate returns."
        )


def _of_costs(title: str, table: CostTable) -> Iterator[Overlay]:
    costs = table.nodes
    known = {node.name: node.multiply_adds for node in costs if node.multiply_adds is not None}
    yield Overlay(f"{title}: multiply-adds", known)
    yield Overlay(f"{title}: bytes moved", {node.name: node.bytes for node in costs}, "B")
    yield Overlay(f"{title}: parameters", {node.name: node.parameter_bytes for node in costs}, "B")
    peaks = {node.name: node.peak_bytes for node in costs if node.peak_bytes is not None}
    yield Overlay(f"{title}: alive at the most", peaks, "B", "max")


def _of_mapping(title: str, table: Mapping[str, Any]) -> Iterator[Overlay]:
    columns: dict[str, dict[str, Value]] = {}
    for name, entry in table.items():
        row = cast("Mapping[str, Any]", entry) if isinstance(entry, Mapping) else {"": entry}
        for column, value in row.items():
            text = f"{title}: {column}" if column else title
            if value is not None:
                columns.setdefault(text, {})[str(name)] = _value(text, name, value)
    for text, values in columns.items():
        yield Overlay(text, values)


def _value(title: str, name: str, value: Any) -> Value:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float, str)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"Cannot lay {title!r} over the graph: for node {name!r} it holds a {type(value).__name__}, not a number "
            f"or a text. Leave the node out, or give its value as a number."
        ) from None

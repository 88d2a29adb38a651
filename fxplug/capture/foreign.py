"""Values of foreign types that a trace keeps as constants of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.attributes import attribute_of
from fxplug.capture.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["ConstantRecord", "lifting"]


@dataclass(frozen=True)
class ConstantRecord:
    """States that values of a type are constants: a graph reads them, and files keep them."""

    name: str
    """Lower-case words joined by hyphens, e.g. ``"window"``: how files call the type."""
    type: type[Any]
    """The type itself, not those derived from it."""
    encode: Callable[[Any], Any] | None = None
    """Returns what a file keeps: plain values, torch's constants, tensors, and lists, tuples and dicts of them. Without
    it such a value cannot be stored."""
    decode: Callable[[Any], Any] | None = None
    """Returns the value for what `encode` returned. What it is given comes from a file: it is of those kinds, never a
    function, and may otherwise be anything."""
    summary: str = ""
    """One line for people."""


def lifting(records: Iterable[ConstantRecord]) -> Callable[[Any], str | None] | None:
    """Return a function that says of a value with which name its constant begins, None for one that is none.

    Args:
        records: The first one for a type counts. Without any, the result is None.
    """
    prefixes: dict[type[Any], str] = {}
    for record in records:
        prefixes.setdefault(record.type, f"_{record.name.replace('-', '_')}_constant")
    if not prefixes:
        return None

    def prefix_of(value: Any) -> str | None:
        prefix = prefixes.get(type(value))
        return None if prefix is None or _holds_proxies(value) else prefix

    return prefix_of


def _holds_proxies(value: Any) -> bool:
    # What a traced value is a part of is no constant.
    own = list(attribute_of(value, "__dict__", {}).values())
    return any(isinstance(part, Proxy) for part in iterate_parts([value, own]))

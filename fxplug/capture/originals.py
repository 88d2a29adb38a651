"""What stands for what: the stand-ins that are put into modules while traces run, and the callables behind them."""

from __future__ import annotations

from typing import Any

__all__ = ["note_shim", "original_of"]

_originals: dict[int, tuple[Any, Any]] = {}
"""Id of a stand-in -> (the stand-in, which must not go away so that its id stays its own; what it stands for)."""


def note_shim(shim: Any, original: Any) -> None:
    """Remember that `shim` stands for `original`."""
    _originals[id(shim)] = (shim, original)


def original_of(value: Any) -> Any:
    """Return what `value` stands for if it is a stand-in, else `value`."""
    known = _originals.get(id(value))
    return value if known is None else known[1]

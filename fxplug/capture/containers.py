"""Lists, dicts and the like that modules hold: what they contain is as it was when a trace ends."""

from __future__ import annotations

from collections import OrderedDict, deque
from operator import is_
from typing import TYPE_CHECKING, Any, cast

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["OWN_TABLES", "Containers"]

_KINDS = (list, dict, set, deque)
OWN_TABLES = frozenset(vars(nn.Module()))
"""The tables that every module has."""
_MOST = 1000
"""Containers in containers are looked at in those that have at most so many elements."""


class Containers:
    """Remembers what containers hold, to put it back."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[str, str, Any, Any]] = {}

    def remember(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Take note of the containers among the attributes of the module at `path`."""
        if attributes.keys() <= OWN_TABLES:
            return
        for name in attributes.keys() - OWN_TABLES:
            value = attributes[name]
            if isinstance(value, _KINDS):
                self._add(path, name, value)

    def _add(self, path: str, name: str, container: Any) -> None:
        pending = [container]
        while pending:
            value = pending.pop()
            if id(value) in self._held:
                continue
            before = _copy_of(value)
            self._held[id(value)] = (path, name, value, before)
            if len(value) <= _MOST:
                inner: Iterable[Any] = value.values() if isinstance(value, dict) else value
                pending.extend(part for part in inner if isinstance(part, _KINDS))

    def restore(self, *, again: bool = False) -> list[tuple[str, str, list[Any]]]:
        """Put everything back.

        Args:
            again: Whether it is to be put back once more, later.

        Returns:
            Of the attributes that held something else: path of the module, name, what they held.
        """
        changed: dict[tuple[str, str], list[Any]] = {}
        for path, name, container, before in self._held.values():
            if not _is_unchanged(container, before):
                changed.setdefault((path, name), []).extend(_copy_of(container))
                _fill(container, before)
        if not again:
            self._held.clear()
        return [(*key, contents) for key, contents in changed.items()]


def _copy_of(container: Any) -> Any:
    """Return what a container holds; a container of a class of its own is read as Python's own class reads it."""
    if isinstance(container, dict):
        return _items_of(cast("dict[Any, Any]", container))
    return list(cast("list[Any]", container))


def _items_of(container: dict[Any, Any]) -> list[tuple[Any, Any]]:
    # An ordered dict has an order of its own.
    if isinstance(container, OrderedDict):
        return list(OrderedDict.items(container))
    return list(dict.items(container))


def _is_unchanged(container: Any, before: list[Any]) -> bool:
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        items = _items_of(cast("dict[Any, Any]", container))
        return all(
            key is known and value is held for (key, value), (known, held) in zip(items, before, strict=True)
        )
    # By identity: values may define any == of their own. A set that nobody has changed has kept its order.
    return all(map(is_, container, before))


def _fill(container: Any, before: list[Any]) -> None:
    if isinstance(container, list):
        cast("list[Any]", container)[:] = before
        return
    container.clear()
    if isinstance(container, deque):
        cast("deque[Any]", container).extend(before)
    else:
        container.update(before)

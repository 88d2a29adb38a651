"""Lists, dicts, plain objects and the like that modules hold: what they contain is as it was when a trace ends."""

from __future__ import annotations

import argparse
import sys
import weakref
from collections import OrderedDict, UserDict, UserList, deque
from dataclasses import dataclass, field, replace
from operator import is_
from types import FunctionType, MemberDescriptorType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.buffers import fill_memory, holds_numbers, numbers_in
from fxplug.capture.iterators import is_iterator, position_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "KINDS",
    "OWN_TABLES",
    "PLAIN",
    "PLAIN_HOLDERS",
    "Change",
    "Containers",
    "copy_of",
    "fill",
    "is_foreign",
    "is_object",
    "is_unchanged",
    "parts_of",
]

KINDS = (list, dict, set, deque)
"""The containers whose contents can be put back."""
OWN_TABLES = frozenset(vars(nn.Module()))
"""The tables that every module has."""
_MOST = 1000
"""Containers in containers are looked at in those that have at most so many elements."""
PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None), torch.Tensor, nn.Parameter})
"""Classes of values that hold nothing, met more often than any others."""


@dataclass(frozen=True)
class Change:
    """What was found in an attribute that held something else before."""

    path: str
    """Of the module."""
    name: str
    """Of the attribute."""
    parts: list[tuple[Any, list[Any], list[Any]]] = field(
        default_factory=list[tuple[Any, list[Any], list[Any]]]
    )
    """Each container or object that has changed, what it held (see `copy_of`), and what it holds."""
    has_gone_on: bool = False
    """Whether something was taken from an iterator, which cannot be put back."""


class Containers:
    """Remembers what containers and plain objects hold, to put it back.

    Args:
        objects: Whether objects count; else containers alone.
    """

    def __init__(self, *, objects: bool = True) -> None:
        self._objects = objects
        self._held: dict[int, tuple[str, str, Any, Any]] = {}
        self._iterators: list[tuple[str, str, Any, Any]] = []

    def remember(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Take note of the containers among the attributes of the module at `path`."""
        if attributes.keys() <= OWN_TABLES:
            return
        for name in attributes.keys() - OWN_TABLES:
            value = attributes[name]
            if type(value) not in PLAIN:
                self._add(path, name, value)

    def _add(self, path: str, name: str, container: Any) -> None:
        pending = [container]
        while pending:
            value = pending.pop()
            if id(value) in self._held:
                continue
            if not self._holds_others(value):
                if is_iterator(value):
                    self._iterators.append((path, name, value, position_of(value)))
                continue
            before = copy_of(value)
            self._held[id(value)] = (path, name, value, before)
            if len(before) <= _MOST:
                pending.extend(part for part in parts_of(value, before) if type(part) not in PLAIN)

    def _holds_others(self, value: Any) -> bool:
        if isinstance(value, (*KINDS, tuple)) or (self._objects and is_object(value)):
            return True
        return holds_numbers(value)

    def restore(self, *, again: bool = False) -> list[Change]:
        """Put everything back.

        Args:
            again: Whether it is to be put back once more, later.

        Returns:
            What was found in the attributes that held something else.
        """
        changed: dict[tuple[str, str], Change] = {}
        for path, name, container, before in self._held.values():
            if not is_unchanged(container, before):
                change = changed.setdefault((path, name), Change(path, name))
                change.parts.append((container, before, copy_of(container)))
                fill(container, before)
        for path, name, iterator, before in self._iterators:
            if position_of(iterator) != before:
                change = changed.get((path, name), Change(path, name))
                changed[path, name] = replace(change, has_gone_on=True)
        if not again:
            self._held.clear()
            self._iterators.clear()
        return list(changed.values())


def parts_of(value: Any, contents: list[Any]) -> Iterable[Any]:
    """Return what a container or object holds, given `copy_of` of it."""
    is_pairs = isinstance(value, dict) or is_object(value)
    return (part for _, part in contents) if is_pairs else contents


def copy_of(container: Any) -> list[Any]:
    """Return what a container holds; a container of a class of its own is read as Python's own class reads it.

    Memory with numbers holds all of them as one thing.
    """
    if isinstance(container, dict):
        return _items_of(cast("dict[Any, Any]", container))
    if is_object(container):
        return list(_fields_of(container))
    if holds_numbers(container):
        return [numbers_in(container)]
    return list(cast("list[Any]", container))


def _items_of(container: dict[Any, Any]) -> list[tuple[Any, Any]]:
    # An ordered dict has an order of its own.
    if isinstance(container, OrderedDict):
        return list(OrderedDict.items(container))
    return list(dict.items(container))


def is_unchanged(container: Any, before: list[Any]) -> bool:
    """Return whether a container or object holds what it held when `copy_of` returned `before`."""
    if isinstance(container, tuple):
        return True
    if holds_numbers(container):
        return [numbers_in(container)] == before
    is_pairs = isinstance(container, dict) or is_object(container)
    found = copy_of(container) if is_pairs else container
    if len(found) != len(before):
        return False
    if is_pairs:
        return all(
            key is known and value is held for (key, value), (known, held) in zip(found, before, strict=True)
        )
    # By identity: values may define any == of their own. A set that nobody has changed has kept its order.
    return all(map(is_, container, before))


def fill(container: Any, before: list[Any]) -> None:
    """Let a container or object hold what it held when `copy_of` returned `before`."""
    if isinstance(container, tuple):
        return
    if isinstance(container, list):
        cast("list[Any]", container)[:] = before
        return
    if is_object(container):
        _set_fields(container, dict(before))
        return
    if holds_numbers(container):
        fill_memory(container, *before)
        return
    container.clear()
    if isinstance(container, deque):
        cast("deque[Any]", container).extend(before)
    else:
        container.update(before)


# -- plain objects

PLAIN_HOLDERS = (SimpleNamespace, argparse.Namespace, UserDict, UserList)
"""Classes of Python whose instances hold what a program gives them."""
_FOREIGN = frozenset({*sys.stdlib_module_names, "fxplug", "numpy", "torch"}) - {"__main__"}
"""Top-level modules whose objects are their own affair."""
_OTHERS = (*KINDS, tuple, nn.Module, torch.Tensor, type, FunctionType, MethodType, BaseException)
_is_object: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def is_foreign(module: str) -> bool:
    """Return whether a module, by its name, is one of Python, torch, NumPy or fxplug."""
    return module.partition(".")[0] in _FOREIGN


def is_object(value: Any) -> bool:
    """Return whether a value is an instance of a class of a program, or of one that holds attributes alone."""
    kind = type(value)
    if kind in PLAIN:
        return False
    known = _is_object.get(kind)
    if known is None:
        is_own = not is_foreign(str(kind.__module__)) and not issubclass(kind, _OTHERS)
        known = _is_object[kind] = is_own or issubclass(kind, PLAIN_HOLDERS)
    return known


def _slots_of(kind: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            for name, member in vars(base).items():
                if isinstance(member, MemberDescriptorType):
                    yield name, member


def _attributes_of(value: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:  # It has slots alone.
        return {}


def _fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object as they are stored, past properties and the like."""
    yield from _attributes_of(value).items()
    for name, member in _slots_of(type(value)):
        try:
            yield name, member.__get__(value)
        except AttributeError:  # Nothing is there.
            continue


def _set_fields(value: Any, fields: dict[str, Any]) -> None:
    for name, member in _slots_of(type(value)):
        if name in fields:
            member.__set__(value, fields.pop(name))
        else:
            try:
                member.__delete__(value)
            except AttributeError:
                continue
    held = _attributes_of(value)
    held.clear()
    held.update(fields)

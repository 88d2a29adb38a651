"""Lists, dicts, plain objects and the like that modules hold: what they contain is as it was when a trace ends."""

from __future__ import annotations

import argparse
import copy
import gc
import io
import os
import sys
import threading
import weakref
import zlib
from array import array
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from fxplug.capture.attributes import attribute_of, can_be_asked
from fxplug.capture.iterators import goes_on, position_of
from fxplug.capture.sources import is_installed
from fxplug.capture.writes import only_adds_to

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = [
    "KINDS",
    "OWN_TABLES",
    "PLAIN",
    "PLAIN_HOLDERS",
    "Change",
    "Containers",
    "attributes_and_slots",
    "copy_of",
    "elements_of",
    "fill",
    "is_array",
    "is_container",
    "is_foreign",
    "is_object",
    "is_same_array",
    "is_unchanged",
    "parts_of",
]

_PAIRS = (dict, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
KINDS = (list, set, deque, bytearray, array, weakref.WeakSet, *_PAIRS)
"""The containers whose contents can be put back; so can those of arrays of NumPy (see `is_array`)."""
OWN_TABLES = frozenset(vars(nn.Module()))
"""The tables that every module has."""
_STREAMS = (io.StringIO, io.BytesIO)
"""Files in memory: what they hold is a text, or bytes, and a position."""
_FIXED = (tuple, MappingProxyType)
"""What holds the same as long as it lives."""
_CONTAINERS = (*KINDS, *_FIXED, CellType, *_STREAMS)
_OF_CLASSES = frozenset({"__module__", "__doc__"})
"""What the table of every class has."""
_MOST = 1000
"""Containers in containers are looked at in those that have at most so many elements."""
_MOST_BYTES = 1 << 20
"""Of larger arrays a checksum is kept, and no copy: a change of theirs is found, and stays."""
_MOST_CHECKED = 1 << 30
"""Larger arrays still are taken for tables that nobody writes to."""
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
        self._modules: list[nn.Module] = []

    def modules_found(self) -> list[nn.Module]:
        """Return the modules that were met since this was asked last; what they hold was not looked at."""
        found, self._modules = self._modules, []
        return found

    def remember(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Take note of the containers among the attributes of the module at `path`."""
        if attributes.keys() <= OWN_TABLES:
            return
        for name in attributes.keys() - OWN_TABLES:
            value = attributes[name]
            if type(value) not in PLAIN:
                self._add(path, name, value)

    def _add(self, path: str, name: str, container: Any) -> None:
        # A function that is an attribute itself is looked at when it is called.
        if type(container) is FunctionType:
            return
        pending, callables = [container], dict[int, Any]()
        while pending:
            value = pending.pop()
            if id(value) in self._held or id(value) in callables or not can_be_asked(value):
                continue
            if self._holds_others(value):
                pending.extend(self._add_container(path, name, value))
            elif goes_on(value):
                self._iterators.append((path, name, value, position_of(value)))
            elif not self._objects:
                continue
            elif isinstance(value, nn.Module):
                self._modules.append(value)
            elif isinstance(value, _CALLABLES):
                callables[id(value)] = value
                pending.extend(_inside_callable(value))

    def _add_container(self, path: str, name: str, value: Any) -> Iterator[Any]:
        """Take note of a container or object, and yield what has to be looked at in it."""
        before = copy_of(value)
        self._held[id(value)] = (path, name, value, before)
        if type(value).__module__ != "builtins" and is_container(value):
            own = attribute_of(value, "__dict__")  # A list of a class of its own has attributes, too.
            if isinstance(own, dict):
                yield own
        if len(before) <= _MOST:
            yield from (part for part in parts_of(value, before) if type(part) not in PLAIN)

    def _holds_others(self, value: Any) -> bool:
        return is_container(value) or (self._objects and is_object(value))

    def arrays(self) -> list[Any]:
        """Return the arrays of NumPy that were noted."""
        return [container for _, _, container, _ in self._held.values() if is_array(container)]

    def held(self) -> Iterator[Any]:
        """Yield what the containers and objects held when they were noted."""
        for _, _, container, before in self._held.values():
            if len(before) <= _MOST:
                yield from parts_of(container, before)

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


_are_arrays: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_class_of_arrays(kind: type) -> bool:
    known = _are_arrays.get(kind)
    if known is None:
        bases = [(base.__module__, base.__name__) for base in kind.__mro__]
        known = _are_arrays[kind] = ("numpy", "ndarray") in bases
    return known


def is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy that may be changed, and is small enough to be looked at."""
    if not _is_class_of_arrays(type(value)):
        return False
    return value.flags.writeable and value.nbytes <= _MOST_CHECKED


def is_container(value: Any) -> bool:
    """Return whether a value holds others, and is no object: a list, dict, tuple, array, variable of a closure."""
    return isinstance(value, _CONTAINERS) or value is os.environ or is_array(value)


def _behind(view: MappingProxyType[Any, Any]) -> list[Any]:
    """Return the dict that can only be read through a view; nothing for the table of a class."""
    held: list[Any] = gc.get_referents(view)
    return [part for part in held if not (isinstance(part, dict) and dict.keys(part) >= _OF_CLASSES)]


_CALLABLES = (FunctionType, MethodType, BuiltinMethodType, MethodWrapperType, partial)


def _inside_callable(value: Any) -> Iterable[Any]:
    """Return what a function of a program, a method or a partial holds."""
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, (BuiltinMethodType, MethodWrapperType)):  # Such as `next` of an iterator.
        return () if isinstance(value.__self__, (ModuleType, type, nn.Module)) else (value.__self__,)
    code = value.__code__
    if is_installed(code.co_filename):
        return ()
    cells = zip(code.co_freevars, value.__closure__ or (), strict=False)
    # What a function only adds to is for whoever looks at it afterwards.
    held = [cell for name, cell in cells if not only_adds_to(code, name)]
    return *held, value.__defaults__, value.__kwdefaults__


def parts_of(value: Any, contents: list[Any]) -> Iterable[Any]:
    """Return what a container or object holds, given `copy_of` of it."""
    if _is_flat(value):
        return ()
    return (part for _, part in contents) if _holds_pairs(value) else contents


def _is_flat(value: Any) -> bool:
    """Return whether a container holds no objects: the copy of one is a list of one value, all that it holds."""
    return isinstance(value, (bytearray, array, *_STREAMS)) or value is os.environ or is_array(value)


def _flat_copy_of(container: Any) -> Any:
    if container is os.environ:
        return dict(os.environ)
    if isinstance(container, _STREAMS):
        return None if container.closed else (container.getvalue(), container.tell())
    if is_array(container) and container.nbytes > _MOST_BYTES:
        return _checksum_of(container)
    return copy.copy(container)


class _Checksum(NamedTuple):
    """Stands for what a large array holds."""

    value: int
    dtype: Any
    shape: tuple[int, ...]


def _checksum_of(container: Any) -> _Checksum:
    try:
        memory = memoryview(container).cast("B")
    except (
        TypeError,
        ValueError,
        BufferError,
    ):  # It is not in one piece, or its elements are of another kind.
        memory = container.tobytes()
    return _Checksum(zlib.crc32(memory), container.dtype, container.shape)


def _holds_pairs(value: Any) -> bool:
    return isinstance(value, _PAIRS) or is_object(value)


def copy_of(container: Any) -> list[Any]:
    """Return what a container holds; a container of a class of its own is read as Python's own class reads it."""
    if is_object(container):
        return list(_fields_of(container))
    if isinstance(container, _PAIRS):
        return _items_of(container)
    if _is_flat(container):
        return [_flat_copy_of(container)]
    if isinstance(container, CellType):
        return [] if container == CellType() else [container.cell_contents]
    if isinstance(container, MappingProxyType):
        return _behind(cast("MappingProxyType[Any, Any]", container))
    return list(_own_iterator(container))


def elements_of(container: Any) -> Collection[Any]:
    """Return what a container holds, the values of a dict, as Python itself reads it."""
    if isinstance(container, dict):
        return dict.values(cast("dict[Any, Any]", container))
    if isinstance(container, MappingProxyType):
        return container.values()
    return container if type(container) in _READ_AS_THEY_ARE else list(_own_iterator(container))


_READ_AS_THEY_ARE = frozenset({list, tuple, set, frozenset, deque})


def _own_iterator(container: Any) -> Iterator[Any]:
    """Return an iterator over what a container holds, past methods of a class of its own."""
    for kind in _READ_AS_THEY_ARE:
        if isinstance(container, kind):
            return kind.__iter__(cast("Any", container))
    return iter(container)


def _items_of(container: Any) -> list[tuple[Any, Any]]:
    # An ordered dict has an order of its own.
    if isinstance(container, OrderedDict):
        return list(OrderedDict.items(container))
    return list(dict.items(container)) if isinstance(container, dict) else list(container.items())


def is_unchanged(container: Any, before: list[Any]) -> bool:
    """Return whether a container or object holds what it held when `copy_of` returned `before`."""
    if isinstance(container, _FIXED):
        return True
    if _is_flat(container):
        return _is_same_flat(container, before[0])
    is_pairs = _holds_pairs(container)
    is_plain = type(container) in _READ_AS_THEY_ARE
    found: Any = container if is_plain else copy_of(container)
    if len(found) != len(before):
        return False
    if is_pairs:
        return all(
            key is known and value is held for (key, value), (known, held) in zip(found, before, strict=True)
        )
    # By identity: values may define any == of their own. A set that nobody has changed has kept its order.
    return all(map(is_, found, before))


def _is_same_flat(container: Any, before: Any) -> bool:
    if container is os.environ or isinstance(container, _STREAMS):
        return _flat_copy_of(container) == before
    if isinstance(before, _Checksum):
        return _checksum_of(container) == before
    return is_same_array(container, before)


def is_same_array(one: Any, other: Any) -> bool:
    """Return whether two arrays of one class hold the same: by their bytes, so that a NaN is itself."""
    if isinstance(one, bytearray):
        return one == other
    if isinstance(one, array):
        return (one.typecode, one.tobytes()) == (other.typecode, other.tobytes())
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def fill(container: Any, before: list[Any]) -> None:
    """Let a container or object hold what it held when `copy_of` returned `before`."""
    if isinstance(container, _FIXED):
        return
    if _is_flat(container):
        _fill_flat(container, before[0])
        return
    if isinstance(container, CellType):
        _fill_cell(container, before)
        return
    if is_object(container):
        _set_fields(container, dict(before))
        return
    _set_elements(container, before)


def _set_elements(container: Any, before: list[Any]) -> None:
    """Store elements past methods of the container's own class: it may refuse to be changed, or keep count of it."""
    if isinstance(container, list):
        list.__setitem__(cast("list[Any]", container), slice(None), before)
    elif isinstance(container, deque):
        deque.clear(cast("deque[Any]", container))
        deque.extend(cast("deque[Any]", container), before)
    elif isinstance(container, OrderedDict):
        OrderedDict.clear(cast("OrderedDict[Any, Any]", container))
        for key, value in before:
            OrderedDict.__setitem__(cast("OrderedDict[Any, Any]", container), key, value)
    elif isinstance(container, dict):
        dict.clear(cast("dict[Any, Any]", container))
        dict.update(cast("dict[Any, Any]", container), before)
    elif isinstance(container, set):
        set.clear(cast("set[Any]", container))
        set.update(cast("set[Any]", container), before)
    else:
        container.clear()
        container.update(before)


def _fill_cell(cell: CellType, before: list[Any]) -> None:
    if before:
        cell.cell_contents = before[0]
    elif cell != CellType():
        del cell.cell_contents


def _fill_flat(container: Any, before: Any) -> None:
    if isinstance(before, _Checksum):
        return
    if container is os.environ:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        return
    if isinstance(container, _STREAMS):
        _fill_stream(container, before)
        return
    if isinstance(container, (bytearray, array)):
        container[:] = before
        return
    if container.shape != before.shape:
        container.resize(before.shape, refcheck=False)
    container[...] = before


def _fill_stream(stream: Any, before: Any) -> None:
    if before is None or stream.closed:  # Nothing opens it again.
        return
    content, position = before
    stream.seek(0)
    stream.truncate()
    stream.write(content)
    stream.seek(position)


# -- plain objects

PLAIN_HOLDERS = (SimpleNamespace, argparse.Namespace, ChainMap, UserDict, UserList, threading.local)
"""Classes of Python whose instances hold what a program gives them."""
_HOLDERS_BY_NAME = frozenset({("configparser", "RawConfigParser"), ("configparser", "SectionProxy")})
"""Further ones, whose modules are not imported for this."""
_FOREIGN = frozenset({*sys.stdlib_module_names, "fxplug", "numpy", "torch"}) - {"__main__"}
"""Top-level modules whose objects are their own affair."""
_OTHERS = (*KINDS, *_FIXED, nn.Module, torch.Tensor, type, FunctionType, MethodType, BaseException)
_is_object: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


_LIBRARIES = ("builtins.", "fxplug", "numpy.", "torch.", "sympy.", "mpmath.")


def is_of_library(module: str) -> bool:
    """Return whether a module, by its name, is one of a library whose code is not looked at.

    These are Python's own, fxplug with its plugins, torch, and what comes with it.
    """
    return f"{module}.".startswith(_LIBRARIES)


def is_foreign(module: str) -> bool:
    """Return whether a module, by its name, is one of Python, torch, NumPy or fxplug."""
    return str(module).partition(".")[0] in _FOREIGN


def is_object(value: Any) -> bool:
    """Return whether a value is an instance of a class of a program, or of one that holds attributes alone."""
    kind = type(value)
    if kind in PLAIN:
        return False
    known = _is_object.get(kind)
    if known is None:
        is_other = issubclass(kind, _OTHERS) or _is_class_of_arrays(kind)
        is_own = not is_foreign(str(kind.__module__)) and not is_other
        known = _is_object[kind] = is_own or issubclass(kind, PLAIN_HOLDERS) or _is_known_holder(kind)
    return known


def _is_known_holder(kind: type) -> bool:
    return not _HOLDERS_BY_NAME.isdisjoint((base.__module__, base.__name__) for base in kind.__mro__)


def _slots_of(kind: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            for name, member in vars(base).items():
                if isinstance(member, MemberDescriptorType):
                    yield name, member


def attributes_and_slots(value: Any) -> Mapping[str, Any]:
    """Return what an object holds under names, in slots, too."""
    own: Mapping[str, Any] = attribute_of(value, "__dict__", {})
    in_slots: dict[str, Any] = {}
    for name, member in _slots_of(type(value)):
        with suppress(AttributeError):  # It holds nothing yet.
            in_slots[name] = member.__get__(value)
    return {**own, **in_slots} if in_slots else own


def _attributes_of(value: Any) -> dict[str, Any]:
    if isinstance(value, threading.local):
        return vars(value)  # Those of this thread, which only its own class knows.
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:  # It has slots alone.
        return {}
    except Exception:  # Its class has a property of that name, behind which Python keeps them.
        return _stored_in(value)


def _stored_in(value: Any) -> dict[str, Any]:
    state = getattr(object, "__getstate__", None)  # Python 3.10 has none.
    found: Any = None if state is None else state(value)
    if isinstance(found, tuple):  # With what is in slots.
        found = cast("tuple[Any, ...]", found)[0]
    return found if isinstance(found, dict) else {}


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

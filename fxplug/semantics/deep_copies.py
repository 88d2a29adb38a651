"""Copies as `copy` makes them, also of dicts that take names of Python's own methods for keys.

A dict whose keys are attributes (``__getattr__ = dict.__getitem__``) answers the question for ``__deepcopy__`` with a
`KeyError`, where Python expects an `AttributeError`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fxplug.semantics.constructors import can_be_made, object_with, store_attributes, stored_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["deep_copy", "shallow_copy"]

ValueT = TypeVar("ValueT")


def deep_copy(value: ValueT, memo: dict[int, Any]) -> ValueT:
    """Return what `copy.deepcopy` does, also where such dicts stand in lists, tuples, dicts and dataclasses.

    Dataclasses whose ``__new__`` wants arguments, with which Python cannot copy them, are copied as well.

    Args:
        value: What is copied.
        memo: Id -> copy, of what has one already.
    """
    parts = [part for part in _parts_in(value) if id(part) not in memo]
    found = [part for part in parts if isinstance(part, dict) and _takes_names_for_keys(part)]
    made = [part for part in parts if not isinstance(part, dict) and _wants_arguments(part)]
    memo.update({id(part): _emptied(part) for part in found})
    memo.update({id(part): object_with(type(part)) for part in made})
    for part in found:  # One may hold another, or itself.
        pairs = [(copy.deepcopy(key, memo), copy.deepcopy(held, memo)) for key, held in part.items()]
        _fill(memo[id(part)], pairs, copy.deepcopy(_attributes_of(part), memo))
    for part in made:
        store_attributes(memo[id(part)], copy.deepcopy(stored_attributes(part), memo))
    return copy.deepcopy(value, memo)


def shallow_copy(value: ValueT) -> ValueT:
    """Return what `copy.copy` does, also of such a dict."""
    if not isinstance(value, dict) or not _takes_names_for_keys(cast("dict[Any, Any]", value)):
        return copy.copy(value)
    made = _emptied(cast("dict[Any, Any]", value))
    _fill(made, value.items(), _attributes_of(value))
    return cast("ValueT", made)


def _parts_in(value: Any) -> Iterator[Any]:
    """Yield the dicts of classes of their own and the dataclasses in a nested value, each once."""
    stack, seen = [value], set[int]()
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            if type(part) is not dict:
                yield part
            stack.extend(dict.values(cast("dict[Any, Any]", part)))
        elif isinstance(part, (list, tuple)):
            stack.extend(cast("Iterable[Any]", part))
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            yield part
            stack.extend(getattr(part, field.name, None) for field in dataclasses.fields(part))


def _takes_names_for_keys(value: dict[Any, Any]) -> bool:
    """Return whether a dict answers questions for a method that it has not with another error than Python expects."""
    kind = type(value)
    if not hasattr(kind, "__getattr__") or hasattr(kind, "__deepcopy__"):
        return False
    if hasattr(kind, "__missing__"):
        return True  # The question may put a key into it.
    try:
        getattr(value, "__deepcopy__", None)
    except Exception:  # Whatever its class raises.
        return True
    return False


def _wants_arguments(value: Any) -> bool:
    """Return whether an object of a dataclass is one that Python cannot copy, as its ``__new__`` wants arguments."""
    kind: Any = type(value)
    if kind.__new__ is object.__new__ or not can_be_made(kind) or hasattr(kind, "__deepcopy__"):
        return False
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    if hasattr(kind, "__getnewargs__") or hasattr(kind, "__getnewargs_ex__") or hasattr(kind, "__setstate__"):
        return False
    try:
        inspect.signature(kind.__new__).bind(kind)
    except (TypeError, ValueError):  # What it cannot be called with.
        return True
    return False


def _emptied(value: dict[Any, Any]) -> Any:
    """Return an empty dict of the same class, whose constructor is not asked."""
    kind = type(value)
    made: Any = kind.__new__(kind)
    if isinstance(value, defaultdict):
        defaultdict.__init__(made, value.default_factory)
    return made


def _fill(made: Any, pairs: Iterable[tuple[Any, Any]], attributes: dict[str, Any]) -> None:
    """Fill a dict past what its class does when it is written to."""
    put: Any = OrderedDict.__setitem__ if isinstance(made, OrderedDict) else dict.__setitem__
    for key, value in pairs:
        put(made, key, value)
    if attributes:
        _attributes_of(made).update(attributes)


def _attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes that a dict has besides its keys."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:  # Its class has slots.
        return {}

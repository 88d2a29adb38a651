"""Inputs that hold others and stay whole: what they hold, copies of them, and what a program does to these."""

from __future__ import annotations

import operator
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.arguments import is_constant, is_plain_subclass
from fxplug.capture.attributes import attribute_of
from fxplug.capture.containers import is_foreign
from fxplug.semantics.deep_copies import shallow_copy
from fxplug.semantics.internals import buffers_of, is_fake, modules_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Change",
    "Whole",
    "changes_of",
    "copied",
    "fields_of",
    "holds_parts",
    "is_field",
    "others_of",
    "parts_of",
]


_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


@dataclass(frozen=True)
class Whole:
    """An input that is one input of the graph, whatever it holds."""

    value: Any


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object whose class keeps all of them in a dict; None for anything else."""
    kind = type(value)
    if isinstance(value, nn.Module):
        held = {**vars(value), **parameters_of(value), **buffers_of(value), **modules_of(value)}
        return {
            name: part for name, part in held.items() if part is not None and name not in _OF_EVERY_MODULE
        }
    if isinstance(value, (torch.Tensor, type)) or is_plain_subclass(value):
        return None
    # An object that can be called is one like others, if its class is none of Python, torch and the like.
    if is_constant(value) and (
        not callable(value) or all(is_foreign(base.__module__) for base in kind.__mro__)
    ):
        return None
    if kind.__module__ == "builtins" or attribute_of(value, "__dict__") is None:
        return None
    if any("__slots__" in vars(base) and vars(base)["__slots__"] for base in kind.__mro__):
        return None
    return vars(value)


def holds_parts(value: Any) -> bool:
    """Return whether a value is a list, tuple, dict or object."""
    return isinstance(value, (dict, tuple, list)) or fields_of(value) is not None


def parts_of(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return the parts of a list, tuple, dict or object with their keys; None for anything else.

    The key of a field is its name behind a dot.
    """
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value).items())
    if isinstance(value, (tuple, list)):
        return enumerate(cast("Iterable[Any]", value))
    fields = fields_of(value)
    return None if fields is None else [(f".{name}", part) for name, part in fields.items()]


def is_field(key: Any) -> bool:
    """Return whether the key of a part is a field."""
    return isinstance(key, str) and key.startswith(".")


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy of lists, dicts and objects at any depth, which holds the same tensors and plain values.

    Args:
        value: What is copied.
        memo: Id -> (original, copy) of what was copied before.
    """
    if id(value) in memo:
        return memo[id(value)][1]
    if isinstance(value, tuple):
        parts = [copied(part, memo) for part in cast("tuple[Any, ...]", value)]
        if all(map(operator.is_, parts, value)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is weakref.ref:  # A part of a whole may know the whole, or another part.
        _, other = memo.get(id(cast("Any", value)()), (None, None))
        return value if other is None else weakref.ref(other)
    if not holds_parts(value) or isinstance(value, nn.Module):
        return value
    other = shallow_copy(value)
    memo[id(value)] = (value, other)
    if isinstance(value, list):
        other[:] = [copied(part, memo) for part in cast("list[Any]", value)]
    elif isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            other[key] = copied(part, memo)
    else:
        vars(other).update({name: copied(part, memo) for name, part in vars(value).items()})
    return other


@dataclass(frozen=True)
class Change:
    """Something that a program has done to an input, as a call that does the same."""

    path: tuple[Any, ...]
    """Keys by which the changed part is found in the input."""
    function: Any
    """A function, or the name of a method."""
    args: tuple[Any, ...]
    """Behind the changed part."""


def others_of(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a value with another tensor for each one in it, of the same memory, so that they can be told apart.

    Those in objects of other classes than tuples, lists and dicts are the same, and so are tensors of other classes.

    Args:
        value: Not changed.
        memo: Id of a tensor -> the other one.
    """
    memo = {} if memo is None else memo
    kind = type(value)
    if kind is torch.Tensor or is_fake(value):
        if id(value) not in memo:
            memo[id(value)] = _other_tensor(value)
        return memo[id(value)]
    if kind is dict:
        return {key: others_of(part, memo) for key, part in value.items()}
    if kind is list:
        return [others_of(part, memo) for part in value]
    if isinstance(value, tuple):
        parts = [others_of(part, memo) for part in cast("tuple[Any, ...]", value)]
        if kind is tuple:
            return tuple(parts)
        if hasattr(kind, "_fields"):
            return kind(*parts)
    return value


def _other_tensor(tensor: torch.Tensor) -> torch.Tensor:
    other = tensor.view_as(tensor)
    if tensor.is_leaf:
        other = tensor.detach().requires_grad_(tensor.requires_grad)
    vars(other).update(vars(tensor))
    return other


def changes_of(
    before: Any, after: Any, copies: dict[int, Any], path: tuple[Any, ...] = ()
) -> Iterator[Change]:
    """Yield what turns a copy that nobody has touched into one that a program has changed, inner parts first.

    Args:
        before: The input, with the parts that it had.
        after: The copy that the program was given.
        copies: What `copied` has noted when it made the copy.
        path: Keys by which it is found.
    """
    old, new = dict(parts_of(before) or ()), dict(parts_of(after) or ())
    for key in old.keys() & new.keys():
        if holds_parts(old[key]) and type(old[key]) is type(new[key]):
            yield from changes_of(old[key], new[key], copies, (*path, key))
    same = list(old) == list(new) and all(_stays(old[key], new[key], copies) for key in old)
    if same or isinstance(after, tuple):
        return
    if isinstance(after, dict):
        yield Change(path, "clear", ())
        yield Change(path, "update", (dict(cast("dict[Any, Any]", after)),))
    elif isinstance(after, list):
        yield Change(path, operator.setitem, (slice(None), list(cast("list[Any]", after))))
    else:
        for key in old.keys() - new.keys():
            yield Change(path, delattr, (key[1:],))
        for key, part in new.items():
            if key not in old or not _stays(old[key], part, copies):
                yield Change(path, setattr, (key[1:], part))


def _stays(old: Any, new: Any, copies: dict[int, Any]) -> bool:
    if type(old) is type(new) is weakref.ref and old is not new:
        _, copy = copies.get(id(old()), (None, None))
        return copy is not None and copy is new()
    return old is new or (holds_parts(old) and type(old) is type(new) and not isinstance(old, tuple))

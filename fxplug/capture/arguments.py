"""From values of a program to arguments of a graph."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.attributes import attribute_of
from fxplug.capture.sources import place_in_program
from fxplug.errors import TraceError
from fxplug.ir import Argument, Node, iterate_leaves
from fxplug.semantics.constructors import can_be_made, is_dict_of_fields, is_made_of_fields, stored_attributes
from fxplug.semantics.internals import HigherOrderOperator, OpOverload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "PLAIN_TYPES",
    "attributes_apart",
    "constructor_arguments",
    "container_argument",
    "holds_itself",
    "is_constant",
    "is_plain_subclass",
    "iterate_parts",
    "own_container",
]

PLAIN_TYPES: frozenset[type] = frozenset({int, float, bool, str, type(None), complex, bytes, type(Ellipsis)})
"""Exact types of values that stand in a graph as they are."""

_CONSTANTS = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
    OpOverload,
    HigherOrderOperator,
    range,
)


def container_argument(value: Any, convert: Callable[[Any], Argument]) -> Argument:
    """Return a tuple, list, dict or slice with every element converted, NotImplemented for anything else.

    Args:
        value: A value of the program.
        convert: Turns an element into an argument.

    Raises:
        TraceError: A key of a dict is, or holds, a traced value.
    """
    if isinstance(value, tuple):
        elements = [convert(element) for element in cast("tuple[Any, ...]", value)]
        if type(value) is tuple or not hasattr(value, "_fields"):
            return tuple(elements)
        return type(value)(*elements)
    if isinstance(value, list):
        return [convert(element) for element in cast("list[Any]", value)]
    if isinstance(value, dict):
        given = cast("dict[Any, Any]", value)
        for key in given:
            if type(key) is not str and any(isinstance(leaf, Node) for leaf in iterate_leaves(convert(key))):
                raise TraceError(f"Cannot record a dict: its key {key!r} is a traced value. Use plain keys.")
        return {key: convert(element) for key, element in given.items()}
    if isinstance(value, slice):
        return slice(convert(value.start), convert(value.stop), convert(value.step))
    return NotImplemented


def own_container(value: Any) -> tuple[Any, ...] | None:
    """Return what a container of a class of its own is made of; None for any other value.

    Returns:
        What its class is called with: a plain tuple, list or dict, behind the factory of a ``defaultdict``.

    Raises:
        TraceError: Calling the class with that gives something else.
    """
    kind: Any = type(value)
    base: Any = next((base for base in (dict, list, tuple) if isinstance(value, base)), None)
    if base is None or kind is base or _is_plain_container(kind):
        return None
    if isinstance(value, defaultdict):
        parts: tuple[Any, ...] = (value.default_factory, dict(cast("dict[Any, Any]", value)))
    else:
        parts = tuple(value) if hasattr(kind, "_fields") else (base(value),)
    try:
        same = _holds_the_same(kind(*parts), value)
    except Exception:  # Whatever the class does.
        same = False
    if not same:
        raise TraceError(
            f"Cannot record a {base.__name__} of the class {kind.__module__}.{kind.__qualname__}: made anew from what "
            f"it holds, it is not the same. Use a plain {base.__name__}, or a dataclass.",
            code="FXP-T006",
        )
    return parts


def _is_plain_container(kind: type) -> bool:
    """Return whether a class is a form in which tuples, lists and dicts stand in a graph, or one of torch's results."""
    known = str(kind.__module__).startswith(("fxplug.", "torch.fx", "torch.return_types"))
    return known or kind is torch.Size or _is_plain_named_tuple(kind) or dataclasses.is_dataclass(kind)


def _is_plain_named_tuple(kind: type) -> bool:
    """Return whether a class is a named tuple that looks at nothing it is made of; a ``PackedSequence`` does."""
    made: Any = kind.__new__
    return hasattr(kind, "_fields") and str(getattr(made, "__module__", "")).startswith("namedtuple_")


def _holds_the_same(made: Any, value: Any) -> bool:
    if type(made) is not type(value) or len(made) != len(value):
        return False
    pairs = [(made, value)]
    if isinstance(value, dict):
        pairs = [(made.keys(), value.keys()), (made.values(), value.values())]
    own, others = attribute_of(made, "__dict__", {}), attribute_of(value, "__dict__", {})
    pairs += [(own.keys(), others.keys()), (own.values(), others.values())]
    return all(
        len(left) == len(right) and all(one is other for one, other in zip(left, right, strict=True))
        for left, right in pairs
    )


def iterate_parts(value: Any) -> Iterator[Any]:
    """Yield what is neither container nor dataclass in a nested value, keys of dicts and elements of sets included.

    What holds itself is looked at once.
    """
    stack = [value]
    # Kept alive while they are known by their ids.
    seen: dict[int, Any] = {}
    while stack:
        part = stack.pop()
        inner = _parts_of(part)
        if inner is None:
            yield part
        elif id(part) not in seen:
            seen[id(part)] = part
            stack.extend(reversed(inner))


def _parts_of(value: Any) -> list[Any] | None:
    """Return what a container or dataclass holds, None for anything else."""
    kind = type(value)
    if kind in PLAIN_TYPES:
        return None
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(cast("list[Any]", value))
    if isinstance(value, dict):
        given = cast("dict[Any, Any]", value)
        return [*given, *given.values()]
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    if "__dataclass_fields__" in vars(kind) or hasattr(kind, "__dataclass_fields__"):
        return _parts_of_dataclass(value)
    return None


def _parts_of_dataclass(value: Any) -> list[Any]:
    """Return what is in the fields of an object, and beside them."""
    names = [field.name for field in dataclasses.fields(value)]
    held = stored_attributes(value)
    # What stands for a field that is not in the object may be its default, or code of the class that fails.
    fields = [held[name] if name in held else attribute_of(value, name) for name in names]
    return [*fields, *(part for name, part in held.items() if name not in names)]


def holds_itself(value: Any) -> bool:
    """Return whether a list, dict or dataclass is, at some depth, an element of itself."""
    around: dict[int, Any] = {}
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        part, is_left = stack.pop()
        if is_left:
            del around[id(part)]
            continue
        inner = _parts_of(part)
        if inner is None:
            continue
        if id(part) in around:
            return True
        around[id(part)] = part
        stack.append((part, True))
        stack.extend((element, False) for element in inner)
    return False


def is_constant(value: Any) -> bool:
    """Return whether a value can stand in a graph as it is: something to be called, or a constant of torch."""
    return callable(value) or isinstance(value, _CONSTANTS)


def is_plain_subclass(value: Any) -> bool:
    """Return whether a value is a number, text or enum with a class of its own; the object itself stands in a graph."""
    if isinstance(value, (int, float, str, bytes, complex)):
        return True
    return any(base.__module__ == "enum" for base in type(value).__mro__)


def constructor_arguments(value: Any) -> dict[str, Any] | None:
    """Return what a dataclass is made of, by the names that its constructor takes; None for anything else.

    Raises:
        TraceError: It is a container besides, and a call of its class would not give the same.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    kind, fields = type(value), dataclasses.fields(value)
    if not isinstance(value, (tuple, list, dict)):
        return (
            {field.name: getattr(value, field.name) for field in fields} if is_made_of_fields(kind) else None
        )
    named = {field.name: getattr(value, field.name) for field in fields if hasattr(value, field.name)}
    if len(named) < len(fields) or not _is_made_again(value, named):
        raise _unmade(
            kind, "it is a container with fields, and made anew from its fields, it would not be the same"
        )
    return named


def _is_made_again(value: Any, named: dict[str, Any]) -> bool:
    """Return whether calling the class of a container that is a dataclass gives the same one."""
    if is_dict_of_fields(type(value)):
        given = {name: part for name, part in named.items() if part is not None}
        own = attribute_of(value, "__dict__", {})
        same = own.keys() == named.keys() and list(dict.keys(value)) == list(given)
        return same and all(
            one is other for one, other in zip(dict.values(value), given.values(), strict=True)
        )
    try:
        made = type(value)(**named)
        return _holds_the_same(made, value) and all(getattr(made, name) is named[name] for name in named)
    except Exception:  # Whatever the class does.
        return False


def attributes_apart(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object of a dataclass which a call of its class would not give it; None for others.

    The class does more than to keep its fields when it is called, which has been done once, or the object has other
    attributes than these.

    Raises:
        TraceError: The object holds something besides its attributes, as a number or an exception does.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, (type, tuple, list, dict)):
        return None
    kind, found = type(value), stored_attributes(value)
    if is_made_of_fields(kind) and found.keys() == {field.name for field in dataclasses.fields(value)}:
        return None
    if can_be_made(kind):
        return found
    # The object itself stands in the graph, as others of the kind do.
    if is_plain_subclass(value) and all(type(part) in PLAIN_TYPES for part in iterate_parts(found)):
        return None
    raise _unmade(kind, "it holds more than its attributes, and its class does something when it is called")


def _unmade(kind: type, reason: str) -> TraceError:
    """Return the error for an object of a dataclass that no call in a graph gives again."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    return TraceError(
        f"Cannot record an object of the dataclass {name}{place_in_program()}: {reason}. "
        "Return or pass its fields, or make the function that makes it a leaf (fxplug.wrap), or its module.",
        code="FXP-T006",
    )

"""Comparing arguments of calls: when two values are the same value."""

from __future__ import annotations

import math
from typing import Any, cast

from fxplug.ir import Node

__all__ = ["is_container", "nodes_in", "same_shape", "same_value"]


def is_container(value: object) -> bool:
    """Return whether a value holds other arguments."""
    return isinstance(value, (tuple, list, dict, slice))


def same_shape(first: Any, second: Any, *, exact: bool) -> list[tuple[Any, Any]] | None:
    """Return the elements of two containers in pairs, None where the containers differ.

    Args:
        first: A tuple, list, dict or slice.
        second: Any value.
        exact: Whether a list and a tuple are different things. They are the same sizes to a function of torch, and
            another index to a tensor.
    """
    if isinstance(first, slice):
        if not isinstance(second, slice):
            return None
        ends, others = cast("Any", first), cast("Any", second)
        return [(ends.start, others.start), (ends.stop, others.stop), (ends.step, others.step)]
    if isinstance(first, dict):
        if not isinstance(second, dict):
            return None
        ours, theirs = cast("dict[Any, Any]", first), cast("dict[Any, Any]", second)
        if ours.keys() != theirs.keys():
            return None
        return [(ours[key], theirs[key]) for key in ours]
    if not isinstance(second, (tuple, list)) or len(first) != len(cast("Any", second)):
        return None
    if _sequence_kind(first, exact=exact) is not _sequence_kind(second, exact=exact):
        return None
    return list(zip(first, cast("Any", second), strict=True))


def _sequence_kind(value: Any, *, exact: bool) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(cast("object", value))
    return isinstance(value, tuple) if exact else None


def same_value(first: Any, second: Any) -> bool:
    """Return whether two arguments stand for one value: the same node, equal plain values, or containers of such.

    ``1``, ``1.0`` and ``True`` are different values, and so are the two zeros; a NaN is the same as another one.
    """
    waiting: list[tuple[Any, Any]] = [(first, second)]
    while waiting:
        one, other = waiting.pop()
        if is_container(one):
            pairs = same_shape(one, other, exact=True)
            if pairs is None:
                return False
            waiting.extend(pairs)
        elif not _same_leaf(one, other):
            return False
    return True


def _same_leaf(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if type(first) is not type(second) or isinstance(first, Node):
        return False
    if isinstance(first, float):
        return _same_float(first, second)
    if isinstance(first, complex):
        return _same_float(first.real, second.real) and _same_float(first.imag, second.imag)
    try:
        return bool(first == second)
    except Exception:
        return (
            False  # Arrays and tensors compare element by element: they are the same if they are one object.
        )


def _same_float(first: float, second: float) -> bool:
    if math.isnan(first):
        return math.isnan(second)
    return first == second and math.copysign(1, first) == math.copysign(1, second)


def nodes_in(value: Any) -> list[Node]:
    """Return the nodes in a nested argument, in order."""
    found: list[Node] = []
    waiting: list[Any] = [value]
    while waiting:
        element = waiting.pop()
        if isinstance(element, Node):
            found.append(element)
        elif isinstance(element, dict):
            waiting.extend(reversed(cast("dict[Any, Any]", element).values()))
        elif isinstance(element, slice):
            ends = cast("Any", element)
            waiting.extend((ends.step, ends.stop, ends.start))
        elif isinstance(element, (tuple, list)):
            waiting.extend(reversed(cast("list[Any]", element)))
    return found

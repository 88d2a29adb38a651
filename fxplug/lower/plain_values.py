"""When a value that is no tensor is the very one that an engine was compiled for."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import OrderedDict, defaultdict, deque
from itertools import starmap
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["describe_difference", "is_same_value", "kept_copy"]

_LONGEST = 200


def is_same_value(expected: Any, value: Any) -> bool:
    """Return whether two values are of one class and hold the same; what cannot be compared is not the same.

    ``1``, ``1.0`` and ``True`` are different values, and so are the two zeros; a NaN is the same as another one. Dicts
    have their keys in one order, as programs walk through them. Arrays and tensors are the same where they have one
    dtype, one shape (tensors: on one device) and the same bits.

    Args:
        expected: Whatever was given when the engine was compiled.
        value: Whatever is given now.
    """
    try:
        return _is_same(expected, value)
    except (
        Exception
    ):  # Whatever a comparison raises, and what holds itself: nobody knows that they are the same.
        return False


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if one is other:
        return True
    if isinstance(one, torch.Tensor):
        return _is_same_tensor(one, other)
    if _is_of_numpy(one):
        return _is_same_array(one, other)
    if isinstance(one, float):
        return float.hex(one) == float.hex(other)
    if isinstance(one, complex):
        return _is_same(one.real, other.real) and _is_same(one.imag, other.imag)
    if isinstance(one, (set, frozenset)):
        return _are_same_in_any_order(one, other)
    parts, others = _parts(one), _parts(other)
    if parts is None or others is None:
        # What an object calls equal counts; a class that compares element by element says no plain True.
        return (one == other) is True
    return len(parts) == len(others) and all(starmap(_is_same, zip(parts, others, strict=True)))


def _parts(value: Any) -> list[Any] | None:
    """Return what a value is made of, in order, None where it is one piece."""
    if isinstance(value, (tuple, list)):
        return list(value)
    if isinstance(value, dict):
        factory = value.default_factory if isinstance(value, defaultdict) else None
        return [factory, *(part for item in value.items() for part in item)]
    if isinstance(value, deque):
        return [value.maxlen, *value]
    if isinstance(value, slice):
        return [value.start, value.stop, value.step]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        compares = getattr(type(value), "__dataclass_params__").eq  # noqa: B009 - no name of its type
        return [getattr(value, field.name) for field in dataclasses.fields(value)] if compares else None
    return None


def _are_same_in_any_order(ones: Collection[Any], others: Collection[Any]) -> bool:
    left = list(others)
    for one in ones:
        place = next((number for number, other in enumerate(left) if _is_same(one, other)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _is_of_numpy(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")  # Where nobody has imported it, there are no such values.
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _is_same_array(one: Any, other: Any) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.hasobject:  # The bits are addresses.
        return _is_same(one.tolist(), other.tolist())
    return one.tobytes() == other.tobytes()


def _is_same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (one.dtype, one.device, one.shape, one.layout) != (
        other.dtype,
        other.device,
        other.shape,
        other.layout,
    ):
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def kept_copy(value: Any) -> Any:
    """Return a value as it is now, whatever its owner does to it later.

    Containers, arrays, and objects that are compared by what they hold are copied; others are themselves, whatever they
    hold.
    """
    kind = type(value)
    if kind in {list, tuple}:
        return kind(map(kept_copy, value))
    if kind in {dict, OrderedDict}:
        return kind((key, kept_copy(part)) for key, part in value.items())
    if kind is set or (_is_of_numpy(value) and not value.dtype.hasobject):
        return value.copy()
    return value if kind.__eq__ is object.__eq__ else _deep_copy(value)


def _deep_copy(value: Any) -> Any:
    """Return a copy of an object, or the object where it has none that counts as the same."""
    try:
        made = copy.deepcopy(value)
    except Exception:  # Whatever its class raises.
        return value
    return made if is_same_value(made, value) else value


# -- for people


def describe_difference(expected: Any, value: Any) -> str:
    """Return what is given instead of what was, for people; classes are named where both look the same."""
    found, wanted = _text(value), _text(expected)
    if found == wanted:
        found, wanted = (
            f"{text} ({_class_name(part)})" for text, part in ((found, value), (wanted, expected))
        )
    return f"is {found}, and was {wanted} when it was compiled"


def _text(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # It is shown in an error, which says more than how it fails to be shown.
        return f"a {_class_name(value)} that cannot be shown"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _class_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"

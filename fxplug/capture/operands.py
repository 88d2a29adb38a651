"""Which traced values a comparison by identity may be of, when the function that makes it is called.

What a function is called with says more than its bytecode: ``self.a is self.b`` is about what the object holds then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from fxplug.capture.arguments import iterate_parts
from fxplug.capture.compared import follow, is_unknown, look_up_global
from fxplug.capture.containers import attributes_and_slots, is_object
from fxplug.capture.identity import ELEMENT_OF, assigned_later
from fxplug.capture.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import CodeType

    from fxplug.capture.identity import Comparison

__all__ = ["Call", "candidates"]

_MOST_LOOKED_AT = 200
"""Objects that are looked at for values that a program compares; what lies further off is compared by other code."""


class Call(NamedTuple):
    """A call of a function that compares by identity."""

    code: CodeType
    """Its own code."""
    given: Mapping[str, Any]
    """What its variables hold when it begins."""
    namespace: Mapping[str, Any]
    """Its globals."""


def candidates(tracer: Any, call: Call, comparison: Comparison) -> list[tuple[Proxy, Any]]:
    """Return the pairs of traced values of which a comparison may be; those of one value with itself are left out.

    The second of a pair may be a tensor that no proxy stands for.

    Args:
        tracer: Who traces.
        call: Of the function that makes the comparison, or in which a function is made that makes it.
        comparison: Of two values.
    """
    sides = [_values_at(tracer, call, path) for path in (comparison.one, comparison.other)]
    if [] in sides:
        return []  # No traced value is on that side.
    if None in sides:
        everything = _all_values(tracer, call)
        sides = [everything if side is None else side for side in sides]
    pairs: dict[frozenset[int], tuple[Proxy, Any]] = {}
    for one in sides[0] or ():
        for other in sides[1] or ():
            first, second = (other, one) if isinstance(one, torch.Tensor) else (one, other)
            if one is not other and not isinstance(first, torch.Tensor):
                pairs[frozenset((id(one), id(other)))] = first, second
    return list(pairs.values())


def _values_at(tracer: Any, call: Call, path: tuple[str, ...]) -> list[Any] | None:
    """Return the traced values to which a path leads; None where that is not known when the function is called."""
    if not path:
        return None
    if not path[0]:
        value, names = look_up_global(call.namespace, path[1]), path[2:]
    elif path[0] not in call.given or path[0] in assigned_later(call.code, -1):
        return None
    else:
        value, names = call.given[path[0]], path[1:]
    owner: Any = None
    for place, name in enumerate(names):
        if _is_ours(value, tracer):
            return None  # A part of a traced value is one that the trace makes then.
        if name == ELEMENT_OF:
            return None if is_unknown(value) else _held_in(tracer, value)
        owner, value = value, follow(value, names[place : place + 1])
    if isinstance(owner, nn.Module) and isinstance(value, torch.Tensor):
        return []  # What a module holds is looked at where it is read.
    if is_unknown(value):
        return None
    return [value] if _is_ours(value, tracer) or isinstance(value, torch.Tensor) else []


def _is_ours(value: Any, tracer: Any) -> bool:
    return issubclass(type(value), Proxy) and value.tracer is tracer


def _all_values(tracer: Any, call: Call) -> list[Any]:
    """Return the traced values that a function is called with, and those that these objects hold."""
    return _held_in(tracer, list(call.given.values()))


def _held_in(tracer: Any, value: Any) -> list[Any]:
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    waiting: list[Any] = [value]
    while waiting and len(seen) < _MOST_LOOKED_AT:
        for part in iterate_parts(waiting.pop()):
            if _is_ours(part, tracer) or isinstance(part, torch.Tensor):
                found[id(part)] = part
            elif id(part) not in seen and _may_hold_values(part):
                seen[id(part)] = part
                waiting += attributes_and_slots(part).values()
    return list(found.values())


def _may_hold_values(value: Any) -> bool:
    return not isinstance(value, nn.Module) and is_object(value)

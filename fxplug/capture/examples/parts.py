"""What a nested value holds."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from functools import partial
from itertools import islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

import torch

from fxplug.capture.attributes import attribute_of
from fxplug.capture.caches import CACHED, results_of
from fxplug.capture.containers import copy_of, is_object
from fxplug.capture.examples.numbers import FloatProxy, IntProxy, NumberProxy
from fxplug.capture.sources import passes_calls_on
from fxplug.ir import Node

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["is_in_reach", "nodes_in", "numbers_in", "place_in_reach", "tensors_in"]


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors in a value."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, (tuple, list)):
            stack.extend(cast("Iterable[Any]", part))
        elif isinstance(part, Mapping):
            stack.extend(cast("Mapping[Any, Any]", part).values())


def numbers_in(value: Any) -> Iterable[NumberProxy]:
    """Yield the numbers in a value that hang on the inputs."""
    stack = [value]
    while stack:
        part = stack.pop()
        if type(part) in {IntProxy, FloatProxy}:
            yield part
        elif isinstance(part, (tuple, list)):
            stack.extend(cast("Iterable[Any]", part))
        elif isinstance(part, dict):
            stack.extend(dict.values(cast("dict[Any, Any]", part)))


def nodes_in(value: Any) -> set[Node]:
    """Return the nodes in an argument."""
    found: set[Node] = set()
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, Node):
            found.add(part)
        elif isinstance(part, (tuple, list)):
            stack.extend(cast("Iterable[Any]", part))
    return found


def is_in_reach(tensor: Any) -> bool:
    """Return whether a tensor, or another object, is from before the trace, where the running functions can find it.

    That is among their globals, in closures, defaults and arguments of theirs that are no tensors, and what these hold.
    """
    return place_in_reach(tensor) is not None


def place_in_reach(tensor: Any) -> str | None:
    """Return how messages call what holds a tensor, or another object, that is in reach; None where it is not."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    seen: set[int] = set()
    while frame is not None:
        if not passes_calls_on(frame.f_code.co_filename):
            code = frame.f_code
            given = {name: frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]}
            held = {name: frame.f_locals.get(name) for name in code.co_freevars}
            # A parameter may have been given another value by now.
            held |= {name: value for name, value in given.items() if not isinstance(value, torch.Tensor)}
            name = _holder_among(held, tensor, seen, _NEAR)
            if name is not None:
                return f"{name!r} in {code.co_name}"
            name = _holder_among(frame.f_globals, tensor, seen, _FAR)
            if name is not None:
                return f"the global {name!r}"
        frame = frame.f_back
    return None


def _holder_among(named: dict[str, Any], tensor: Any, seen: set[int], steps: int) -> str | None:
    """Return the name of the first value that is a tensor, or holds it."""
    return next((name for name, value in list(named.items()) if _holds([value], tensor, seen, steps)), None)


_NEAR, _FAR = 4, 3
"""How many steps are taken from what a function was given, and from its globals."""
_MOST = 10_000


def _holds(values: list[Any], tensor: Any, seen: set[int], steps: int) -> bool:
    for value in values:
        if value is tensor:
            return True
        if steps == 0 or id(value) in seen or isinstance(value, (str, bytes, int, float, ModuleType)):
            continue
        seen.add(id(value))
        if _holds(_inside(value), tensor, seen, steps - 1):
            return True
    return False


def _inside(value: Any) -> list[Any]:
    """Return what a container, function or object holds."""
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(islice(cast("list[Any]", value), _MOST))
    if isinstance(value, dict):
        return list(dict.values(cast("dict[Any, Any]", value)))[:_MOST]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        given = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        return [*cells, *given, *vars(value).values()]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, CACHED):
        return results_of(value)
    if isinstance(value, type):
        return [part for name, part in vars(value).items() if not name.startswith("__")]
    if is_object(value):  # Its attributes may be in slots.
        return [part for _, part in copy_of(value)]
    return list(attribute_of(value, "__dict__", {}).values())

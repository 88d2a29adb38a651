"""Which objects lead to the same code, so that what a program may call through them is looked for once."""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from fxplug.capture.containers import OWN_TABLES, PLAIN
from fxplug.semantics.internals import hooks_around_forward, modules_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Likenesses"]

_CONTAINERS = (dict, list, tuple, set, frozenset)
_MOST = 100
"""Containers of more elements are all alike."""
_DEEPEST = 20
_LIMIT = 20_000
"""How deep objects in objects are told apart, and how many; modules are all."""
_FOREIGN = ("builtins", "fxplug", "numpy", "torch")


class Likenesses:
    """Numbers objects: two have the same number if code finds the same functions through each of them.

    That is so for two of one class that hold objects which are alike in turn, under the same names.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._known: dict[int, tuple[Any, int]] = {}  # With the objects, so that no two have the same id.

    def of(self, value: Any, steps: int = _DEEPEST) -> int:
        """Return the number of an object."""
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        self._known[id(value)] = (value, 0)  # Stands for an object in what it holds itself.
        key = (type(value), *self._parts(value, steps))
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._known[id(value)] = (value, number)
        return number

    def forget(self) -> None:
        """Look at all objects again, since one of them holds something else."""
        self._known.clear()

    def _parts(self, value: Any, steps: int) -> Iterable[Any]:
        if isinstance(value, nn.Module):
            yield from self._parts_of_module(value)
        elif isinstance(value, FunctionType):
            yield id(value)
        elif isinstance(value, MethodType):
            yield id(value.__func__)
            if steps:
                yield self.of(value.__self__, steps - 1)
        elif steps and len(self._known) < _LIMIT:
            yield from self._held_by(value, steps - 1)

    def _parts_of_module(self, module: nn.Module) -> Iterable[Any]:
        for name, child in modules_of(module).items():
            yield name
            yield None if child is None else self.of(child)
        yield from map(id, hooks_around_forward(module))
        kind = type(module)
        if kind is nn.Module or not kind.__module__.startswith("torch.nn.modules."):
            yield from self._attributes(vars(module), _DEEPEST - 1)
        elif "forward" in vars(module):
            yield id(vars(module)["forward"])

    def _held_by(self, value: Any, steps: int) -> Iterable[Any]:
        if isinstance(value, partial):
            yield from self._elements((value.func, *value.args, *value.keywords.values()), steps)
        elif isinstance(value, _CONTAINERS):
            held = cast("dict[Any, Any]", value).values() if isinstance(value, dict) else value
            if len(held) <= _MOST:
                yield from self._elements(held, steps)
        elif not type(value).__module__.startswith(_FOREIGN) and not isinstance(value, type):
            yield from self._attributes(getattr(value, "__dict__", {}), steps)
        elif callable(value):
            yield id(value)

    def _elements(self, values: Iterable[Any], steps: int) -> Iterable[Any]:
        return [type(value) if type(value) in PLAIN else self.of(value, steps) for value in values]

    def _attributes(self, own: dict[str, Any], steps: int) -> Iterable[Any]:
        for name, value in own.items():
            if type(value) not in PLAIN and name not in OWN_TABLES:
                yield name
                yield self.of(value, steps)

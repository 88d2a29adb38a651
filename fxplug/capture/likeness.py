"""Which objects lead to the same code, so that what a program may call through them is looked for once."""

from __future__ import annotations

from collections import deque
from functools import partial
from types import FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.capture.attributes import can_be_asked
from fxplug.capture.caches import CACHED
from fxplug.capture.containers import (
    OWN_TABLES,
    PLAIN,
    attributes_and_slots,
    elements_of,
    is_object,
    is_of_library,
)
from fxplug.semantics.internals import hooks_around_forward, modules_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Likenesses"]

_CONTAINERS = (dict, list, tuple, set, frozenset, deque, MappingProxyType)
_LEADING = frozenset({*_CONTAINERS, FunctionType, MethodType, partial, CACHED})
_MOST = 100
"""Containers of more elements are all alike."""
_DEEPEST = 20
_LIMIT = 20_000
"""How deep objects in objects are told apart, and how many; modules are all."""


def _is_layer(kind: type) -> bool:
    """Return whether a class is one of torch's modules, whose attributes are settings."""
    return (
        issubclass(kind, nn.Module)
        and kind is not nn.Module
        and str(kind.__module__).startswith("torch.nn.modules.")
    )


class Likenesses:
    """Numbers objects: two have the same number if code finds the same functions through each of them.

    That is so for two of one class that hold objects which are alike in turn, under the same names.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._known: dict[int, tuple[Any, int]] = {}  # With the objects, so that no two have the same id.
        self._layers: dict[type, int] = {}
        """Class -> the number of its instances that have nothing of their own that leads to code; 0 for others."""
        self.classes: list[tuple[type, Any]] = []
        """The classes that were met, each with the first object of it or, where it is held itself, with None. Whoever
        has looked at them clears it."""
        self.held: list[tuple[str, Any]] = []
        """The same for functions, and for containers, that objects hold under names."""

    def of(self, value: Any, steps: int = _DEEPEST) -> int:
        """Return the number of an object."""
        kind = type(value)
        number = self._layers.get(kind)
        if number is None:
            number = self._layers[kind] = self._number_of((kind,)) if _is_layer(kind) else 0
            if not number:
                self.classes.append((kind, value))
        if number:
            held = value.__dict__
            own = held.get
            # A model has hundreds of them.
            if "forward" not in held and not (
                own("_modules") or own("_forward_pre_hooks") or own("_forward_hooks")
            ):
                return number
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        self._known[id(value)] = (value, 0)  # Stands for an object in what it holds itself.
        number = self._number_of((kind, *self._parts(value, steps)))
        self._known[id(value)] = (value, number)
        return number

    def forget(self) -> None:
        """Look at all objects again, since one of them holds something else."""
        self._known.clear()

    def _number_of(self, key: tuple[Any, ...]) -> int:
        return self._numbers.setdefault(key, len(self._numbers) + 1)

    def _parts(self, value: Any, steps: int) -> list[Any]:
        if not can_be_asked(value):
            return []
        if isinstance(value, nn.Module):
            return self._parts_of_module(value)
        if isinstance(value, FunctionType):
            return [id(value)]
        if isinstance(value, MethodType):
            function = id(value.__func__)
            return [function, self.of(value.__self__, steps - 1)] if steps else [function]
        return self._held_by(value, steps - 1) if steps and len(self._known) < _LIMIT else []

    def _parts_of_module(self, module: nn.Module) -> list[Any]:
        parts: list[Any] = []
        of = self.of
        for name, child in modules_of(module).items():
            parts += (name, None if child is None else of(child))
        parts += map(id, hooks_around_forward(module))
        if not _is_layer(type(module)):
            parts += self._attributes(vars(module), _DEEPEST - 1)
        elif "forward" in vars(module):
            parts.append(id(vars(module)["forward"]))
        return parts

    def _held_by(self, value: Any, steps: int) -> list[Any]:
        if isinstance(value, partial):
            return self._elements((value.func, *value.args, *value.keywords.values()), steps)
        if isinstance(value, _CONTAINERS):
            held = elements_of(value)
            return self._elements(held, steps) if len(held) <= _MOST else []
        if not is_of_library(type(value).__module__) and not isinstance(value, type):
            return self._attributes(attributes_and_slots(value), steps)
        if isinstance(value, type):
            self.classes.append((value, None))
        return [id(value)] if callable(value) else []

    def _elements(self, values: Iterable[Any], steps: int) -> list[Any]:
        return [type(value) if type(value) in PLAIN else self.of(value, steps) for value in values]

    def _attributes(self, own: Mapping[str, Any], steps: int) -> list[Any]:
        parts: list[Any] = []
        for name, value in own.items():
            kind = type(value)
            if kind not in PLAIN and name not in OWN_TABLES:
                parts += (name, self.of(value, steps))
                if kind in _LEADING or is_object(value):
                    self.held.append((name, value))
        return parts

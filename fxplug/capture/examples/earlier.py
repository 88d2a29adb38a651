"""The tensors and modules that a program finds when it begins: they are none that it makes itself."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from fxplug.capture.attributes import can_be_asked
from fxplug.semantics.internals import is_real_tensor, storage_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

__all__ = ["EarlierValues"]

_MOST = 1000
"""Containers of more elements are not looked into."""
_NOTHING_IN = frozenset({int, float, bool, str, bytes, complex, type(None)})
"""Classes of what fills tables and lists."""
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, deque)
_ScriptModule: type = torch.jit.ScriptModule


def _may_hold(value: Any) -> bool:
    return type(value) not in _NOTHING_IN and can_be_asked(value)


class EarlierValues:
    """The tensors and modules in what was noted of a program before it began, and what these modules hold.

    Args:
        values: What was noted; what containers and objects hold, as values of their own.
        below: The ids of the modules of the root: their tensors have paths, and what else they hold was noted.
    """

    def __init__(self, values: Iterable[Any] = (), below: Container[int] = ()) -> None:
        found = [value for value in values if _may_hold(value)]
        waiting: list[Any] = [value for value in found if isinstance(value, nn.Module)]
        seen: set[int] = set()
        while waiting:
            value = waiting.pop()
            if id(value) not in seen:
                seen.add(id(value))
                parts = [part for part in _parts_of(value, below) if _may_hold(part)]
                waiting += parts
                found += parts
        self._modules = {id(value): value for value in found if isinstance(value, nn.Module)}
        self._tensors = {id(value): (value, storage_of(value)) for value in found if is_real_tensor(value)}

    def __contains__(self, value: torch.Tensor | nn.Module) -> bool:
        return id(value) in (self._modules if isinstance(value, nn.Module) else self._tensors)

    def tensors(self) -> Iterable[torch.Tensor]:
        """Return the tensors."""
        return [tensor for tensor, _ in self._tensors.values()]

    def has_other_memory(self, tensor: torch.Tensor) -> bool:
        """Return whether one of these tensors has been given the memory of another one (``tensor.data = ...``)."""
        return self._tensors[id(tensor)][1] != storage_of(tensor)


def _parts_of(value: Any, below: Container[int]) -> Iterable[Any]:
    """Return what a module that is none of the root, or a container in one, holds."""
    if isinstance(value, nn.Module):
        return () if id(value) in below or isinstance(value, _ScriptModule) else vars(value).values()
    parts: list[Any] = []
    if isinstance(value, dict):
        parts += dict.values(cast("dict[Any, Any]", value))
    for kind in _SEQUENCES:
        if isinstance(value, kind):  # One of a class of its own is read as Python's own class reads it.
            parts += kind.__iter__(value)
    return parts if len(parts) <= _MOST else ()

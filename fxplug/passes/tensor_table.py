"""The tensors of a module by their paths, as they are at one moment."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from torch.nn.parameter import is_lazy

from fxplug.semantics.internals import buffers_of, parameters_of, persists

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TensorTable", "shape_of"]


_PLAIN = frozenset({bool, int, float, str, tuple, list, dict, set, OrderedDict, type(None)})


class TensorTable:
    """What a module holds now; shared tensors stand under each of their paths.

    Args:
        module: Its tensors are kept alive as long as the table is.
    """

    def __init__(self, module: nn.Module) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        """Path -> parameter, buffer, or tensor that is a plain attribute."""
        self.parameters: dict[str, torch.Tensor] = {}
        """Path -> parameter."""
        self.stored: dict[str, None] = {}
        """The paths of those that the state dict has, in order."""
        for prefix, part in module.named_modules(remove_duplicate=False):
            dotted = f"{prefix}." if prefix else ""
            for name, value in parameters_of(part).items():
                if value is not None:
                    path = dotted + name
                    self.tensors[path] = self.parameters[path] = value
                    self.stored[path] = None
            for name, value in buffers_of(part).items():
                if value is not None:
                    self.tensors[dotted + name] = value
                    if persists(part, name):
                        self.stored[dotted + name] = None
            for name, value in vars(part).items():
                # Nearly all attributes are plain; asking whether a class is one of tensors takes ten times as long.
                if type(value) not in _PLAIN and isinstance(value, torch.Tensor):
                    self.tensors[dotted + name] = value


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor; none for one that has no size yet."""
    return () if is_lazy(tensor) else tuple(tensor.shape)

"""Copies of modules in which other tensors stand for theirs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["state_tensors", "with_other_tensors"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def state_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield path and value of every parameter and buffer, and of every tensor that is a plain attribute."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                yield (f"{prefix}.{name}" if prefix else name), value


def with_other_tensors(module: ModuleT, convert: Callable[[torch.Tensor], Any]) -> ModuleT:
    """Return a copy of a module that holds what `convert` makes of its tensors; no values are copied.

    Args:
        module: Not changed.
        convert: Called once for each tensor that the module or one below it holds.
    """
    # Also what a hook computed from parameters, as weight_norm does, which cannot be copied.
    tensors = {id(tensor): tensor for _, tensor in state_tensors(module)}
    return copy.deepcopy(module, {key: convert(tensor) for key, tensor in tensors.items()})

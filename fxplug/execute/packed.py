"""Weights in the order in which oneDNN reads them: one copy for each module, as long as it holds for its weight."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from fxplug.semantics.internals import version_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["has_no_gaps", "packed_weight"]


class _Packed(NamedTuple):
    """A weight as oneDNN reads it, and what tells whether it is still that of the module."""

    tensor: torch.Tensor
    weight: weakref.ref[torch.Tensor]
    version: int
    place: tuple[int, torch.Size, tuple[int, ...]]
    sample: torch.Tensor


_SAMPLED = 64
_packed: weakref.WeakKeyDictionary[nn.Module, _Packed] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def _sample(weight: torch.Tensor) -> torch.Tensor:
    """Return some elements of a weight without gaps: writes to its ``.data`` are not counted by torch."""
    count = weight.numel()
    taken = min(count, _SAMPLED)
    return weight.as_strided((taken,), ((count - 1) // max(1, taken - 1) or 1,))


def packed_weight(
    module: nn.Module, weight: torch.Tensor, pack: Callable[[], torch.Tensor]
) -> torch.Tensor | None:
    """Return the weight of a module as oneDNN reads it; None where changes of it would go unnoticed."""
    version = version_of(weight)
    if version is None:
        return None
    place = (weight.data_ptr(), weight.shape, weight.stride())
    known = _packed.get(module)
    if (
        known is not None
        and known.weight() is weight
        and known.version == version
        and known.place == place
        and torch.equal(known.sample, _sample(weight))
    ):
        return known.tensor
    sample = _sample(weight).clone()
    tensor = pack()
    if type(tensor) is not torch.Tensor:
        return None  # Somebody listens to operators and gives other values.
    with _lock:
        _packed[module] = _Packed(tensor, weakref.ref(weight), version, place, sample)
    return tensor


def has_no_gaps(weight: torch.Tensor) -> bool:
    """Return whether the elements of a weight fill the memory between the first and the last of them."""
    return weight.numel() > 0 and (
        weight.is_contiguous()
        or (
            weight.dim() in _CHANNELS_LAST
            and weight.is_contiguous(memory_format=_CHANNELS_LAST[weight.dim()])
        )
    )


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

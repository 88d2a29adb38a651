"""What is known of a tensor that nobody has computed: its sizes, how it lies in memory, and whose memory that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

__all__ = [
    "ABSTRACT",
    "AbstractFlags",
    "AbstractIndices",
    "AbstractTensor",
    "Memory",
    "Order",
    "UnknownShapeError",
    "abstract",
    "is_in_order",
    "sizes_of_weight",
]

Memory = Literal["own", "given", "weight", "view", "part"]
"""Whose memory a tensor has: its own, so that no weight and no input is changed where it is written to; that of an
input or a buffer, or of a weight, which it is itself; or that of another value. A part is a view to which torch may
refuse to write."""
Order = Literal["unknown", "dense", "ordered", "contiguous"]
"""How a tensor lies in memory: whether its strides are known to fall from one dimension to the next, those of size 1
left out, and whether there is nothing between its elements. Where there is nothing between them but the strides of
dimensions of size 1 may be anything (``"dense"``), torch may take it for one whose channels lie last."""


class UnknownShapeError(Exception):
    """What a call returns, or whether it raises an error, cannot be told from what is known of its operands."""


@dataclass(slots=True, eq=False)
class AbstractTensor:
    """A dense tensor on the CPU, of a dtype that all tensors of a program have."""

    sizes: tuple[int, ...]
    """At least 1, each."""
    order: Order
    memory: Memory
    base: AbstractTensor | None = None
    """The value of which it is a view, if that has its own memory."""
    requires_gradient: bool = False
    """Whether it was not computed and requires a gradient: torch does not write to it then."""
    is_parted: bool = False
    """Whether parts of it were handed out, which torch does not compute with when it has been written to."""


@dataclass(slots=True, eq=False)
class AbstractFlags:
    """What a comparison of such tensors gives: a tensor of flags."""

    sizes: tuple[int, ...]


@dataclass(slots=True, eq=False)
class AbstractIndices:
    """What says where the largest of such values are, and other integers of which no more is known."""

    sizes: tuple[int, ...]


ABSTRACT = frozenset({AbstractFlags, AbstractIndices, AbstractTensor})
_PLAIN = frozenset({torch.Tensor, nn.Parameter})


def sizes_of_weight(tensor: Any, dtype: torch.dtype) -> torch.Size:
    """Return the sizes of a tensor that is as an `AbstractTensor` says.

    Args:
        tensor: A weight or an input.
        dtype: What all tensors of the program have.

    Raises:
        UnknownShapeError: It is another one, or no tensor.
    """
    if (
        tensor.__class__ not in _PLAIN
        or tensor.dtype is not dtype
        or not tensor.is_cpu
        or tensor.layout is not torch.strided
        or tensor.is_inference()
        or 0 in tensor.shape
    ):
        raise UnknownShapeError
    return tensor.shape


def is_in_order(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies in memory in the order of its dimensions, and in no other one.

    Of dimensions of size 1 the strides count, too: torch tells by them in which memory format results are to be.
    """
    if not tensor.is_contiguous():
        return False
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= size
    return True


def abstract(tensor: Any, dtype: torch.dtype, memory: Memory = "given") -> AbstractTensor:
    """Return what is known of a tensor that there is.

    Args:
        tensor: A weight or an input, or another one.
        dtype: What all tensors of the program have.
        memory: Whose memory it has, if it is no weight.

    Raises:
        UnknownShapeError: It is none that an `AbstractTensor` may stand for.
    """
    sizes = sizes_of_weight(tensor, dtype)
    if tensor.is_neg():
        raise UnknownShapeError
    if tensor.__class__ is nn.Parameter:
        memory = "weight"
    order = "contiguous" if is_in_order(tensor) else "unknown"
    return AbstractTensor(sizes, order, memory, requires_gradient=tensor.requires_grad)

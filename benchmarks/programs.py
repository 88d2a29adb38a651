"""The programs that are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

from examples.resnet50 import ResNet50

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["Decoder", "arithmetic", "count_text", "long_function", "resnet50"]

_CALLS_PER_STEP = 4


def long_function(count: int) -> Callable[[Tensor], Tensor]:
    """Return a function that makes `count` calls, each on the result of the one before.

    Operators, a function of torch and a method take turns.

    Args:
        count: A multiple of 4.
    """
    steps = count // _CALLS_PER_STEP

    def run(x: Tensor) -> Tensor:
        for _ in range(steps):
            x = torch.relu(x + 1)
            x = x.neg() * 0.5
        return x

    return run


def arithmetic(count: int) -> Callable[[int], int]:
    """Return a function that makes `count` calls which cost next to nothing by themselves, on a plain number.

    Args:
        count: A multiple of 4.
    """
    steps = count // _CALLS_PER_STEP

    def run(x: int) -> int:
        for _ in range(steps):
            x = (x + 1).conjugate()
            x = -x * 1
        return x

    return run


def resnet50() -> ResNet50:
    """Return ResNet-50 in eval mode; what its weights are does not matter to a trace."""
    return ResNet50().eval()


class DecoderBlock(nn.Module):
    """Attention to the words before, and two layers of its own; small, so that what surrounds its work is seen."""

    _HEADS = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.ones(64, 64).tril())

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        batch, length, width = x.shape
        query, key, value = self.projections(self.before(x)).chunk(3, dim=-1)
        query = query.view(batch, length, self._HEADS, -1).transpose(1, 2)
        key = key.view(batch, length, self._HEADS, -1).transpose(1, 2)
        value = value.view(batch, length, self._HEADS, -1).transpose(1, 2)
        scores = (query @ key.transpose(-2, -1)) * key.size(-1) ** -0.5
        scores = scores.masked_fill(self.mask[:length, :length] == 0, -1e9)
        found = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.back(found)
        return x + self.down(F.gelu(self.up(self.between(x))))


class AskingForSize(DecoderBlock):
    """One that asks for a size, as many do to say what is wrong with an input."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        return super().forward(x) if x.size(1) <= len(self.mask) else x


class AskingForDtype(DecoderBlock):
    """One that asks for a dtype, as many do that may run in half precision."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        return super().forward(x) if x.dtype == self.up.weight.dtype else x


class AskingForSteps(DecoderBlock):
    """One that asks how a tensor lies in memory."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        return super().forward(x) if x.is_contiguous() else x


class AskingForElements(DecoderBlock):
    """One that looks at the elements, as many do that look out for what is no number."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        return super().forward(x) if (x.abs() < _LARGE).all() else x


class AskingForClass(DecoderBlock):
    """One that asks of which class what it is given is."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        return super().forward(x) if type(x) is torch.Tensor else x


class AskingForIdentity(DecoderBlock):
    """One that asks whether two values are one."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        y = super().forward(x)
        return y if y is not x else x


class WithoutGradients(DecoderBlock):
    """One that turns gradients off."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        with torch.no_grad():
            return super().forward(x)


class CatchingErrors(DecoderBlock):
    """One that would catch an error."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        try:
            return super().forward(x)
        except ValueError:
            return x


class MakingFunction(DecoderBlock):
    """One that makes a function, which knows the input of the block, and calls it."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""

        def with_former(found: Tensor) -> Tensor:
            return found + x

        return with_former(super().forward(x))


class UsingObjects(DecoderBlock):
    """One that keeps values in an object of a class of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        return _Step(x, super().forward(x)).found


class _Step:
    """What goes into a block, and what it gives."""

    def __init__(self, given: Tensor, found: Tensor) -> None:
        self.given, self.found = given, found


class Sorting(DecoderBlock):
    """One that sorts numbers, which a capture has to listen to: what is sorted may be values, and how by anything."""

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        return super().forward(x.mean(dim=sorted([1, 0])[1:], keepdim=True) + x)


_LARGE = 1e4
_BLOCKS = {
    "": DecoderBlock,
    "class": AskingForClass,
    "dtype": AskingForDtype,
    "context": WithoutGradients,
    "elements": AskingForElements,
    "errors": CatchingErrors,
    "function": MakingFunction,
    "identity": AskingForIdentity,
    "object": UsingObjects,
    "size": AskingForSize,
    "sorted": Sorting,
    "steps": AskingForSteps,
}


class Decoder(nn.Module):
    """A decoder in eval mode: a program that calls methods of values, indexes them and unpacks their sizes.

    Args:
        blocks: How many it has.
        asks: What each of them asks for: a ``"size"``, a ``"dtype"``, ``"steps"`` in memory, ``"elements"``, a
            ``"class"``, or ``"identity"``; or that it enters a ``"context"``, catches ``"errors"``,
            makes a ``"function"``, or an ``"object"``, or calls ``"sorted"``.
            By default nothing.
    """

    def __init__(self, blocks: int, *, asks: str = "") -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_BLOCKS[asks](32) for _ in range(blocks)])
        self.norm = nn.LayerNorm(32)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, words, 32), as given."""
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def count_text(count: int) -> str:
    """Return a number of nodes as tables name it, e.g. ``"10k nodes"``."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count % size == 0:
            return f"{count // size}{letter} nodes"
    return f"{count} nodes"

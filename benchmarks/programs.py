"""The programs that are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from examples.resnet50 import ResNet50

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["arithmetic", "count_text", "long_function", "resnet50"]

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


def count_text(count: int) -> str:
    """Return a number of nodes as tables name it, e.g. ``"10k nodes"``."""
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count % size == 0:
            return f"{count // size}{letter} nodes"
    return f"{count} nodes"

"""Inputs that many programs share. Every call makes new ones."""

from __future__ import annotations

from typing import Any

import torch

Inputs = tuple[Any, ...]


def ramp(*sizes: int, low: float = -1.0, high: float = 1.0, grad: bool = False) -> torch.Tensor:
    """Return numbers that all differ, in rows of `sizes`."""
    count = 1
    for size in sizes:
        count *= size
    return torch.linspace(low, high, count).reshape(sizes).clone().requires_grad_(grad)


def one() -> Inputs:
    return (ramp(2, 3),)


def larger() -> Inputs:
    """Another batch size than that of `one`."""
    return (ramp(5, 3, low=-2.0),)


def positive() -> Inputs:
    """The same shape as `one`, with another sum."""
    return (ramp(2, 3, low=1.0, high=2.0),)


def tracked() -> Inputs:
    """Like `one`, with gradients."""
    return (ramp(2, 3, grad=True),)


def tracked_larger() -> Inputs:
    return (ramp(5, 3, low=-2.0, grad=True),)


def vector() -> Inputs:
    return (ramp(4),)


def longer_vector() -> Inputs:
    return (ramp(6, low=-2.0),)


def two() -> Inputs:
    return (ramp(2, 3), ramp(2, 3, low=2.0, high=3.0))


def two_larger() -> Inputs:
    return (ramp(5, 3), ramp(5, 3, low=2.0, high=3.0))


def cube() -> Inputs:
    return (ramp(2, 3, 4),)


def larger_cube() -> Inputs:
    return (ramp(5, 3, 4),)


def image() -> Inputs:
    return (ramp(2, 3, 8, 8),)


def larger_image() -> Inputs:
    return (ramp(1, 3, 12, 10),)


def tokens() -> Inputs:
    return (torch.tensor([[1, 2, 0, 4], [3, 0, 2, 2]]),)


def nothing() -> Inputs:
    return ()

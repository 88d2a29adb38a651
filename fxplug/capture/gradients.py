"""Gradients that weights had before a program ran are as they were when a trace ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fxplug.semantics.internals import with_data

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CHANGING_GRADIENTS", "Gradients"]

CHANGING_GRADIENTS = frozenset({"backward", "grad", "zero_grad"})
"""Names in code that may give weights other gradients."""


class Gradients:
    """Keeps the gradient of each weight, and a copy, since gradients are added in place.

    Args:
        weights: Whose gradients are kept.
    """

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]] = []
        self._known: set[int] = set()
        self.add(weights)

    def add(self, weights: Iterable[torch.Tensor]) -> None:
        """Keep the gradients of more weights."""
        with torch.no_grad(), with_data():
            for weight in weights:
                if id(weight) not in self._known:
                    grad = weight.grad
                    self._known.add(id(weight))
                    self._kept.append((weight, grad, None if grad is None else grad.detach().clone()))

    def restore(self) -> None:
        """Put them back; this can be done again."""
        with torch.no_grad():
            for weight, grad, value in self._kept:
                if grad is not None and value is not None and not grad.is_meta:
                    grad.copy_(value)
                if weight.grad is not grad:
                    weight.grad = grad

"""Gradients and hooks that weights had before a program ran are as they were when a trace ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fxplug.semantics.internals import hook_tables_of, with_data

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CHANGING_GRADIENTS", "HOOKING", "Gradients", "WeightHooks"]

CHANGING_GRADIENTS = frozenset({"backward", "grad", "zero_grad"})
"""Names in code that may give weights other gradients."""
HOOKING = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
"""Methods of tensors that let torch call a function with a gradient."""


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


class WeightHooks:
    """Keeps the hooks of weights: a program may find a weight itself, where a trace has nothing in the place of it.

    Args:
        weights: Each with its path.
    """

    def __init__(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._kept: list[tuple[str, torch.Tensor, list[dict[Any, Any]]]] = [
            (path, weight, [dict(table or {}) for table in hook_tables_of(weight)])
            for path, weight in weights
        ]

    def restore(self) -> str | None:
        """Put them back, and return the path of a weight that had other ones; None where there is none."""
        changed: str | None = None
        for path, weight, before in self._kept:
            for table, held in zip(hook_tables_of(weight), before, strict=True):
                if table is not None and [*table] != [*held]:
                    changed = changed or path
                    table.clear()
                    table.update(held)
        return changed

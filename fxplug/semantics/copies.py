"""Copying the tensors in values whose class a program does not tell."""

from __future__ import annotations

from typing import Any

import torch

from fxplug.ir import PURE, effects
from fxplug.semantics.internals import flatten_tree, unflatten_tree

__all__ = ["clone_tensors"]


def clone_tensors(value: Any) -> Any:
    """Return a nested value with copies of the tensors in it; everything else is what it is."""
    leaves, structure = flatten_tree(value)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return value
    copies = [torch.clone(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return unflatten_tree(copies, structure)


effects.register_target(clone_tensors, PURE)

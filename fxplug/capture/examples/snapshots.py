"""Tensors that existed before a program was captured are as they were when it ends."""

from __future__ import annotations

from typing import Any

import torch

from fxplug.semantics.internals import storage_of, with_data
from fxplug.semantics.storages import is_elsewhere, take_off_history

__all__ = ["Snapshots"]


class Snapshots:
    """Keeps a copy of each tensor from before the program that the program is about to write to."""

    def __init__(self) -> None:
        self._new: list[torch.Tensor] = []
        """Tensors whose memory was not looked at yet; most programs write to none, and then nobody has to."""
        self._existing: dict[Any, dict[int, torch.Tensor]] = {}
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool, bool]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        """Hear of a tensor from before the program."""
        self._new.append(tensor)

    def has_seen(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is one from before the program."""
        known = (*self._new, *(one for held in self._existing.values() for one in held.values()))
        return any(one is tensor for one in known)

    def before_writes(self) -> None:
        """Hear that something is about to be written: from then on a tensor may have other memory than it had."""
        for tensor in self._new:
            self._existing.setdefault(storage_of(tensor), {})[id(tensor)] = tensor
        self._new.clear()

    def before_write(self, tensor: torch.Tensor) -> None:
        """Hear that a tensor is about to be written to; with it, whatever shares its memory."""
        self.before_writes()
        for existing in self._existing.get(storage_of(tensor), {}).values():
            if id(existing) not in self._saved:
                with torch.no_grad(), with_data():
                    alias = existing.detach()
                    states = existing.requires_grad, existing.is_leaf
                    self._saved[id(existing)] = (existing, alias, alias.clone(), *states)

    def shares_memory(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor that is about to be written to shares the memory of one from before the program."""
        if self._new:
            self.before_writes()
        return storage_of(tensor) in self._existing

    def restore(self) -> None:
        """Put back what was written to."""
        if not self._saved:
            return
        with torch.no_grad():
            # The last one first: what was saved later may lie in the same memory, and hold what was written before.
            for tensor, alias, values, requires_grad, was_leaf in reversed(self._saved.values()):
                alias.copy_(values)
                if is_elsewhere(tensor, alias):
                    tensor.data = alias
                if was_leaf:
                    take_off_history(tensor)
                if tensor.requires_grad != requires_grad and tensor.is_leaf:
                    tensor.requires_grad_(requires_grad)
        self._saved.clear()

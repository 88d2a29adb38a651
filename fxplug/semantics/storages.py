"""Keeping what tensors hold before it is written over, at a cost that grows with what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug.semantics.internals import TorchDispatchMode, flatten_tree, storage_of
from fxplug.semantics.schemas import written_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["StorageJournal"]


class _Record(NamedTuple):
    """One tensor as it was."""

    tensor: torch.Tensor
    alias: torch.Tensor
    """Has its memory, shape and strides, also when the tensor has got others (``tensor.data = ...``)."""
    requires_grad: bool
    gradient: torch.Tensor | None


class StorageJournal(TorchDispatchMode):
    """Hears of operators that write, and copies the memory of a watched tensor before the first write to it.

    While it is entered, in the thread that has entered it. Writes through views, ``tensor.data``, ``out=`` and
    ``torch.no_grad()`` are operators like any other. Those through NumPy, or another library that has the address of
    the memory, are not heard of, and neither are those of other threads.

    Args:
        tensors: Those that are watched.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        known = {id(tensor): tensor for tensor in tensors}
        with torch.no_grad():
            self._records = [
                _Record(
                    tensor, tensor.detach(), tensor.requires_grad, tensor.grad if tensor.is_leaf else None
                )
                for tensor in known.values()
            ]
        self._watched = {storage_of(record.alias): record.alias for record in self._records}
        self._watched.pop(None, None)
        self._saved: dict[Any, torch.UntypedStorage] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Copy what is about to be written, and run the operator."""
        named = kwargs or {}
        for place in written_arguments(func):
            value = named.get(place) if isinstance(place, str) else args[place] if place < len(args) else None
            for tensor in flatten_tree(value)[0]:
                if isinstance(tensor, torch.Tensor):
                    self._save(tensor)
        return func(*args, **named)

    def _save(self, tensor: torch.Tensor) -> None:
        key = storage_of(tensor)
        if key in self._watched and key not in self._saved and not tensor.is_meta:
            self._saved[key] = self._watched[key].untyped_storage().clone()

    def changed(self) -> list[torch.Tensor]:
        """Return the watched tensors of which values, memory, shape or need of a gradient are not what they were."""
        return [record.tensor for record in self._records if self._is_changed(record)]

    def _is_changed(self, record: _Record) -> bool:
        tensor, alias = record.tensor, record.alias
        if _is_elsewhere(tensor, alias) or tensor.requires_grad is not record.requires_grad:
            return True
        saved = self._saved.get(storage_of(alias))
        if saved is None:
            return False
        before = torch.empty(0, dtype=alias.dtype, device=alias.device)
        before.set_(saved, alias.storage_offset(), alias.shape, alias.stride())
        return not _same_bits(before, alias)

    def restore(self) -> None:
        """Make the watched tensors what they were; they stay the objects that they are."""
        with torch.no_grad():
            for key, saved in self._saved.items():
                storage = self._watched[key].untyped_storage()
                if storage.nbytes() != saved.nbytes():
                    storage.resize_(saved.nbytes())
                storage.copy_(saved)
            for tensor, alias, requires_grad, gradient in self._records:
                if _is_elsewhere(tensor, alias):
                    tensor.data = alias
                if tensor.requires_grad is not requires_grad and tensor.is_leaf:
                    tensor.requires_grad_(requires_grad)
                if tensor.is_leaf:
                    tensor.grad = gradient


def _is_elsewhere(tensor: torch.Tensor, alias: torch.Tensor) -> bool:
    return (
        storage_of(tensor) != storage_of(alias)
        or tensor.dtype != alias.dtype
        or tensor.shape != alias.shape
        or (storage_of(alias) is not None and tensor.stride() != alias.stride())
        or (storage_of(alias) is not None and tensor.storage_offset() != alias.storage_offset())
    )


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors of one dtype and shape hold the same bits: NaN is NaN, and the zeros differ."""
    ours, theirs = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second))
    return torch.equal(ours, theirs)

"""Tensors that existed before a program was captured are as they were when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug.capture.examples.parts import tensors_in
from fxplug.semantics.internals import (
    LightDispatchMode,
    hook_tables_of,
    is_fake,
    storage_of,
    with_data,
)
from fxplug.semantics.schemas import written_arguments
from fxplug.semantics.storages import History, is_elsewhere, write_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.utils.hooks import RemovableHandle

__all__ = ["HooksOnTensors", "Snapshots", "WritesInside"]


class _Place(NamedTuple):
    """A tensor before code ran which nobody looks at."""

    tensor: torch.Tensor
    alias: torch.Tensor
    """Has its memory, shape and strides."""
    requires_grad: bool
    gradient: torch.Tensor | None

    def restore(self) -> None:
        """Make the tensor what it was, but for the values in its memory."""
        tensor = self.tensor
        if is_elsewhere(tensor, self.alias):
            if tensor.is_leaf:
                tensor.grad = None  # It would have to fit what the tensor is to be.
            tensor.data = self.alias
        if not tensor.is_leaf:
            return
        if tensor.requires_grad is not self.requires_grad:
            tensor.requires_grad_(self.requires_grad)
        if tensor.grad is not self.gradient:
            tensor.grad = self.gradient


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class Snapshots:
    """Keeps a copy of each tensor from before the program that the program is about to write to."""

    def __init__(self) -> None:
        self._new: list[torch.Tensor] = []
        """Tensors whose memory was not looked at yet; most programs write to none, and then nobody has to."""
        self._existing: dict[Any, dict[int, torch.Tensor]] = {}
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool, History]] = {}
        self._places: list[_Place] | None = None

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
            self._save(existing)

    def _save(self, existing: torch.Tensor) -> None:
        if id(existing) in self._saved:
            return
        with torch.no_grad(), with_data():
            alias = existing.detach()
            states = existing.requires_grad, History(existing)
            self._saved[id(existing)] = (existing, alias, alias.clone(), *states)
            # A module that is converted gives its gradients other memory, too.
            if existing.is_leaf and (gradient := existing.grad) is not None:
                self._save(gradient)

    def shares_memory(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor that is about to be written to shares the memory of one from before the program."""
        if self._new:
            self.before_writes()
        return storage_of(tensor) in self._existing

    @property
    def has_places(self) -> bool:
        """Whether it was noted where tensors are."""
        return self._places is not None

    def note_places(self, tensors: Iterable[torch.Tensor]) -> None:
        """Hear that code is about to run which may give tensors other memory, or gradients: torch does not tell of it.

        Args:
            tensors: Those from before the program.
        """
        with torch.no_grad(), with_data():
            self._places = [
                _Place(tensor, tensor.detach(), tensor.requires_grad, tensor.grad if tensor.is_leaf else None)
                for tensor in tensors
                if type(tensor) in _PLAIN and id(tensor) not in self._saved
            ]

    def lost_data(self) -> torch.Tensor | None:
        """Return a tensor that such code has given memory without data, None if there is none."""
        places = self._places or ()
        return next(
            (place.tensor for place in places if place.tensor.is_meta and not place.alias.is_meta), None
        )

    def restore(self) -> None:
        """Put back what was written to, and the memory that tensors had."""
        self._restore_values()
        # What had been given other memory in a way that is heard of is among what was saved.
        for place in self._places or ():
            place.restore()
        self._places = None

    def _restore_values(self) -> None:
        if not self._saved:
            return
        with torch.no_grad():
            # The last one first: what was saved later may lie in the same memory, and hold what was written before.
            for tensor, alias, values, requires_grad, history in reversed(self._saved.values()):
                write_back(alias, values)
                if is_elsewhere(tensor, alias):
                    tensor.data = alias
                history.restore()
                if tensor.requires_grad != requires_grad and tensor.is_leaf:
                    tensor.requires_grad_(requires_grad)
        self._saved.clear()


class HooksOnTensors:
    """The hooks that a program puts on tensors, which may be weights of the user; no hook of them stays."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._former: dict[int, tuple[torch.Tensor, list[dict[Any, Any]]]] = {}

    def add(self, handle: RemovableHandle, weight: torch.Tensor | None) -> None:
        """Hear of a hook that was registered a moment ago.

        Args:
            handle: Takes it off again.
            weight: The tensor from before the program for which it is meant; None for another one.
        """
        self._handles.append(handle)
        if weight is not None and id(weight) not in self._former:
            former = [
                {key: hook for key, hook in (table or {}).items() if key != handle.id}
                for table in hook_tables_of(weight)
            ]
            self._former[id(weight)] = weight, former

    def note(self, weight: torch.Tensor) -> None:
        """Hear that a tensor from before the program may be given hooks where nobody hears of it."""
        if id(weight) not in self._former:
            self._former[id(weight)] = weight, [dict(table or {}) for table in hook_tables_of(weight)]

    def restore(self) -> None:
        """Take the hooks off, and put back those that were there before; this can be done again."""
        for handle in self._handles:
            handle.remove()
        for weight, former in self._former.values():
            for table, before in zip(hook_tables_of(weight), former, strict=True):
                if table is not None and [*table] != [*before]:
                    table.clear()
                    table.update(before)


class WritesInside(LightDispatchMode):
    """Hears of what a call writes that stays one, and whose own code is not looked at: a layer with hooks, for one.

    Args:
        snapshots: Keeps what is about to be written to, unless such a call has made it.
        made: Receives the memory of what the call makes.
        viewed: Receives the memory of what it takes views of.
    """

    supports_higher_order_operators = True

    def __init__(self, snapshots: Snapshots, made: set[Any], viewed: set[Any]) -> None:
        super().__init__()
        self._snapshots = snapshots
        self._made = made
        self._viewed = viewed

    def on_operator(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Hear of an operator."""
        for place in written_arguments(func):
            written = kwargs.get(place) if isinstance(place, str) else args[place : place + 1]
            for tensor in tensors_in(written):
                if not is_fake(tensor) and storage_of(tensor) not in self._made:
                    self._snapshots.add(tensor)
                    self._snapshots.before_write(tensor)
        result = func(*args, **kwargs)
        given = {storage_of(tensor) for tensor in tensors_in((args, kwargs))}
        gives = {storage_of(tensor) for tensor in tensors_in(result)} - {None}
        self._made.update(gives - given)
        self._viewed.update(gives & given)
        return result

"""Keeping what tensors hold before it is written over, at a cost that grows with what is written."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.graph import increment_version
from torch.nn.parameter import is_lazy

from fxplug.semantics.internals import (
    HOOKS_OF_TENSORS,
    LightDispatchMode,
    base_of,
    flatten_tree,
    hook_tables_of,
    is_fake,
    keep_version,
    memory_of,
    remove_modes_above,
    storage_and_size_of,
    storage_of,
)
from fxplug.semantics.schemas import declares_writes, written_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import TracebackType

__all__ = ["History", "StorageJournal", "checksum", "is_elsewhere", "write_back"]


class _Record(NamedTuple):
    """One tensor as it was."""

    tensor: torch.Tensor
    alias: torch.Tensor | None
    """Has its memory, shape and strides, also when the tensor has got others (``tensor.data = ...``)."""
    requires_grad: bool
    gradient: torch.Tensor | None
    kind: type
    attributes: dict[str, Any]
    hooks: tuple[_Hooks, ...]


_Hooks = tuple[Any, tuple[tuple[Any, Any], ...]]
"""A table of hooks, and what it held."""


class StorageJournal(LightDispatchMode):
    """Hears of operators that write, and copies the memory of a watched tensor before the first write to it.

    While it is entered, in the thread that has entered it. Writes through views, ``tensor.data``, ``out=`` and
    ``torch.no_grad()`` are operators like any other. Those through NumPy, or another library that has the address of
    the memory, are not heard of, and neither are those of other threads. Gradients and hooks of tensors are watched,
    too.

    Args:
        tensors: Those that are watched.
    """

    supports_higher_order_operators = True

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        known = {id(tensor): tensor for tensor in tensors}
        noted: list[Any] = []
        watched: dict[Any, torch.Tensor] = {}
        sizes: dict[Any, int] = {}
        self._noted, self._watched, self._sizes = noted, watched, sizes
        waiting = list(known.values())
        for tensor in waiting:  # It grows meanwhile. Written out: a model has hundreds of tensors.
            needs_gradient = tensor.requires_grad
            gradient = tensor.grad if not needs_gradient or tensor.is_leaf else None
            if gradient is not None and id(gradient) not in known:
                known[id(gradient)] = gradient
                waiting.append(gradient)
            kind, attributes = type(tensor), vars(tensor)
            alias = tensor.data if kind in _PLAIN else _alias_of(tensor)
            hooks = _NO_HOOKS if hook_tables_of(tensor) == _NO_TABLES else _hooks_of(tensor)
            attributes = attributes.copy() if attributes else _NO_ATTRIBUTES
            noted += tensor, alias, needs_gradient, gradient, kind, attributes, hooks
            if alias is None:
                continue
            # As `memory_of` says, without a call for each.
            is_usual = type(alias) is torch.Tensor and alias.layout is torch.strided and not alias.is_meta
            for plain in (alias,) if is_usual else memory_of(alias):
                key, size = storage_and_size_of(plain)
                watched[key], sizes[key] = plain, size
        self._saved: dict[Any, torch.UntypedStorage] = {}
        self._heard: set[Any] = set()
        """The storages of which an operator said that it writes them."""
        self.listener: Callable[[Callable[..., Any]], None] | None = None
        """Told of each operator before it runs."""

    @property
    def _records(self) -> list[_Record]:
        """What each tensor was. Most journals are never asked, and a list is one object, whatever is in it."""
        return [_Record(*parts) for parts in zip(*[iter(self._noted)] * len(_Record._fields), strict=True)]

    def on_operator(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Copy what is about to be written, and run the operator."""
        if self.listener is not None:
            self.listener(func)
        is_certain = declares_writes(func)
        for place in written_arguments(func):
            value = (
                kwargs.get(place) if isinstance(place, str) else args[place] if place < len(args) else None
            )
            for tensor in flatten_tree(value)[0]:
                if isinstance(tensor, torch.Tensor):
                    self._save(tensor, is_certain=is_certain)
        return func(*args, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Hear no more; what was put on top meanwhile, and left there, goes with it."""
        try:
            remove_modes_above(self)
        finally:  # An interrupt may come meanwhile, and the mode would hear of everything from then on.
            super().__exit__(kind, error, traceback)

    def save_all(self) -> None:
        """Copy the memory of all watched tensors now."""
        for plain in list(self._watched.values()):
            self._save(plain, is_certain=False)

    def _save(self, tensor: torch.Tensor, *, is_certain: bool) -> None:
        for plain in memory_of(tensor):
            key = storage_of(plain)
            if key not in self._watched:
                continue
            if key not in self._saved:
                self._saved[key] = self._watched[key].untyped_storage().clone()
            if is_certain:
                self._heard.add(key)

    def changed(self) -> list[torch.Tensor]:
        """Return the watched tensors of which values, memory, shape, need of a gradient or hooks are others."""
        written = self._changed_storages()
        return [record.tensor for record in self._records if _is_changed(record, written)]

    def written(self) -> list[torch.Tensor]:
        """Return the watched tensors that were written, also with what they held, or that have other memory."""
        written = self._heard | self._changed_storages(besides=self._heard)
        return [
            record.tensor
            for record in self._records
            if record.alias is None
            or is_elsewhere(record.tensor, record.alias)
            or (written and not written.isdisjoint(map(storage_of, memory_of(record.alias))))
        ]

    def _changed_storages(self, besides: Collection[Any] = ()) -> set[Any]:
        return {
            key
            for key, saved in self._saved.items()
            if key not in besides and not _same_bytes(saved, self._watched[key].untyped_storage())
        } | {
            key for key, size in self._sizes.items() if self._watched[key].untyped_storage().nbytes() != size
        }

    def restore(self) -> list[str]:
        """Make the watched tensors what they were; they stay the objects that they are.

        Returns:
            What could not be undone; nothing else is left out because of it.
        """
        failures: list[str] = []

        def attempt(step: Callable[..., None], *args: Any) -> None:
            try:
                step(*args)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")

        with torch.no_grad():
            for key, saved in self._saved.items():
                attempt(_put_back, self._watched[key].untyped_storage(), saved)
            for key, size in self._sizes.items():
                storage = self._watched[key].untyped_storage()
                if key not in self._saved and (now := storage.nbytes()) != size:
                    # No operator does that, so nothing was copied before. Tensors without memory end the process when
                    # they are read.
                    failures.append(
                        f"memory of {size} bytes was resized to {now}, and nobody knows what it held"
                    )
                    attempt(storage.resize_, size)
            records = self._records
            for step in (_restore_data, _restore_gradient):  # A gradient has to fit the tensor by then.
                for record in records:
                    attempt(step, record)
        return failures


_NO_ATTRIBUTES: dict[str, Any] = {}


def _alias_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor with the same memory, None for a parameter that has none yet."""
    with torch.no_grad():
        return None if is_lazy(tensor) else tensor.detach()


_NO_TABLES = (None,) * len(HOOKS_OF_TENSORS)
_NO_HOOKS: tuple[_Hooks, ...] = ((None, ()),) * len(HOOKS_OF_TENSORS)


def _hooks_of(tensor: torch.Tensor) -> tuple[_Hooks, ...]:
    tables = hook_tables_of(tensor)
    if tables == _NO_TABLES:
        return _NO_HOOKS
    return tuple([(table, tuple(table.items()) if table else ()) for table in tables])


def _is_changed(record: _Record, written: set[Any]) -> bool:
    tensor, alias = record.tensor, record.alias
    if type(tensor) is not record.kind or tensor.requires_grad is not record.requires_grad:
        return True
    if _hooks_of(tensor) != record.hooks:
        return True
    if alias is None:
        return not is_lazy(tensor)
    return is_elsewhere(tensor, alias) or not written.isdisjoint(map(storage_of, memory_of(alias)))


def _put_back(storage: torch.UntypedStorage, saved: torch.UntypedStorage) -> None:
    if storage.nbytes() > saved.nbytes() and not storage.resizable():
        # NumPy has seen it since it became larger. What was there fits, and the rest is out of reach of the tensors.
        torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)[: saved.nbytes()].copy_(
            torch.empty(0, dtype=torch.uint8, device=saved.device).set_(saved)
        )
        return
    if storage.nbytes() != saved.nbytes():
        storage.resize_(saved.nbytes())
    storage.copy_(saved)


def _restore_data(record: _Record) -> None:
    tensor, alias = record.tensor, record.alias
    if type(tensor) is not record.kind:
        tensor.__class__ = record.kind
    if tensor.requires_grad and not record.requires_grad:
        # First of all: one that requires a gradient cannot get data of every dtype.
        _cut_off(tensor)
    if alias is not None and is_elsewhere(tensor, alias):
        tensor.grad = None  # One of another dtype or shape would stand against it.
        tensor.data = alias
    if tensor.requires_grad is not record.requires_grad and tensor.is_leaf:
        tensor.requires_grad_(record.requires_grad)
    if record.attributes or vars(tensor):
        # They are not compared: two tensors may be equal, or refuse to say.
        vars(tensor).clear()
        vars(tensor).update(record.attributes)
    if _hooks_of(tensor) != record.hooks:
        for name, (table, held) in zip(HOOKS_OF_TENSORS, record.hooks, strict=True):
            added = getattr(tensor, name)
            if added is not None:
                added.clear()  # Some are called also when they are no longer held here.
            if table is not None:
                table.clear()
                table.update(held)
            setattr(tensor, name, table)


def _cut_off(tensor: torch.Tensor) -> None:
    """Let a tensor require no gradient any more."""
    if tensor.is_leaf:
        tensor.requires_grad_(False)
        return
    try:
        tensor.detach_()
    except RuntimeError:  # A view cannot be; what is behind the object is exchanged.
        torch.utils.swap_tensors(tensor, tensor.detach())


def _restore_gradient(record: _Record) -> None:
    if record.tensor.is_leaf and record.tensor.grad is not record.gradient:
        record.tensor.grad = record.gradient


def is_elsewhere(tensor: torch.Tensor, alias: torch.Tensor) -> bool:
    """Return whether a tensor has another kind, memory, shape or strides than a second one, or conjugates it."""
    if tensor.is_nested or alias.is_nested:  # They have no shape.
        return storage_of(tensor) != storage_of(alias)
    if tensor.dtype != alias.dtype or tensor.shape != alias.shape or tensor.layout != alias.layout:
        return True
    if tensor.is_conj() != alias.is_conj() or tensor.is_neg() != alias.is_neg():
        return True  # The same bytes are other numbers.
    if tensor.is_cpu and type(tensor) in _PLAIN and _is_simple(tensor) and tensor.is_set_to(alias):
        return False  # As what follows would find out, in one call.
    ours, theirs = memory_of(tensor), memory_of(alias)
    if [storage_of(plain) for plain in ours] != [storage_of(plain) for plain in theirs]:
        return True
    return any(
        one.stride() != other.stride() or one.storage_offset() != other.storage_offset()
        for one, other in zip(ours, theirs, strict=True)
    )


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _is_simple(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def _same_bytes(first: torch.UntypedStorage, second: torch.UntypedStorage) -> bool:
    if first.nbytes() != second.nbytes():
        return False
    ours, theirs = (
        torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage) for storage in (first, second)
    )
    return torch.equal(ours, theirs)


def checksum(tensor: torch.Tensor) -> bytes:
    """Return what tells the values of a tensor from others: of the dtype, the shape and every byte."""
    found = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}".encode(), digest_size=16)
    for plain in memory_of(tensor):
        values = plain.detach().resolve_conj().resolve_neg().cpu().contiguous()
        size = values.numel() * values.element_size()
        if size:
            found.update((ctypes.c_char * size).from_address(values.data_ptr()))
    return found.digest()


def write_back(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Give a tensor the values of another one of its size, also where several elements are one (`expand`)."""
    if tensor.layout is torch.strided and not tensor.is_nested:
        for dimension, stride in enumerate(tensor.stride()):
            if stride == 0 and tensor.shape[dimension] > 1:
                tensor, values = tensor.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    tensor.copy_(values)


class History:
    """How a tensor was computed, or what it is a view of, and the way back to it when something was written to it.

    Autograd has no way back: what is put in the place of the history is a copy of the former values, which leads to it.
    A view of a leaf goes on to say that it requires a gradient once it did, and hands on none. Who has computed with
    the tensor before can still go back through that: it counts as not written to.

    Args:
        tensor: Not written to yet.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._root = root = tensor if is_fake(tensor) else base_of(tensor)
        self._made_by = root.grad_fn
        self._former: torch.Tensor | None = None
        self._keep_version: Callable[[], object] | None = None
        if is_fake(tensor):
            return
        if self._made_by is not None:
            with torch.enable_grad():
                self._former = root.clone()
        if not root.is_inference():
            self._keep_version = keep_version(root)

    def restore(self) -> None:
        """Make the tensor a leaf again if it was one, or a result of what it was computed from.

        It has its former values.
        """
        root = self._root
        if root.grad_fn is not self._made_by:
            with contextlib.suppress(RuntimeError):
                self._lead_back(root)
        if self._keep_version is not None:
            self._keep_version()
        if self._tensor is not root:
            _is_lost(self._tensor)  # A view finds out what it leads to when it is asked, and only then.

    def _lead_back(self, root: torch.Tensor) -> None:
        root.detach_()
        increment_version(root)  # Else its views would go on to lead to what was written.
        with torch.enable_grad():
            if self._former is not None:
                root.copy_(self._former)
            elif _is_lost(self._tensor):
                root.copy_(root.detach().clone().requires_grad_())
                self._keep_version = None  # Other views are to find out about it.


def _is_lost(view: torch.Tensor) -> bool:
    """Return whether torch cannot say of a view that what it shows has no history any more, as of `torch.view_as_real`.

    Such a view is given a history that leads nowhere.
    """
    try:
        _ = view.grad_fn
    except RuntimeError:
        return True
    return False

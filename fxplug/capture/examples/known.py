"""The tensors of a program that runs on examples, and where each comes from."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from fxplug.semantics.internals import storage_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fxplug.capture.examples.numbers import Part
    from fxplug.ir import Node

__all__ = ["KnownTensors"]


class KnownTensors(dict[int, tuple[Any, "Node | Part"]]):
    """``id`` of a tensor -> what keeps or watches it, and what it is the value of.

    Results are watched only: a program frees them as it goes, and a capture that kept them would need the memory of all
    of them at once. Nobody can ask for one that is gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memory: set[Any] = set()
        self._forget = _forgetter(self)

    def add_result(self, tensor: torch.Tensor, memory: Any, source: Node | Part) -> None:
        """Let a tensor that a call has made be known for as long as somebody holds it.

        Args:
            tensor: The tensor.
            memory: What `storage_of` says of it.
            source: What it is the value of.
        """
        self._memory.add(memory)
        watch = _Watch(tensor, self._forget)
        watch.key = key = id(tensor)
        self[key] = (watch, source)

    def living(self) -> Iterator[tuple[torch.Tensor, Node | Part]]:
        """Yield the tensors that still exist."""
        for holder, source in list(self.values()):
            tensor = holder() if isinstance(holder, _Watch) else holder
            if tensor is not None:
                yield tensor, source

    def have_had(self, memory: Any) -> bool:
        """Return whether one of these lies, or has lain, in memory that `storage_of` has named."""
        if memory is None:
            return False
        return memory in self._memory or any(storage_of(known) == memory for known, _ in self.living())


class _Watch(weakref.ref[torch.Tensor]):
    __slots__ = ("key",)
    key: int


_NOTHING = (None, None)


def _forgetter(known: KnownTensors) -> Any:
    of = weakref.ref(known)

    def forget(watch: _Watch) -> None:
        tensors = of()
        if tensors is not None and tensors.get(watch.key, _NOTHING)[0] is watch:
            del tensors[watch.key]

    return forget

"""What engines read, made from the state of a module when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fxplug_quant.affine import Affine

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Packing", "PackingModule", "tensors_of", "version_of"]

_KEPT = 6
"""How many things a packing keeps; a convolution makes one for each shape of its input."""


class Packing:
    """What was made from one state of a module."""

    def __init__(self, module: nn.Module) -> None:
        self._state = [(tensor, version_of(tensor)) for tensor in tensors_of(module).values()]
        self.affine = {name: self._affine_of(module, name) for name in _affine_names(module)}
        self._made: dict[Hashable, Any] = {}
        self.fused: Any = None
        """How the layer computes inputs of few rows; see `fxplug_quant.engine.FusedLinear`."""

    @staticmethod
    def _affine_of(module: nn.Module, name: str) -> Affine:
        return Affine(float(getattr(module, f"{name}_scale")), int(getattr(module, f"{name}_zero_point")))

    def is_of(self, module: nn.Module) -> bool:
        """Return whether the module still has the state that this was made from."""
        # This runs at every call of a layer: a small one takes not much longer than a Python function.
        buffers = module.__dict__["_buffers"]
        for found, (tensor, version) in zip(buffers.values(), self._state, strict=False):
            if found is not tensor or (version >= 0 and found._version != version):
                return False
        return len(buffers) == len(self._state)

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for this key."""
        try:
            return self._made[key]
        except KeyError:
            made = self._made
            if len(made) >= _KEPT:
                made.pop(next(iter(made)), None)
            made[key] = value = make()
            return value


class PackingModule(nn.Module):
    """A module whose buffers are its state, and what engines read is a cache that is never copied or stored."""

    def __init__(self) -> None:
        super().__init__()
        self._packing: Packing | None = None

    def packing(self) -> Packing:
        """Return what belongs to the state as it is now."""
        packing = self._packing
        if packing is None or not packing.is_of(self):
            packing = self._packing = Packing(self)
        return packing

    def register_affine(self, name: str, affine: Affine | None) -> None:
        """Register what steps of an input or the output mean as buffers, None where they are float32."""
        self.register_buffer(f"{name}_scale", None if affine is None else torch.tensor(affine.scale))
        self.register_buffer(
            f"{name}_zero_point",
            None if affine is None else torch.tensor(affine.zero_point, dtype=torch.int32),
        )

    def affine(self, name: str) -> Affine | None:
        """Return what steps mean that were registered by this name; None where they are float32."""
        return self.packing().affine.get(name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packing": None}


def _affine_names(module: nn.Module) -> list[str]:
    """Return the names that `PackingModule.register_affine` was given, where there are steps."""
    return [
        name.removesuffix("_zero_point")
        for name, tensor in tensors_of(module).items()
        if name.endswith("_zero_point") and tensor is not None
    ]


def tensors_of(module: nn.Module) -> dict[str, Any]:
    """Return name -> buffer, None where there is none; reading them as attributes takes several times as long."""
    return module.__dict__["_buffers"]


def version_of(tensor: Tensor | None) -> int:
    """Return a number that grows when the tensor is changed in place; -1 for one made in inference mode."""
    if tensor is None or tensor.is_inference():
        return -1
    return tensor._version

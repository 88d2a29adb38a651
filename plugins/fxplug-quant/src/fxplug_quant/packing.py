"""What engines read, made from the state of a module when it is first needed."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from fxplug_quant.affine import Affine
from fxplug_quant.errors import QuantizationError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Packing", "PackingModule", "Shortcut", "tensors_of", "version_of"]

_KEPT = 6
"""How many things a packing keeps; a convolution makes one for each shape of its input."""

_version = operator.attrgetter("_version")


class Packing:
    """What was made from one state of a module."""

    def __init__(self, module: PackingModule) -> None:
        module.expect_state()
        # The tensors are kept, so that no other can get the number of one.
        self._tensors = tuple(tensors_of(module).values())
        self._numbers = list(map(id, self._tensors))
        self._counting = [tensor for tensor in self._tensors if version_of(tensor) >= 0]
        self._versions = sum(map(_version, self._counting))
        self.affine = {name: self._affine_of(module, name) for name in _affine_names(module)}
        self._made: dict[Hashable, Any] = {}
        self.fused: Any = None
        """How the layer computes inputs of few rows, behind its engine and whether it ends in ReLU.

        See `fxplug_quant.engine.FusedLinear`.
        """

    @staticmethod
    def _affine_of(module: nn.Module, name: str) -> Affine:
        return Affine(float(getattr(module, f"{name}_scale")), int(getattr(module, f"{name}_zero_point")))

    def is_of(self, module: nn.Module) -> bool:
        """Return whether the module still has the state that this was made from."""
        # This runs at most calls of a layer, so that no loop of it is Python's. Versions grow and never shrink: their
        # sum is the same as long as each of them is.
        numbers = list(map(id, module.__dict__["_buffers"].values()))
        return numbers == self._numbers and sum(map(_version, self._counting)) == self._versions

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


class Shortcut(NamedTuple):
    """All that a linear layer needs for a float32 input of few rows, as long as its state is what it was.

    Weights of large layers fill the caches of a core, so that whatever the way to the next operator touches is read
    from memory again: functions, tensors, attributes. A call that reads this, compares, and calls the operator touches
    the least. It does so without a function of its own for the comparison, which would cost as much as the rest.
    """

    weight: Tensor
    weight_version: int
    scale: Tensor
    scale_version: int
    bias: Tensor | None
    bias_version: int
    post: str
    engine: str
    finish: Callable[[Tensor], Tensor] | None
    """What is done to the operator's result; None for nothing."""
    operator: Callable[..., Tensor]
    """Takes the input, the scale and the zero point of its steps, and what is packed."""
    packed: Any
    elements: int
    """Up to so many elements of an input it is the fastest."""

    @staticmethod
    def of(
        module: Any, packing: Packing, post: str, finish: Callable[[Tensor], Tensor] | None
    ) -> Shortcut | None:
        """Return it for a layer that was run; None where its way is another one, or its tensors count no writes."""
        buffers = tensors_of(module)
        tensors = [buffers[name] for name in ("int_weight", "weight_scale", "bias")]
        versions = [version_of(tensor) for tensor in tensors]
        uncounted = any(
            version < 0 for tensor, version in zip(tensors, versions, strict=True) if tensor is not None
        )
        # Asked last: what is packed belongs to these versions, also where another thread writes meanwhile.
        fused = packing.fused
        if fused is None or fused[:2] != (module.engine, post == "relu"):
            return None
        if uncounted or not packing.is_of(module):
            return None
        (weight, scale, bias), (of_weight, of_scale, of_bias) = tensors, versions
        return Shortcut(weight, of_weight, scale, of_scale, bias, of_bias, post, fused[0], finish, *fused[2])


class PackingModule(nn.Module):
    """A module whose buffers are its state, and what engines read is a cache that is never copied or stored."""

    _shortcut: Any = None
    """A `Shortcut` beside what else the short way needs, once the layer was run with an input that it is for."""

    def __init__(self) -> None:
        super().__init__()
        self._packing: Packing | None = None

    def packing(self) -> Packing:
        """Return what belongs to the state as it is now."""
        packing = self._packing
        if packing is None or not packing.is_of(self):
            packing = self._packing = Packing(self)
        return packing

    def expect_state(self) -> None:
        """Check that weights, scales and bias belong together: engines read the memory behind those that are too few.

        Raises:
            QuantizationError: They do not, as in a file that somebody has changed.
        """
        weight = tensors_of(self).get("int_weight")
        if weight is not None:
            self.expect_shapes(weight_scale=(len(weight),), bias=(len(weight),))

    def expect_shapes(self, **wanted: tuple[int, ...]) -> None:
        """Check the shapes of buffers; those that are None are left out.

        Raises:
            QuantizationError: One has another shape.
        """
        buffers = tensors_of(self)
        for name, shape in wanted.items():
            tensor = buffers[name]
            if tensor is not None and tensor.shape != shape:
                raise self.misfit(f"{name} has the shape {tuple(tensor.shape)}, and its weights need {shape}")

    def misfit(self, what: str) -> QuantizationError:
        """Return the error for a state that does not fit together.

        Args:
            what: What of the layer does not fit, with what it is.
        """
        return QuantizationError(
            f"Cannot run {type(self).__name__}: its {what}. Its state was changed; quantize the float model again.",
            code="FXP-Q002",
        )

    def register_affine(self, name: str, affine: Affine | None) -> None:
        """Register what steps of an input or the output mean as buffers, None where they are float32."""
        # The caller may be in inference mode; tensors made there could not be loaded into later.
        with torch.inference_mode(mode=False):
            scale = None if affine is None else torch.tensor(affine.scale, dtype=torch.float32)
            zero_point = None if affine is None else torch.tensor(affine.zero_point, dtype=torch.int32)
        self.register_buffer(f"{name}_scale", scale)
        self.register_buffer(f"{name}_zero_point", zero_point)

    def affine(self, name: str) -> Affine | None:
        """Return what steps mean that were registered by this name; None where they are float32."""
        return self.packing().affine.get(name)

    def __getstate__(self) -> dict[str, Any]:
        # Without code that torch has compiled for this module, as for every other one.
        state = {**super().__getstate__(), "_packing": None}
        state.pop("_shortcut", None)
        return state


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

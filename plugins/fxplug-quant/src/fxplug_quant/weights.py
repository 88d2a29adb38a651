"""Giving layers other weights before they are quantized."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from fxplug_quant.calls import WEIGHTED, Call
from fxplug_quant.paths import Kept

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from fxplug import GraphModule

__all__ = ["Rescaled", "new_parameter", "own_layers", "put_weights", "writing_weights"]

_TENSORS = ("weight", "bias")


@contextmanager
def writing_weights() -> Generator[None]:
    """Make parameters inside: without gradients, and usable outside of inference mode."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def new_parameter(value: Tensor, former: Tensor) -> nn.Parameter:
    """Return a parameter that trains if a former one did."""
    return nn.Parameter(value, requires_grad=former.requires_grad)


def own_layers(module: GraphModule, calls: Iterable[Call]) -> list[Call]:
    """Return the calls of layers with weights whose weights nothing else in the program reads or writes."""
    layers = [
        call for call in calls if call.kind in WEIGHTED and call.node.op == "call_module" and not call.reason
    ]
    kept = Kept(module, {call.node for call in layers})
    return [call for call in layers if not kept.concerns(str(call.node.target))]


def put_weights(module: GraphModule, path: str, weights: Mapping[str, nn.Parameter]) -> None:
    """Put a copy of a layer in its place that has other weights. Who else holds the layer keeps it."""
    former: Any = module.get_submodule(path)
    tensors = ((getattr(former, name, None), weights.get(name)) for name in _TENSORS)
    memo: dict[int, Any] = {
        id(old): old if new is None else new for old, new in tensors if isinstance(old, Tensor)
    }
    fresh = copy.deepcopy(former, memo)
    for name, value in weights.items():
        setattr(fresh, name, value)
    module.add_submodule(path, fresh)


class Rescaled:
    """The weights of a module while a pass works on them, by path and name."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._changed: dict[str, dict[str, nn.Parameter]] = {}

    def get(self, path: str, name: str) -> Tensor | None:
        """Return a weight or bias as it is now; None where the layer has none."""
        changed = self._changed.get(path, {})
        return changed.get(name, cast("Tensor | None", getattr(self._module.get_submodule(path), name, None)))

    def set(self, path: str, name: str, value: Tensor) -> nn.Parameter:
        """Remember what a weight is to be."""
        fresh = new_parameter(value, cast("Tensor", self.get(path, name)))
        self._changed.setdefault(path, {})[name] = fresh
        return fresh

    def put(self) -> int:
        """Give the module its new weights; return how many layers have new ones."""
        for path, weights in self._changed.items():
            put_weights(self._module, path, weights)
        return len(self._changed)

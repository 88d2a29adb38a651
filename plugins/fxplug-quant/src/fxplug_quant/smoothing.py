"""SmoothQuant-style scaling: what is hard to round in values moves into weights, and the outputs stay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fxplug.execute import set_path
from fxplug.passes import Pass, PassContext, PassResult
from fxplug_quant.calibration import run_observed
from fxplug_quant.calls import Call, is_customised, read_calls
from fxplug_quant.observers import ChannelMaxima
from fxplug_quant.options import SmoothOptions
from fxplug_quant.paths import Kept, free_path
from fxplug_quant.static import data_of
from fxplug_quant.weights import Rescaled, own_layers, writing_weights

if TYPE_CHECKING:
    from fxplug import GraphModule, Node

__all__ = ["Smooth"]

_NORMS = (nn.LayerNorm, nn.RMSNorm)
_LARGEST_EXPONENT = 20


class Smooth(Pass):
    """Makes the values between a norm and the linear layers behind it alike in size, channel by channel.

    In Transformers some channels of these values are a hundred times as large as the others, which are then lost when
    all are rounded with one step. The norm divides each channel by a factor, and the weights of the linear layers are
    multiplied by it. Where others use the output of the norm, too, as residuals do, it stays, and is divided on its way
    to the linear layers. Factors are powers of two, so that the module computes the very same numbers as before. The
    data comes from `fxplug_quant.calibration`, and without it from the example inputs.

    Args:
        **options: See `SmoothOptions`.

    Raises:
        ConfigError: An option is out of range.
    """

    def __init__(self, **options: Any) -> None:
        self.options = SmoothOptions(**options)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Rescale every norm whose output goes to linear layers.

        Raises:
            QuantizationError: There is something to rescale, but no data, or a value is not finite.
        """
        groups = [group for group in _find_groups(module) if context.allows(group.norm, "smooth")]
        if not groups:
            return PassResult(False, "no norm whose output goes to linear layers")
        inputs, data = data_of(module, context)
        observers = {group.norm: ChannelMaxima() for group in groups}
        limit = self.options.batches or None
        run_observed(module, observers, data, inputs=len(inputs), limit=limit)
        weights = Rescaled(module)
        with writing_weights():
            smoothed = [
                group.smooth(module, weights, observers[group.norm].values, self.options.strength, context)
                for group in groups
            ]
            weights.put()
        count = sum(smoothed)
        text = f"smoothed what {count} norm{'' if count == 1 else 's'} give{'s' if count == 1 else ''}"
        return PassResult(count > 0, text if count else "nothing to smooth", {"norms": count})


@dataclass(frozen=True)
class _Group:
    """A norm, and the linear layers that use its output."""

    norm: Node
    layers: tuple[Call, ...]
    is_shared: bool
    """Whether others use its output, too, or its weights."""

    def smooth(
        self,
        module: GraphModule,
        weights: Rescaled,
        largest: Tensor | None,
        strength: float,
        context: PassContext,
    ) -> bool:
        """Rescale norm and layers; return whether anything changed."""
        paths = [str(call.node.target) for call in self.layers]
        used = [weights.get(path, "weight") for path in paths]
        exponents = _exponents(largest, [tensor for tensor in used if tensor is not None], strength)
        if not any(exponents):
            return False
        scaling = _Scaling(tuple(2.0**exponent for exponent in exponents))
        norm = str(self.norm.target)
        of_norm = () if self.is_shared else ("weight", "bias")
        if self.is_shared:
            self._divide(module, used[0], scaling, context)
        for path, name, function in (
            *((norm, name, scaling.divided) for name in of_norm),
            *((path, "weight", scaling.multiplied) for path in paths),
        ):
            former = weights.get(path, name)
            if former is not None:
                context.derive(weights.set(path, name, function(former)), (former,), function)
        return True

    def _divide(
        self, module: GraphModule, weight: Tensor | None, scaling: _Scaling, context: PassContext
    ) -> None:
        """Divide what the layers take; each for itself, since a program may write the value in between."""
        if weight is None:
            return
        factors = scaling.all_factors(weight)
        path = free_path(module, f"{self.norm.name}_smoothing")
        set_path(module, path, factors)
        context.derive(factors, (weight,), scaling.all_factors)
        for call in self.layers:
            node = call.node
            with module.graph.inserting_before(node):
                read = module.graph.get_attr(path)
                # A quotient: products could be taken for ones of steps.
                divided = module.graph.call_function(torch.div, (self.norm, read))
            for fresh in (read, divided):
                fresh.region, fresh.origins = node.region, node.origins
            node.replace_input_with(self.norm, divided)


@dataclass(frozen=True)
class _Scaling:
    """By what channels are divided and multiplied. Its methods are captured: the factors are plain numbers."""

    factors: tuple[float, ...]

    def divided(self, tensor: Any) -> Any:
        """Return a weight or bias of the norm."""
        return tensor / tensor.new_tensor(self.factors)

    def all_factors(self, tensor: Any) -> Any:
        """Return the factors, of the dtype of a weight."""
        return tensor.new_tensor(self.factors)

    def multiplied(self, tensor: Any) -> Any:
        """Return the weight of a linear layer."""
        return tensor * tensor.new_tensor(self.factors)


def _exponents(largest: Tensor | None, weights: list[Tensor], strength: float) -> list[int]:
    """Return for each channel by which power of two the values are to be divided."""
    if largest is None or not all(tensor.numel() for tensor in weights):
        return []
    # In linear layers that share an input, the largest weight counts.
    used = weights[0].abs().amax(0)
    for tensor in weights[1:]:
        used = used.maximum(tensor.abs().amax(0))
    wished = strength * largest.double().log2() - (1 - strength) * used.double().log2()
    wished = wished.where((largest > 0) & (used > 0), 0.0)
    return wished.round().clamp(-_LARGEST_EXPONENT, _LARGEST_EXPONENT).int().tolist()


def _find_groups(module: GraphModule) -> list[_Group]:
    calls = read_calls(module)
    uses = Counter(str(node.target) for node in calls if node.op == "call_module")
    linear = {
        call.node: call
        for call in own_layers(module, calls.values())
        if call.kind == "linear" and uses[str(call.node.target)] == 1
    }
    norms = [
        node for node, call in calls.items() if type(call.called) in _NORMS and _is_plain(node, call.called)
    ]
    kept = Kept(module, set(norms))
    found: list[_Group] = []
    for node in norms:
        layers = [linear[user] for user in node.users if user in linear and linear[user].inputs == (node,)]
        is_own = uses[str(node.target)] == 1 and not kept.concerns(str(node.target))
        if layers:
            found.append(_Group(node, tuple(layers), len(layers) < len(node.users) or not is_own))
    return found


def _is_plain(node: Node, norm: Any) -> bool:
    """Return whether a norm multiplies channels, the last dimension, by weights that can be changed."""
    tensors = [norm.weight, *([] if getattr(norm, "bias", None) is None else [norm.bias])]
    return (
        not is_customised(norm)
        and len(norm.normalized_shape) == 1
        and not any(region.context is torch.autocast for region in node.region)
        and all(type(tensor) is nn.Parameter and tensor.dtype is torch.float32 for tensor in tensors)
    )

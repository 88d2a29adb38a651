"""Cross-layer equalisation: channels that differ much in size are made alike without changing what is computed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.passes import Pass, PassContext, PassResult
from fxplug_quant.calls import Call, read_calls
from fxplug_quant.watching import see
from fxplug_quant.weights import Rescaled, own_layers, writing_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fxplug import GraphModule, Node

__all__ = ["Equalize"]

_SWEEPS = 10
"""In a chain of layers each pair disturbs the next one; so many times all are looked at."""
_LARGEST_EXPONENT = 20
_RANKS = {"linear": 0, "conv1d": 1, "conv2d": 2, "conv3d": 3}
"""Kind of layer -> how many dimensions come behind its channels."""


class Equalize(Pass):
    """Makes the weights of channels between two layers alike in size.

    Between two linear layers or convolutions with nothing but a ReLU, pooling or dropout, a channel can be made smaller
    in the first and larger in the second: the product stays. Where weights have one scale for all channels, and for
    values, which have in any case, no channel is then lost beside a huge one. Factors are powers of two, so that the
    module computes the very same numbers as before.
    """

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Equalise every pair of layers."""
        pairs = [
            pair for pair in _find_pairs(module, context) if context.allows(pair.second.node, "equalize")
        ]
        weights = Rescaled(module)
        with writing_weights():
            for _ in range(_SWEEPS):
                # Every pair, and not the first one that changes something.
                if not sum([pair.equalize(weights, context) for pair in pairs]):
                    break
            layers = weights.put()
        text = f"equalised {len(pairs)} pair{'' if len(pairs) == 1 else 's'} of layers" if layers else ""
        details = {"pairs": len(pairs) if layers else 0, "layers": layers}
        return PassResult(layers > 0, text or "no pair of layers to equalise", details)


@dataclass(frozen=True)
class _Pair:
    """A layer, and the only one that uses its output."""

    first: Call
    second: Call

    def equalize(self, weights: Rescaled, context: PassContext) -> bool:
        """Rescale both; return whether anything changed."""
        first_path, second_path = (str(call.node.target) for call in (self.first, self.second))
        first, bias = weights.get(first_path, "weight"), weights.get(first_path, "bias")
        second = weights.get(second_path, "weight")
        if first is None or second is None or not first.numel() or not second.numel():
            return False
        kind = _Scaling(getattr(self.second.called, "groups", 1), len(first), len(second), first.dim())
        if bool((kind.factors(first, second) == 1).all()):
            return False
        sources = (first, second)
        smaller = weights.set(first_path, "weight", kind.equalized_first(*sources))
        context.derive(smaller, sources, kind.equalized_first)
        if bias is not None:
            fresh = weights.set(first_path, "bias", kind.equalized_bias(*sources, bias))
            context.derive(fresh, (*sources, bias), kind.equalized_bias)
        larger = weights.set(second_path, "weight", kind.equalized_second(*sources))
        context.derive(larger, sources, kind.equalized_second)
        return True


@dataclass(frozen=True)
class _Scaling:
    """How a pair of weights is rescaled. Its methods are captured, so they do with operations on tensors."""

    groups: int
    channels: int
    outputs: int
    rank: int
    """Of the first weight."""

    def factors(self, first: Any, second: Any) -> Any:
        """Return by what each channel is divided in the first layer and multiplied in the second."""
        given = first.abs().flatten(1).amax(1).double()
        used = self._parts(second).abs().amax((1, 3)).reshape(-1).double()
        exponents = ((given / used).log2() / 2).round().clamp(-_LARGEST_EXPONENT, _LARGEST_EXPONENT)
        usable = (given > 0) & (used > 0)
        return exponents.where(usable, 0.0).exp2().float()

    def equalized_first(self, first: Any, second: Any) -> Any:
        """Return the new weight of the first layer."""
        return first / self.factors(first, second).reshape(-1, *(1,) * (self.rank - 1))

    def equalized_bias(self, first: Any, second: Any, bias: Any) -> Any:
        """Return the new bias of the first layer."""
        return bias / self.factors(first, second)

    def equalized_second(self, first: Any, second: Any) -> Any:
        """Return the new weight of the second layer."""
        wide = self.factors(first, second).reshape(self.groups, 1, -1, 1)
        return (self._parts(second) * wide).reshape_as(second)

    def _parts(self, second: Any) -> Any:
        """Return a weight with the dimensions group, output, input channel, and what belongs to one."""
        return second.reshape(self.groups, self.outputs // self.groups, self.channels // self.groups, -1)


def _find_pairs(module: GraphModule, context: PassContext) -> list[_Pair]:
    calls = read_calls(module)
    uses = Counter(str(node.target) for node in calls if node.op == "call_module")
    layers = {
        call.node: call
        for call in own_layers(module, calls.values())
        if uses[str(call.node.target)] == 1 and call.kind in _RANKS
    }
    inputs = context.example_inputs
    seen = {} if inputs is None else see(module, inputs)
    shapes = {node: value.shape for node, value in seen.items()}
    found = [_pair_of(call, layers, calls, shapes) for call in layers.values()]
    return [pair for pair in found if pair is not None]


def _pair_of(
    first: Call,
    layers: Mapping[Node, Call],
    calls: Mapping[Node, Call],
    shapes: Mapping[Node, tuple[int, ...]],
) -> _Pair | None:
    """Return the pair that a layer begins, if its output goes to one layer and keeps its channels on the way."""
    node, flattened = first.node, False
    while len(node.users) == 1:
        (user,) = node.users
        call = calls[user]
        if user in layers:
            return _matched(first, layers[user], flattened=flattened) if call.inputs == (node,) else None
        if call.inputs != (node,):
            return None
        if _flattens_channels(call, first, shapes.get(node)) and not flattened:
            flattened = True
        elif not _keeps_channels(call, first):
            return None
        node = user
    return None


def _matched(first: Call, second: Call, *, flattened: bool) -> _Pair | None:
    channels, weight = len(first.called.weight), second.called.weight
    features = weight.shape[1] * getattr(second.called, "groups", 1)
    if flattened:
        fits = second.kind == "linear" and features % channels == 0
        return _Pair(first, second) if fits else None
    return _Pair(first, second) if second.kind == first.kind and features == channels else None


def _keeps_channels(call: Call, first: Call) -> bool:
    """Return whether a call gives k times as much for k times the input, channel by channel."""
    if call.kind == "relu":
        return True
    if call.kind == "pool":
        return _RANKS[first.kind] > 0
    # These are left by captures of programs in evaluation mode; what else arranges values may move channels.
    return call.kind == "shape" and isinstance(call.called, (nn.Dropout, nn.Dropout2d, nn.Identity))


def _flattens_channels(call: Call, first: Call, shape: tuple[int, ...] | None) -> bool:
    """Return whether a call makes features of the channels of a batch, one channel after the other."""
    if (
        call.kind != "shape"
        or shape is None
        or len(shape) != _RANKS[first.kind] + 2
        or not _RANKS[first.kind]
    ):
        return False
    if isinstance(call.called, nn.Flatten):
        return (call.called.start_dim, call.called.end_dim) in {(1, -1), (1, len(shape) - 1)}
    node = call.node
    is_flatten = (node.op == "call_method" and node.target == "flatten") or node.target is torch.flatten
    return is_flatten and tuple(node.args[1:]) in {(1,), (1, -1)} and not node.kwargs

"""Bias correction: the mean of the error that rounded weights make is taken away beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fxplug.passes import Pass, PassContext, PassResult
from fxplug_quant.affine import weight_scale
from fxplug_quant.calibration import run_observed
from fxplug_quant.calls import read_calls
from fxplug_quant.observers import ChannelMeans, Observer
from fxplug_quant.options import CorrectBiasOptions
from fxplug_quant.static import data_of
from fxplug_quant.weights import new_parameter, own_layers, put_weights, writing_weights

if TYPE_CHECKING:
    from torch import Tensor

    from fxplug import GraphModule, Node

__all__ = ["CorrectBias"]

_DIMENSIONS_BEHIND = {"linear": 0, "conv1d": 1, "conv2d": 2, "conv3d": 3}
"""Kind of layer -> how many dimensions come behind the channels of its input."""


class CorrectBias(Pass):
    """Adds to biases what rounding the weights takes away from the mean of each output channel.

    It comes before the pass that rounds the weights, which all passes of this plugin do in the same way. The means of
    the inputs come from `fxplug_quant.calibration`, and without it from the example inputs. Running the pass twice
    corrects twice.

    Args:
        **options: See `CorrectBiasOptions`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = CorrectBiasOptions(**options)

    def run(self, module: GraphModule, context: PassContext) -> PassResult:
        """Correct every layer.

        Raises:
            QuantizationError: There is something to correct, but no data, or a value is not finite.
        """
        layers = [
            call
            for call in own_layers(module, read_calls(module).values())
            if call.kind in _DIMENSIONS_BEHIND and context.allows(call.node, "correct bias")
        ]
        if not layers:
            return PassResult(False, "no linear layer or convolution")
        inputs, data = data_of(module, context)
        # A layer that is called in several places has one bias for all of them, and so one mean.
        means = {str(call.node.target): ChannelMeans(-1 - _DIMENSIONS_BEHIND[call.kind]) for call in layers}
        watched: dict[Node, _Several] = {}
        for call in layers:
            watched.setdefault(call.inputs[0], _Several()).add(means[str(call.node.target)])
        limit = self.options.batches or None
        run_observed(module, watched, data, inputs=len(inputs), limit=limit)
        changed = 0
        with writing_weights():
            for path, called in {str(call.node.target): call.called for call in layers}.items():
                found = means[path].means()
                if found and called.weight.numel():
                    self._correct(module, path, called, found, context)
                    changed += 1
        text = f"corrected the bias of {changed} layer{'' if changed == 1 else 's'}"
        return PassResult(changed > 0, text, {"layers": changed})

    def _correct(
        self, module: GraphModule, path: str, called: Any, means: list[float], context: PassContext
    ) -> None:
        groups = getattr(called, "groups", 1)
        correction = _Correction(
            tuple(means), groups, len(called.weight), per_channel=self.options.per_channel
        )
        sources = [called.weight, *([] if called.bias is None else [called.bias])]
        bias = new_parameter(correction.corrected_bias(*sources), sources[-1])
        put_weights(module, path, {"bias": bias})
        context.derive(bias, sources, correction.corrected_bias)


@dataclass(frozen=True)
class _Correction:
    """What a bias has to make up for. Its method is captured: the means are plain numbers."""

    means: tuple[float, ...]
    groups: int
    outputs: int
    per_channel: bool

    def corrected_bias(self, weight: Any, bias: Any = None) -> Any:
        """Return the bias plus the mean of what rounding takes away from the product, paddings not counted."""
        flat = weight.flatten(1)
        scale = weight_scale(flat, per_channel=self.per_channel)[:, None]
        error = flat - (flat / scale).round().clamp(-127, 127) * scale
        # With the dimensions group, output, input channel, and what belongs to one.
        parts = error.reshape(
            self.groups, self.outputs // self.groups, len(self.means) // self.groups, -1
        ).sum(3)
        lost = (parts @ weight.new_tensor(self.means).reshape(self.groups, -1, 1)).reshape(-1)
        return lost if bias is None else bias + lost


class _Several(Observer):
    """Lets several observers see one value."""

    def __init__(self) -> None:
        super().__init__()
        self._observers: list[Observer] = []

    def add(self, observer: Observer) -> None:
        """Let one more see."""
        self._observers.append(observer)

    def take(self, values: Tensor, low: float, high: float) -> None:
        """Let all see a batch."""
        for observer in self._observers:
            observer.observe(values)

"""Learning what layers of torch record: by a trace of one of them, alone, on an input of its own."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.examples.tracer import ExampleTracer
from fxplug.capture.layer_records import LayerRecord, LayerRecords, record_of_graph
from fxplug.capture.plain_functions import MissedProgramError
from fxplug.capture.policy import TracePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["LAYERS", "learn"]

LAYERS = LayerRecords()
"""What was learned so far."""


def learn(layers: Iterable[nn.Module]) -> bool:
    """Learn what layers record; return whether it can be written down again, for all of them.

    Args:
        layers: Layers of torch without hooks, which only compute in the mode that they are in.
    """
    try:
        for layer in layers:
            if LAYERS.find(layer) is None:
                LAYERS.add(layer, _record_of(layer))
                LAYERS.find(layer)
    except MissedProgramError:
        return False
    return True


def _record_of(layer: nn.Module) -> LayerRecord | None:
    """Return what a layer records; None where that hangs on more than its settings, or cannot be found out."""
    sizes = _SIZES.get(type(layer))
    if sizes is None:
        return None
    weight = next(iter(layer.parameters()), None)
    kind: Any = {} if weight is None else {"dtype": weight.dtype, "device": weight.device}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # The layer says it again where it runs.
        try:
            tracer = ExampleTracer((torch.zeros(sizes(layer), **kind),), {}, policy=_ENTERING)
            graph = tracer.trace(layer)
        except Exception:  # What is wrong with it is said where it runs, too.
            return None
    asked = tracer.asked_dimensions
    if len(tracer.guards) != (asked is not None):
        return None
    return record_of_graph(graph, asked)


_ENTERING = TracePolicy(is_leaf_module=lambda module, path, context: False)


def _of_convolution(layer: Any) -> tuple[int, ...]:
    kernel = [(size - 1) * step + 1 for size, step in zip(layer.kernel_size, layer.dilation, strict=True)]
    return 1, layer.in_channels, *kernel


def _of_norm(dimensions: int) -> Callable[[Any], tuple[int, ...]]:
    return lambda layer: (2, layer.num_features, *[1] * dimensions)


def _of_window(dimensions: int) -> Callable[[Any], tuple[int, ...]]:
    def sizes(layer: Any) -> tuple[int, ...]:
        size = layer.kernel_size
        return 1, 1, *(size if isinstance(size, tuple) else [size] * dimensions)

    return sizes


def _of_any(layer: Any) -> tuple[int, ...]:
    return 1, 1, 1, 1


_ELEMENTWISE = (
    *(
        nn.CELU,
        nn.Dropout,
        nn.Dropout2d,
        nn.ELU,
        nn.GELU,
        nn.Hardsigmoid,
        nn.Hardswish,
        nn.Hardtanh,
        nn.Identity,
    ),
    *(
        nn.LeakyReLU,
        nn.LogSigmoid,
        nn.Mish,
        nn.ReLU,
        nn.ReLU6,
        nn.SELU,
        nn.SiLU,
        nn.Sigmoid,
        nn.Softplus,
        nn.Tanh,
    ),
)
_SIZES: dict[type, Callable[[Any], tuple[int, ...]]] = {
    nn.Linear: lambda layer: (1, layer.in_features),
    nn.LayerNorm: lambda layer: (1, *layer.normalized_shape),
    nn.GroupNorm: lambda layer: (1, layer.num_channels, 1, 1),
    nn.Flatten: _of_any,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _of_convolution),
    nn.AdaptiveAvgPool1d: lambda layer: (1, 1, 1),
    nn.AdaptiveAvgPool2d: _of_any,
    **dict.fromkeys(_ELEMENTWISE, _of_any),
    nn.BatchNorm1d: _of_norm(1),
    nn.BatchNorm2d: _of_norm(2),
    nn.BatchNorm3d: _of_norm(3),
    nn.MaxPool1d: _of_window(1),
    nn.AvgPool1d: _of_window(1),
    nn.MaxPool2d: _of_window(2),
    nn.AvgPool2d: _of_window(2),
}
"""Layers whose forwards do the same for all inputs that they take, and what sizes of an input they take."""

"""Learning what layers of torch record: by a trace of one of them, alone, on an input of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.capture.examples.tracer import ExampleTracer
from fxplug.capture.layer_records import LayerRecord, LayerRecords, record_of_graph
from fxplug.capture.policy import TracePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["LAYERS", "learn"]

LAYERS = LayerRecords()
"""What was learned so far."""


def learn(layers: Iterable[nn.Module]) -> None:
    """Learn what layers record, as far as that can be found out.

    Args:
        layers: Layers of torch without hooks, which only compute in the mode that they are in.

    Raises:
        MissedProgramError: It cannot be written down again.
    """
    for layer in layers:
        if LAYERS.find(layer) is None:
            LAYERS.add(layer, _record_of(layer))


def _record_of(layer: nn.Module) -> LayerRecord | None:
    """Return what a layer records; None where that hangs on more than its settings."""
    sizes = _SIZES.get(type(layer), _unknown)(layer)
    if sizes is None:
        return None
    weight = next(iter(layer.parameters()), None)
    kind: Any = {} if weight is None else {"dtype": weight.dtype, "device": weight.device}
    tracer = ExampleTracer((torch.zeros(sizes, **kind),), {}, policy=_ENTERING)
    graph = tracer.trace(layer)
    asked = tracer.asked_dimensions
    return record_of_graph(graph, asked) if len(tracer.guards) == (asked is not None) else None


_ENTERING = TracePolicy(is_leaf_module=lambda module, path, context: False)


def _unknown(layer: Any) -> None:
    return None


def _of_convolution(layer: Any) -> tuple[int, ...] | None:
    if layer.padding == "same":
        return None  # Torch may warn of it, and says so once in a process.
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
_SIZES: dict[type, Callable[[Any], tuple[int, ...] | None]] = {
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

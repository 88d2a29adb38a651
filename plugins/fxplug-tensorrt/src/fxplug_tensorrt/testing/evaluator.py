"""A test tool: computes a finished network of TensorRT layer by layer in PyTorch.

It says whether a network was written right, on a machine without a GPU. It is not TensorRT: it tells nothing about the
speed of engines, nor about how TensorRT rounds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fxplug_tensorrt.testing.formulas import FORMULAS
from fxplug_tensorrt.testing.loops import find_loops, kind_of, taken_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fxplug_tensorrt.conversion import Converted

__all__ = ["Layer", "evaluate"]


class Layer:
    """A layer of a network, with the tensors that reach it.

    Args:
        converted: Holds the network.
        layer: One of its layers.
        known: Name of a tensor -> its value.
    """

    def __init__(self, converted: Converted, layer: Any, known: Mapping[str, torch.Tensor]) -> None:
        self._kept = converted.build.kept
        self._trt = converted.build.trt
        self.kind = kind_of(self._trt, layer)
        self.name: str = layer.name
        found = [layer.get_input(number) for number in range(layer.num_inputs)]
        self.inputs = [None if tensor is None else known[tensor.name] for tensor in found]
        layer.__class__ = getattr(self._trt, _CLASSES[self.kind])
        self.layer = layer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["layer"], name)
        return value.name if hasattr(value, "name") and hasattr(type(value), "__members__") else value

    def given(self, number: int) -> torch.Tensor | None:
        """Return an input, None where there is none."""
        return self.inputs[number] if number < len(self.inputs) else None

    def weights(self, attribute: str, sizes: Sequence[int]) -> torch.Tensor | None:
        """Return weights of the layer, as the network has them."""
        found = getattr(self.layer, attribute)
        if hasattr(found, "shape"):
            return torch.tensor(found).reshape(tuple(sizes)) if found.size else None
        if not found.size:
            return None
        # The bindings show no bfloat16.
        name = self.name if attribute == "weights" else f"{self.name} {attribute}"
        return self._kept[name].reshape(tuple(sizes))

    def dtype(self, number: int = 0) -> torch.dtype:
        """Return the dtype of a result."""
        return getattr(torch, _DTYPES[self.layer.get_output(number).dtype.name])


_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "FP8": "float8_e4m3fn",
    "UINT8": "uint8",
    "BOOL": "bool",
}
_CLASSES = {
    "ACTIVATION": "IActivationLayer",
    "CAST": "ICastLayer",
    "CONCATENATION": "IConcatenationLayer",
    "CONSTANT": "IConstantLayer",
    "CONVOLUTION": "IConvolutionLayer",
    "CUMULATIVE": "ICumulativeLayer",
    "DECONVOLUTION": "IDeconvolutionLayer",
    "DEQUANTIZE": "IDequantizeLayer",
    "ELEMENTWISE": "IElementWiseLayer",
    "GATHER": "IGatherLayer",
    "GRID_SAMPLE": "IGridSampleLayer",
    "IDENTITY": "IIdentityLayer",
    "MATRIX_MULTIPLY": "IMatrixMultiplyLayer",
    "NORMALIZATION": "INormalizationLayer",
    "POOLING": "IPoolingLayer",
    "QUANTIZE": "IQuantizeLayer",
    "REDUCE": "IReduceLayer",
    "RESIZE": "IResizeLayer",
    "SCATTER": "IScatterLayer",
    "SELECT": "ISelectLayer",
    "SHAPE": "IShapeLayer",
    "SHUFFLE": "IShuffleLayer",
    "SLICE": "ISliceLayer",
    "SOFTMAX": "ISoftMaxLayer",
    "TOPK": "ITopKLayer",
    "UNARY": "IUnaryLayer",
}


def evaluate(converted: Converted, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return what a network computes of inputs: the results in the order of ``converted.outputs``.

    Args:
        converted: The network.
        inputs: Of the program that it was made of.

    Raises:
        NotImplementedError: The network has a layer that this tool does not know.
    """
    net = converted.build.net
    known: dict[str, torch.Tensor] = {}
    for place in converted.inputs:
        value = inputs[place.position]
        known[place.name] = value if place.inner is None else value[place.inner]
    layers = [net.get_layer(number) for number in range(net.num_layers)]
    loops = find_loops(converted.build.trt, layers)
    inside = {name for loop in loops for name in loop.members}

    def compute(layer: Any, known: dict[str, torch.Tensor]) -> None:
        _compute(converted, layer, known)

    steps: list[_Step] = [
        _Step(set(taken_by(layer)), partial(compute, layer)) for layer in layers if layer.name not in inside
    ]
    steps += [_Step(loop.needs, partial(loop.compute, compute=compute)) for loop in loops]
    with torch.no_grad():
        while steps:  # A layer may stand before one that it takes something of.
            ready = [step for step in steps if step.needs <= known.keys()]
            if not ready:
                raise AssertionError(f"layers wait for one another: {[step.needs for step in steps]}")
            for step in ready:
                step.compute(known)
            steps = [step for step in steps if step not in ready]
    return [known[name] for name, _ in converted.outputs]


class _Step(NamedTuple):
    needs: set[str]
    compute: Callable[[dict[str, torch.Tensor]], None]


def _compute(converted: Converted, layer: Any, known: dict[str, torch.Tensor]) -> None:
    kind = kind_of(converted.build.trt, layer)
    if kind not in _CLASSES:
        raise NotImplementedError(f"the evaluator does not know the layer {kind}")
    entry = Layer(converted, layer, known)
    made = FORMULAS[kind](entry)
    for place, value in enumerate(made if isinstance(made, tuple) else (made,)):
        output = layer.get_output(place)
        _check(entry, output, value, place)
        known[output.name] = value


def _check(layer: Layer, output: Any, value: torch.Tensor, place: int) -> None:
    """Compare with what TensorRT says of a tensor."""
    sizes = tuple(output.shape)
    fits = len(sizes) == value.dim() and all(
        size in (-1, have) for size, have in zip(sizes, value.shape, strict=True)
    )
    if not fits or value.dtype is not layer.dtype(place):
        raise AssertionError(
            f"layer {layer.name!r} ({layer.kind}) is {layer.dtype(place)} {sizes} in TensorRT and {value.dtype} "
            f"{tuple(value.shape)} in the evaluator"
        )

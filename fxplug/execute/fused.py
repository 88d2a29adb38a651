"""Convolutions and linear layers that also do what follows them, in one call of oneDNN on the CPU.

The weights of such a module are those of the layer that it stands for, as float32 parameters. Beside them there is a
copy in the order in which oneDNN reads them. It is made in the first call, belongs to one instance, is no attribute of
it, and is made anew once the weights have changed, as far as torch, or a sample of their elements, tells. Wherever
oneDNN cannot be used or does not pay, a call does what the original calls did, one after the other.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional

from fxplug.errors import InvalidArgumentError, did_you_mean
from fxplug.execute.graph_module import GraphModule
from fxplug.execute.packed import has_no_gaps, packed_weight
from fxplug.ir import PURE, Effect, Graph, effects, writes
from fxplug.semantics.internals import (
    OneDnnOperators,
    is_differentiating,
    is_listened_to,
    onednn_operators,
    parameter_of,
    with_data,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fxplug.ir import Node

__all__ = [
    "ACTIVATIONS",
    "FUSED_MODULES",
    "FusedConv1d",
    "FusedConv2d",
    "FusedConv3d",
    "FusedLayer",
    "FusedLinear",
    "onednn_fault",
    "padding_of",
]


class _Activation(NamedTuple):
    """How an activation is computed with and without oneDNN."""

    function: Callable[..., torch.Tensor]
    """Takes a tensor, and the numbers that belong to the activation."""
    attribute: str
    """How oneDNN's operators call it."""
    algorithm: str = ""
    """Which of several ways they are to go."""


def _gelu_by_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, _Activation] = {
    "relu": _Activation(torch.relu, "relu"),
    "sigmoid": _Activation(torch.sigmoid, "sigmoid"),
    "tanh": _Activation(torch.tanh, "tanh"),
    "silu": _Activation(functional.silu, "swish"),
    "hardswish": _Activation(functional.hardswish, "hardswish"),
    "hardsigmoid": _Activation(functional.hardsigmoid, "hardsigmoid"),
    "leaky_relu": _Activation(functional.leaky_relu, "leaky_relu"),
    "hardtanh": _Activation(functional.hardtanh, "hardtanh"),
    "gelu": _Activation(functional.gelu, "gelu", "none"),
    "gelu_tanh": _Activation(_gelu_by_tanh, "gelu", "tanh"),
}
"""What can follow a layer in the same call."""


_PLAIN = frozenset({torch.Tensor, nn.Parameter})


def _is_usual(tensor: Any) -> bool:
    return (
        type(tensor) in _PLAIN
        and tensor.dtype is torch.float32
        and tensor.layout is torch.strided
        and tensor.is_cpu
    )


def _is_ordinary_run() -> bool:
    """Return whether calls are just to be computed: not traced, cast, or differentiated in another way."""
    return not (
        torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or torch.is_autocast_enabled("cpu")
        or is_differentiating()
        or is_listened_to()
        or not torch.backends.mkldnn.enabled
    )


class FusedLayer(nn.Module):
    """A layer with what follows it: the sum with another tensor, and an activation.

    Its parameters are those of `layer`, the very objects, under the same names.

    Args:
        layer: What comes first.
        activation: A key of `ACTIVATIONS`, or empty.
        numbers: What belongs to the activation: a slope, or a lower and an upper limit.
        add: Whether calls have a second argument, which is added before the activation.
        in_place: Whether the sum is written into the value of the layer, which then decides on dtype and shape.
        reuse: Whether a call may write its result into the second argument.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        layer: nn.Module,
        activation: str = "",
        numbers: Sequence[float] = (),
        *,
        add: bool = False,
        in_place: bool = False,
        reuse: bool = False,
    ) -> None:
        super().__init__()
        if activation and activation not in ACTIVATIONS:
            raise InvalidArgumentError(
                f"Cannot fuse {activation!r} with a layer. {did_you_mean(activation, tuple(ACTIVATIONS))}"
            )
        self.weight = cast("nn.Parameter", layer.weight)
        self.register_parameter("bias", cast("nn.Parameter | None", layer.bias))
        self.activation = activation
        self.numbers = tuple(numbers)
        self.add = add
        self.in_place = in_place
        self.reuse = reuse
        self.train(layer.training)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """Return the activation of the sum of the layer's value and `other`."""
        result = None
        if not torch.compiler.is_compiling() and self._takes(x, other):
            result = self.apply_onednn(onednn_operators(), x, other)
        return self._finished(self.compose(x, other), None) if result is None else self._finished(result, x)

    def _takes(self, x: torch.Tensor, other: torch.Tensor | None) -> bool:
        """Return whether oneDNN can be called for these values."""
        if (other is None) is self.add:
            return False
        weight = parameter_of(self, "weight")
        differentiable = torch.is_grad_enabled()
        for value in (x, weight, parameter_of(self, "bias"), other):
            if value is not None and (not _is_usual(value) or (differentiable and value.requires_grad)):
                return False
        if x.is_nested:  # They say that they are strided.
            return False
        return _is_ordinary_run() and self._fits(x, weight) and has_no_gaps(weight) and not onednn_fault()

    def compose(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """Do without oneDNN: the layer, and what follows it, one call after the other."""
        return self._end(self._layer(x), other)

    def apply_onednn(
        self, operators: OneDnnOperators, x: torch.Tensor, other: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Call an operator of oneDNN; return None where changes of the weight would go unnoticed."""
        weight = self._weight_for(operators, x)
        if weight is None:
            return None
        if other is None:
            return self._run(operators, x, weight, self.activation)
        if other.shape != self._output_shape(x, parameter_of(self, "weight")):
            return self._end(self._run(operators, x, weight, ""), other)
        return self._run_sum(operators, x, other, weight)

    def _weight_for(self, operators: OneDnnOperators, x: torch.Tensor) -> torch.Tensor | None:
        return packed_weight(self, parameter_of(self, "weight"), lambda: self._pack(operators, x))

    def __prepare_scriptable__(self) -> nn.Module:
        """Return what TorchScript compiles in this module's place: the original calls, one after the other."""
        graph = Graph()
        value, *others = (graph.placeholder(name) for name in ("x", *(("other",) if self.add else ())))
        bias = None if parameter_of(self, "bias") is None else graph.get_attr("bias")
        value = graph.call_function(
            type(self).function, (value, graph.get_attr("weight"), bias, *self._geometry())
        )
        for other in others:
            value = (
                graph.call_method("add_", (value, other))
                if self.in_place
                else graph.call_function(torch.add, (value, other))
            )
        if self.activation:
            value = graph.call_function(ACTIVATIONS[self.activation].function, (value, *self.numbers))
        graph.output(self._note_order(graph, value))
        return GraphModule(self, graph).__prepare_scriptable__()

    def _end(self, value: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
        """Do what follows the layer, one call after the other."""
        if (other is None) is self.add:
            raise InvalidArgumentError(
                f"Cannot call a {type(self).__name__} with {'one argument' if self.add else 'two arguments'}: it was "
                f"made with add={self.add}. Give it {'also what is to be added' if self.add else 'one argument'}."
            )
        if other is not None:
            value = value.add_(other) if self.in_place else value + other
        return self._activated(value)

    def _activated(self, value: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS[self.activation].function(value, *self.numbers) if self.activation else value

    def _finished(self, value: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        """Return a value in the order that it is to have; `x` is None where the original calls have made it."""
        return value

    def _post_operation(self, activation: str) -> tuple[str, list[float], str]:
        if not activation:
            return "none", [], ""
        entry = ACTIVATIONS[activation]
        return entry.attribute, list(self.numbers), entry.algorithm

    def _settings(self) -> str:
        """Return what follows the layer, for `repr`."""
        parts = [f"activation={self.activation!r}"] if self.activation else []
        if self.numbers:
            parts.append(f"numbers={self.numbers}")
        return "".join(
            f", {part}" for part in (*parts, *(name + "=True" for name in _FLAGS if getattr(self, name)))
        )

    # -- what layers differ in

    function: ClassVar[Callable[..., torch.Tensor]]
    """What computes the layer."""

    def _geometry(self) -> tuple[Any, ...]:
        """Return what it is given besides the input and the parameters."""
        return ()

    def _note_order(self, graph: Graph, value: Node) -> Node:
        """Record what `_finished` does where the original calls have made a value."""
        return value

    def _layer(self, x: torch.Tensor) -> torch.Tensor:
        return type(self).function(x, self.weight, self.bias, *self._geometry())

    def _fits(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        raise NotImplementedError

    def _output_shape(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[int, ...]:
        raise NotImplementedError

    def _pack(self, operators: OneDnnOperators, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _run(
        self, operators: OneDnnOperators, x: torch.Tensor, weight: torch.Tensor, activation: str
    ) -> torch.Tensor:
        raise NotImplementedError

    def _run_sum(
        self, operators: OneDnnOperators, x: torch.Tensor, other: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        raise NotImplementedError


_FLAGS = ("add", "in_place", "reuse")


class _FusedConvolution(FusedLayer):
    """A convolution with what follows it.

    oneDNN reads and writes images with the channels last. `layout` says what becomes of that: ``"any"`` leaves them so,
    for consumers that do not mind; ``"contiguous"`` puts them back into the usual order, and ``"input"`` does so where
    the input has that order.
    """

    _channels_last: ClassVar[torch.memory_format]

    def __init__(
        self,
        layer: nn.Conv1d | nn.Conv2d | nn.Conv3d,
        activation: str = "",
        numbers: Sequence[float] = (),
        *,
        add: bool = False,
        in_place: bool = False,
        reuse: bool = False,
        layout: str = "input",
    ) -> None:
        super().__init__(layer, activation, numbers, add=add, in_place=in_place, reuse=reuse)
        self.in_channels = layer.in_channels
        self.out_channels = layer.out_channels
        self.kernel_size = layer.kernel_size
        self.stride = layer.stride
        self.padding = padding_of(layer) or (0,) * len(layer.kernel_size)
        self.dilation = layer.dilation
        self.groups = layer.groups
        self.layout = layout

    def extra_repr(self) -> str:
        """Return the settings."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, "
            f"bias={self.bias is not None}{self._settings()}, layout={self.layout!r}"
        )

    def _geometry(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.groups

    def _fits(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        shape = x.shape
        fits = len(shape) == weight.dim() and shape[1] == self.in_channels
        if not fits:
            return False
        # Of one dimension, images have one order alone.
        converts = self.layout != "any" and x.dim() > 3 and not _is_like_channels_last(x)
        return _is_worthwhile(shape, weight.shape, self._steps(), converts=converts)

    def _output_shape(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[int, ...]:
        return _convolved_shape(x.shape, weight.shape, *self._steps())

    def _steps(self) -> tuple[tuple[int, ...], ...]:
        # Layers may be given lists, which PyTorch takes as well; a tuple of a tuple is the same one.
        return tuple(self.stride), tuple(self.padding), tuple(self.dilation)

    def _finished(self, value: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        if self.layout == "any" or (self.layout == "input" and self._has_channels_last(x)):
            return value
        return value.contiguous()

    def _note_order(self, graph: Graph, value: Node) -> Node:
        return graph.call_method("contiguous", (value,)) if self.layout == "contiguous" else value

    def _has_channels_last(self, x: torch.Tensor | None) -> bool:
        """Return whether the plain call leaves its value in the order that it has, as torch decides it."""
        return x is None or any(_is_like_channels_last(given) for given in (x, self.weight))

    def _pack(self, operators: OneDnnOperators, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return operators.pack_convolution(
                self.weight, self.padding, self.stride, self.dilation, self.groups, x.shape
            )

    def _run(
        self, operators: OneDnnOperators, x: torch.Tensor, weight: torch.Tensor, activation: str
    ) -> torch.Tensor:
        return operators.convolution(
            *(x, weight, parameter_of(self, "bias"), self.padding, self.stride, self.dilation, self.groups),
            *self._post_operation(activation),
        )

    def _run_sum(
        self, operators: OneDnnOperators, x: torch.Tensor, other: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        bias = parameter_of(self, "bias")
        geometry = (weight, bias, self.padding, self.stride, self.dilation, self.groups)
        ending = ("add", 1.0, "relu" if self.activation == "relu" else None, [], None)
        if self.reuse and other is not x and other.is_contiguous(memory_format=self._channels_last):
            value = operators.convolution_sum_(other, x, *geometry, *ending)
        else:
            value = operators.convolution_sum(x, other, *geometry, *ending)
        return value if self.activation == "relu" else self._activated(value)


@functools.lru_cache(maxsize=4096)
def _is_worthwhile(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    geometry: tuple[tuple[int, ...], ...],
    *,
    converts: bool,
) -> bool:
    """Return whether a convolution has a value, and one for which calling oneDNN pays.

    Calling it takes longer than a plain convolution. Where the image has to be put into the order with channels last
    for this one call, and the value back, there has to be more to gain: plain calls put the weight into another order
    each time, which these do not.

    Args:
        shape: Of the image.
        weight: Shape of the weight.
        geometry: Stride, padding and dilation.
        converts: Whether image and value are both put into another order.
    """
    if 0 in shape:
        return False
    value = _convolved_shape(shape, weight, *geometry)
    if min(value[2:]) <= 0 or math.prod(value) * math.prod(weight[1:]) < _WORTHWHILE:
        return False
    return not converts or math.prod(weight) >= math.prod(shape) + math.prod(value)


@functools.lru_cache(maxsize=4096)
def _convolved_shape(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the shape of a convolution's value; every call asks, and a program has few different answers."""
    sizes = zip(shape[2:], weight[2:], stride, padding, dilation, strict=True)
    spatial = ((n + 2 * pad - gap * (k - 1) - 1) // step + 1 for n, k, step, pad, gap in sizes)
    return (shape[0], weight[0], *spatial)


def _is_like_channels_last(tensor: torch.Tensor) -> bool:
    """Return whether torch takes the strides of an image for those of channels last, also where there are gaps."""
    if tensor.dim() not in {4, 5}:
        return False
    shape, strides = tensor.shape, tensor.stride()
    if strides[1] == 0:
        return False
    least = 0
    for dimension in (1, *range(tensor.dim() - 1, 1, -1), 0):
        size, stride = shape[dimension], strides[dimension]
        if size == 0 or stride < least or (dimension == 0 and least == strides[1]):
            return False
        least = stride * size if size > 1 else stride
    return True


class FusedConv1d(_FusedConvolution):
    """A convolution over one dimension with the activation that follows it; its weight is not packed."""

    function = functional.conv1d

    def _weight_for(self, operators: OneDnnOperators, x: torch.Tensor) -> torch.Tensor | None:
        return self.weight  # oneDNN's operators pack none of this rank.

    def _run_sum(
        self, operators: OneDnnOperators, x: torch.Tensor, other: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        return self._end(self._run(operators, x, weight, ""), other)


class FusedConv2d(_FusedConvolution):
    """A convolution over two dimensions with the sum and the activation that follow it."""

    function = functional.conv2d
    _channels_last = torch.channels_last


class FusedConv3d(_FusedConvolution):
    """A convolution over three dimensions with the sum and the activation that follow it."""

    function = functional.conv3d
    _channels_last = torch.channels_last_3d


class FusedLinear(FusedLayer):
    """A linear layer with the sum or the activation that follows it.

    Small products, and those with a single row, are left to the original calls, which are faster there.
    """

    function = functional.linear

    def __init__(
        self,
        layer: nn.Linear,
        activation: str = "",
        numbers: Sequence[float] = (),
        *,
        add: bool = False,
        in_place: bool = False,
    ) -> None:
        super().__init__(layer, activation, numbers, add=add, in_place=in_place)
        self.in_features = layer.in_features
        self.out_features = layer.out_features

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}{self._settings()}"

    def _fits(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        if x.dim() < 2 or x.shape[-1] != self.in_features:
            return False
        work = x.numel() * self.out_features
        return work >= _WORTHWHILE and x.numel() > self.in_features

    def _output_shape(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[int, ...]:
        return (*x.shape[:-1], weight.shape[0])

    def _pack(self, operators: OneDnnOperators, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return operators.pack_linear(self.weight, x.numel() // self.in_features)

    def _run(
        self, operators: OneDnnOperators, x: torch.Tensor, weight: torch.Tensor, activation: str
    ) -> torch.Tensor:
        return operators.linear(x, weight, self.bias, *self._post_operation(activation))

    def _run_sum(
        self, operators: OneDnnOperators, x: torch.Tensor, other: torch.Tensor, weight: torch.Tensor
    ) -> torch.Tensor:
        return self._activated(operators.linear_sum(x, other, weight, self.bias, "add"))


_WORTHWHILE = 1 << 22
"""Multiply-adds from which on oneDNN takes less time, about."""

FUSED_MODULES: dict[type[nn.Module], type[FusedLayer]] = {
    nn.Conv1d: FusedConv1d,
    nn.Conv2d: FusedConv2d,
    nn.Conv3d: FusedConv3d,
    nn.Linear: FusedLinear,
}
"""Class of a layer -> that of what takes its place."""


def padding_of(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> tuple[int, ...] | None:
    """Return by how much a convolution pads each dimension on both sides; None where the sides differ."""
    if layer.padding == "valid":
        return (0,) * len(layer.kernel_size)
    if layer.padding == "same":
        totals = [gap * (size - 1) for size, gap in zip(layer.kernel_size, layer.dilation, strict=True)]
        return None if any(total % 2 for total in totals) else tuple(total // 2 for total in totals)
    return cast("tuple[int, ...]", layer.padding)


@functools.cache
def onednn_fault() -> str:
    """Return why the operators of oneDNN cannot be used in this process, empty if they can.

    They are run once, on small values, and compared with the plain calls; outside of the caller's autocast, since the
    answer is kept.
    """
    if not torch.backends.mkldnn.is_available():
        return "this build of PyTorch has no oneDNN"
    try:
        with torch.no_grad(), with_data(), torch.autocast("cpu", enabled=False):
            wrong = _wrong_operator(onednn_operators())
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return f"they fail here: {str(error).splitlines()[0]}" if str(error) else "they fail here"
    return f"what {wrong} computes is wrong" if wrong else ""


def _wrong_operator(operators: OneDnnOperators) -> str:
    """Return what is computed wrongly, empty if nothing is."""
    kinds: dict[type[nn.Module], Any] = {**FUSED_MODULES}
    for kind, fused_kind in kinds.items():
        layer, x = _example(kind)
        for name, numbers in _ENDINGS.items():
            fused = fused_kind(layer, name, numbers)
            value = fused.apply_onednn(operators, x)
            if value is None or not torch.allclose(value, fused.compose(x), 1e-4, 1e-5):
                return f"{kind.__name__} with {name or 'nothing'}"
        other = layer(x).flip(0) + 0.25
        for settings in _sums(fused_kind):
            fused = fused_kind(layer, "relu", add=True, **settings)
            value, expected = fused.apply_onednn(operators, x, other.clone()), fused.compose(x, other.clone())
            if value is None or not torch.allclose(value, expected, 1e-4, 1e-5):
                return f"{kind.__name__} with a sum"
    return ""


_ENDINGS = {"": (), **dict.fromkeys(ACTIVATIONS, ()), "leaky_relu": (0.1,), "hardtanh": (-0.5, 0.75)}


_RANKS: dict[type[nn.Module], int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}


def _sums(kind: type[FusedLayer]) -> list[dict[str, bool]]:
    return [{}] if kind in {FusedConv1d, FusedLinear} else [{}, {"reuse": True}]


def _example(kind: type[nn.Module]) -> tuple[Any, torch.Tensor]:
    """Return a small layer and an input, without random numbers."""
    if kind is nn.Linear:
        layer, shape = nn.Linear(5, 6, device="meta"), (4, 5)
    else:
        layer, shape = kind(3, 4, 3, padding=1, device="meta"), (2, 3, *(5,) * _RANKS[kind])
    # Neither to_empty() nor skip_init(): what PyTorch does for a copy from `meta` imports SymPy, which takes a second.
    for name, parameter in list(layer.named_parameters()):
        setattr(layer, name, nn.Parameter(_wave(parameter.shape)))
    x = _wave(shape)
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    return layer, x.contiguous(memory_format=memory_format)


def _wave(shape: Sequence[int]) -> torch.Tensor:
    count = math.prod(shape)
    return torch.arange(count, dtype=torch.float32).mul(0.7).sin().reshape(tuple(shape))


def _effect(_: Node, module: Any) -> Effect:
    return writes(1) if module.add and module.reuse else PURE


for _kind in FUSED_MODULES.values():
    effects.register_target(_kind, _effect)

"""Shape functions of layers: what the forwards of torch's layers return, told from their settings and weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fxplug.semantics.shapes.abstract import AbstractTensor, UnknownShapeError, is_in_order, sizes_of_weight
from fxplug.semantics.shapes.joining import looked_up
from fxplug.semantics.shapes.networks import (
    Kernel,
    adaptively_pooled,
    convolved,
    folded,
    group_normed,
    interpolated,
    layer_normed,
    linearly_mapped,
    normed_by_squares,
    normed_with_statistics,
    pooled,
    transposed_convolved,
    unfolded,
)
from fxplug.semantics.shapes.operands import is_number, is_positive, new_tensor
from fxplug.semantics.shapes.pointwise import (
    bent,
    bent_by_slope,
    bent_softly,
    bent_to_limit,
    elementwise,
    gated,
    in_place,
    softened,
)
from fxplug.semantics.shapes.views import flattened

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LAYERS", "shape_of_layer"]


def shape_of_layer(layer: nn.Module, given: Any, dtype: torch.dtype) -> AbstractTensor:
    """Return what the forward of a layer returns.

    Args:
        layer: A layer that is no container and has torch's own forward.
        given: Its only input.
        dtype: What all tensors of the program have.

    Raises:
        UnknownShapeError: Nothing is known of the layer.
        Exception: It cannot be told what it returns, or whether it raises an error.
    """
    return LAYERS[layer.__class__](layer, given, dtype)


def _optional(weight: Any, dtype: torch.dtype) -> torch.Size | None:
    return None if weight is None else sizes_of_weight(weight, dtype)


def _weights_of(layer: nn.Module) -> tuple[Any, Any]:
    """Return the weight and the bias of a layer, of which its forward reads them.

    Asking the layer itself takes longer: it looks for what it has in three tables.
    """
    own = layer.__dict__
    if "weight" in own or "bias" in own:
        raise UnknownShapeError
    parameters = own["_parameters"]
    return parameters["weight"], parameters["bias"]


def _convolution(dims: int) -> Callable[[Any, Any, torch.dtype], AbstractTensor]:
    def apply(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
        own, (weight, bias) = layer.__dict__, _weights_of(layer)
        if own["padding_mode"] != "zeros" or len(x.sizes) != dims + 2:
            raise UnknownShapeError
        sizes, offset = sizes_of_weight(weight, dtype), _optional(bias, dtype)
        kernel = Kernel(sizes, offset, own["stride"], own["padding"], own["dilation"], own["groups"])
        return convolved(x, kernel, is_contiguous=is_in_order(weight))

    return apply


def _transposed_convolution(dims: int) -> Callable[[Any, Any, torch.dtype], AbstractTensor]:
    def apply(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
        is_usual = layer.padding_mode == "zeros" and isinstance(layer.padding, tuple)
        if len(x.sizes) != dims + 2 or not is_usual:
            raise UnknownShapeError
        weight, bias = _weights_of(layer)
        sizes, offset = sizes_of_weight(weight, dtype), _optional(bias, dtype)
        kernel = Kernel(sizes, offset, layer.stride, layer.padding, layer.dilation, layer.groups)
        return transposed_convolved(x, kernel, layer.output_padding)

    return apply


def _batch_norm(*ranks: int) -> Callable[[Any, Any, torch.dtype], AbstractTensor]:
    def apply(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
        own, (weight, bias) = layer.__dict__, _weights_of(layer)
        if own["training"] or len(x.sizes) not in ranks or not is_positive(own["eps"]):
            raise UnknownShapeError
        if "running_mean" in own or "running_var" in own or type(own["momentum"]) not in _MOMENTA:
            raise UnknownShapeError
        buffers = own["_buffers"]
        # Torch computes no gradients for them.
        if buffers["running_mean"].requires_grad or buffers["running_var"].requires_grad:
            raise UnknownShapeError
        mean, variance = (
            sizes_of_weight(buffers["running_mean"], dtype),
            sizes_of_weight(buffers["running_var"], dtype),
        )
        return normed_with_statistics(x, (mean, variance), _optional(weight, dtype), _optional(bias, dtype))

    return apply


def _layer_norm(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    own, (weight, bias) = layer.__dict__, _weights_of(layer)
    sizes, offset = _optional(weight, dtype), _optional(bias, dtype)
    return layer_normed(x, own["normalized_shape"], sizes, offset, own["eps"])


def _group_norm(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    weight, bias = _weights_of(layer)
    sizes, offset = _optional(weight, dtype), _optional(bias, dtype)
    return group_normed(x, layer.num_groups, sizes, offset, layer.eps)


def _linear(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    weight, bias = _weights_of(layer)
    return linearly_mapped(x, sizes_of_weight(weight, dtype), _optional(bias, dtype))


def _activation(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return in_place(x) if layer.__dict__.get("inplace", False) else elementwise(x)


def _relu6(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    if (layer.min_val, layer.max_val) != (0, _SIX):
        raise UnknownShapeError
    return _activation(layer, x, dtype)


def _bent(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return bent(x, approximate=layer.approximate)


def _bent_by_slope(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return bent_by_slope(x, layer.negative_slope, layer.inplace)


def _embedding(layer: Any, indices: Any, dtype: torch.dtype) -> AbstractTensor:
    padding, table = layer.padding_idx, sizes_of_weight(layer.weight, dtype)
    matrix = 2
    is_usual = padding is None or (type(padding) is int and -table[0] <= padding < table[0])
    is_usual = is_usual and type(layer.sparse) is type(layer.scale_grad_by_freq) is bool
    if layer.max_norm is not None or len(table) != matrix or not is_usual:
        raise UnknownShapeError
    return new_tensor(looked_up(indices, table).sizes, "contiguous")


def _softmax(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return softened(x, layer.dim)


def _unchanged(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    if x.__class__ is not AbstractTensor:
        raise UnknownShapeError
    return x


def _dropout(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    if layer.training or not is_number(layer.p) or not 0 <= layer.p <= 1 or type(layer.inplace) is not bool:
        raise UnknownShapeError
    return _unchanged(layer, x, dtype)  # It writes nothing outside of training, in place or not.


def _flatten(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return flattened(x, layer.start_dim, layer.end_dim)


def _max_pooling(dims: int) -> Callable[[Any, Any, torch.dtype], AbstractTensor]:
    def apply(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
        if layer.return_indices:
            raise UnknownShapeError
        settings = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        return pooled(x, settings, dims, ceil_mode=layer.ceil_mode)

    return apply


def _average_pooling(dims: int) -> Callable[[Any, Any, torch.dtype], AbstractTensor]:
    def apply(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
        if layer.__dict__.get("divisor_override") is not None or type(layer.count_include_pad) is not bool:
            raise UnknownShapeError
        return pooled(x, (layer.kernel_size, layer.stride, layer.padding, 1), dims, ceil_mode=layer.ceil_mode)

    return apply


def _adaptive_pooling(dims: int) -> Callable[[Any, Any, torch.dtype], AbstractTensor]:
    return lambda layer, x, _: adaptively_pooled(x, layer.output_size, dims)


def _upsampling(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return interpolated(
        x, layer.size, layer.scale_factor, layer.mode, layer.align_corners, layer.recompute_scale_factor
    )


def _pixel_shuffle(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    batch, channels, height, width = x.sizes
    factor = layer.upscale_factor
    if type(factor) is not int or factor < 1 or channels % factor**2:
        raise UnknownShapeError
    return AbstractTensor((batch, channels // factor**2, height * factor, width * factor), "unknown", "own")


def _bent_to_limit(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return bent_to_limit(x, layer.alpha, layer.inplace)


def _bent_softly(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return bent_softly(x, layer.beta, layer.threshold)


def _gated(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return gated(x, layer.dim)


def _rms_norm(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return normed_by_squares(x, layer.normalized_shape, _optional(layer.weight, dtype), layer.eps)


def _unfold(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return unfolded(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)


def _fold(layer: Any, x: Any, dtype: torch.dtype) -> AbstractTensor:
    return folded(x, layer.output_size, layer.kernel_size, layer.dilation, layer.padding, layer.stride)


_MOMENTA = frozenset({float, int, type(None)})
_SIX = 6
_ACTIVATIONS = (*(nn.Hardsigmoid, nn.Hardswish, nn.Mish, nn.ReLU, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Tanh),)

LAYERS: dict[type[nn.Module], Callable[[Any, Any, torch.dtype], AbstractTensor]] = {
    **dict.fromkeys(_ACTIVATIONS, _activation),
    nn.AdaptiveAvgPool1d: _adaptive_pooling(1),
    nn.AdaptiveAvgPool2d: _adaptive_pooling(2),
    nn.AdaptiveAvgPool3d: _adaptive_pooling(3),
    nn.AvgPool1d: _average_pooling(1),
    nn.AvgPool2d: _average_pooling(2),
    nn.BatchNorm1d: _batch_norm(2, 3),
    nn.BatchNorm2d: _batch_norm(4),
    nn.BatchNorm3d: _batch_norm(5),
    nn.Conv1d: _convolution(1),
    nn.Conv2d: _convolution(2),
    nn.Conv3d: _convolution(3),
    nn.ConvTranspose1d: _transposed_convolution(1),
    nn.ConvTranspose2d: _transposed_convolution(2),
    nn.Dropout: _dropout,
    nn.ELU: _bent_to_limit,
    nn.Embedding: _embedding,
    nn.Flatten: _flatten,
    nn.Fold: _fold,
    nn.GELU: _bent,
    nn.GLU: _gated,
    nn.GroupNorm: _group_norm,
    nn.Identity: _unchanged,
    nn.LayerNorm: _layer_norm,
    nn.LeakyReLU: _bent_by_slope,
    nn.Linear: _linear,
    nn.LogSoftmax: _softmax,
    nn.MaxPool1d: _max_pooling(1),
    nn.MaxPool2d: _max_pooling(2),
    nn.MaxPool3d: _max_pooling(3),
    nn.ReLU6: _relu6,
    nn.PixelShuffle: _pixel_shuffle,
    nn.RMSNorm: _rms_norm,
    nn.Softmax: _softmax,
    nn.Softplus: _bent_softly,
    nn.Unfold: _unfold,
    nn.Upsample: _upsampling,
}
"""Class of layers -> the shape function of their forwards: it takes a layer, what that is given, and the dtype."""

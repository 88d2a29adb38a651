"""What operators of PyTorch take on the CPU while they run and give back before they return.

No tensor tells of it. The figures are those of the kernels that PyTorch chooses for the CPU, most of them oneDNN's:
copies of inputs, weights and results in blocked layouts, unfolded windows, attention weights, gates. They were found by
watching the allocator, and are estimates: another processor, or another PyTorch, may take more or less. Operators that
are not here, and other devices, count nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from fxplug.semantics.internals import OpOverload, flatten_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["workspace_of"]

_BLOCK = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8
"""Channels that oneDNN keeps together."""
_LARGE = 20480
"""Elements from which on PyTorch takes oneDNN for one picture."""


def workspace_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int:
    """Return the most bytes that an operator takes while it runs, its result included; 0 where nothing is known.

    Args:
        func: An overload.
        args: As it is called; tensors need no data.
        kwargs: Likewise.
        result: What it has returned.
    """
    if not isinstance(func, OpOverload):
        return 0
    estimate = _ESTIMATES.get(func.name().partition(".")[0])
    if estimate is None:
        return 0
    tensors = [leaf for leaf in flatten_tree(result)[0] if isinstance(leaf, torch.Tensor)]
    if not tensors or tensors[0].device.type != "cpu" or not tensors[0].numel():
        return 0
    try:
        return estimate(args, dict(kwargs), sum(map(_bytes, tensors)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return 0  # Called in a form that is not known here.


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


# -- convolutions ----------------------------------------------------------------------------------------------------


def _convolution(args: tuple[Any, ...], _: Mapping[str, Any], given_back: int) -> int:
    given, weight, _, stride, _, dilation, is_transposed = args[:7]
    groups = args[8]
    if not _is_blocked(given, weight, stride, dilation, groups):
        return given_back + _unfolded(given, weight, given_back, is_transposed=is_transposed)
    if is_transposed:
        return max(_bytes(given) + _bytes(weight) + given_back, 3 * given_back)
    inputs, outputs = weight.shape[1] * groups, weight.shape[0]
    # Weights have other orders for oneDNN in any case; what has few channels is read as it is.
    weights = _bytes(weight) * _rounded(outputs) // outputs if groups == 1 else _bytes(weight)
    if _channels_last(given) or _channels_last(weight):
        return given_back + weights
    copied = _bytes(given) * _rounded(inputs) // inputs if inputs >= _BLOCK else 0
    blocked = given_back * _rounded(outputs) // outputs
    gathered = 0
    if weight.shape[2:].numel() == 1:
        # Each thread gathers what a window of one element steps over.
        skipped = math.prod(stride)
        gathered = _bytes(given) // skipped * torch.get_num_threads() if skipped > 1 else 0
    return max(copied + weights + gathered + blocked, blocked + given_back)


def _rounded(channels: int) -> int:
    return -(-channels // _BLOCK) * _BLOCK


def _channels_last(tensor: torch.Tensor) -> bool:
    if tensor.dim() != 4 or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=torch.channels_last)


def _is_blocked(given: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any, groups: int) -> bool:
    """Return whether oneDNN computes a convolution; PyTorch itself computes small ones."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if 0 in given.shape or 0 in weight.shape:
        return False
    if given.dtype is not torch.float32:
        return given.dtype in {torch.bfloat16, torch.float16}
    windows = weight.shape[2:]
    is_plain = math.prod(windows) == 1 and set(stride) <= {1} and set(dilation) <= {1}
    if is_plain and given.shape[0] < _BLOCK and torch.get_num_threads() == 1:
        return False
    is_wide = len(windows) > 1 and all(size > 3 for size in windows[-2:])
    return groups > 1 or is_wide or given.shape[0] > 1 or math.prod(given.shape[:4]) > _LARGE


def _unfolded(given: torch.Tensor, weight: torch.Tensor, given_back: int, *, is_transposed: bool) -> int:
    """Return the bytes of the windows that a convolution makes a matrix of."""
    windows = weight.shape[2:].numel()
    if is_transposed:
        return given.shape[2:].numel() * weight.shape[1] * windows * given.dtype.itemsize
    if windows == 1 or not weight.shape[0]:
        return 0
    return given_back // weight.shape[0] * weight.shape[1] * windows


# -- attention -------------------------------------------------------------------------------------------------------


def _flash_attention(args: tuple[Any, ...], _: Mapping[str, Any], given_back: int) -> int:
    query, key = args[:2]
    length, width = query.shape[-2:]
    rows = 256 if length >= 768 else 64 if length >= 192 else 32
    rows, columns = min(rows, length), min(512, key.shape[-2])
    each = rows * columns + 2 * rows + rows * width
    return given_back + 4 * each * torch.get_num_threads()


def _attention(query: torch.Tensor, heads: int, *, keeps_weights: bool) -> int:
    size = _bytes(query)
    weights = query.shape[0] * heads * query.shape[1] ** 2 * query.dtype.itemsize
    # Projections with and without bias, then attention weights beside the projections.
    return max(6 * size, 3 * size + weights + (2 * size if keeps_weights else 0))


def _multi_head_attention(args: tuple[Any, ...], kwargs: Mapping[str, Any], _: int) -> int:
    by_place = dict(enumerate(args))
    keeps = kwargs.get("need_weights", by_place.get(10, True))
    return _attention(by_place[0], by_place[4], keeps_weights=bool(keeps))


def _encoder_layer(args: tuple[Any, ...], _: Mapping[str, Any], given_back: int) -> int:
    hidden = given_back // max(args[1], 1) * args[14].shape[0]
    return max(_attention(args[0], args[2], keeps_weights=False), 2 * given_back + hidden)


# -- recurrent layers ------------------------------------------------------------------------------------------------


def _recurrent_layer(args: tuple[Any, ...], _: Mapping[str, Any], given_back: int) -> int:
    given, weights = args[0], args[1:5]
    gates, hidden = weights[1].shape
    unrolled = given.shape[:2].numel() * gates * 4
    # What is wider than the state is copied.
    copied = _bytes(given) if given.shape[-1] > hidden else 0
    return given_back + sum(map(_bytes, weights[:3])) + unrolled + copied + _STATES


_STATES = 2**15
"""Bytes for the states of a few steps."""


# -- pictures --------------------------------------------------------------------------------------------------------


def _upsampling(args: tuple[Any, ...], _: Mapping[str, Any], given_back: int) -> int:
    given: torch.Tensor = args[0]
    scales: Any = args[-1]
    sizes: list[int] = args[1] or [int(size * scales[0]) for size in given.shape[2:]]
    is_copied = given.shape[1] > 1 and sum(sizes) <= 128 and not _channels_last(given)
    return 2 * given_back + _bytes(given) if is_copied else 0


_ESTIMATES: dict[str, Callable[[tuple[Any, ...], Mapping[str, Any], int], int]] = {
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "aten::_native_multi_head_attention": _multi_head_attention,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::upsample_bilinear2d": _upsampling,
    "aten::upsample_nearest2d": _upsampling,
}

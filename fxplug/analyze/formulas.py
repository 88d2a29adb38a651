"""What the calls of torch cost, counted from shapes."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.analyze.cost import CallCost, FlopFormulaRecord, OperatorCall, tensors_in
from fxplug.analyze.shapes import TensorMetadata
from fxplug.semantics.checks import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    Formula = Callable[[OperatorCall], int | CallCost | None]

__all__ = ["builtin_formulas"]


# -- products


def _shape(value: Any) -> torch.Size | None:
    return value.shape if isinstance(value, (TensorMetadata, torch.Tensor)) else None


def _weight_shape(call: OperatorCall, position: int = 1) -> torch.Size | None:
    if call.module is not None:
        return _shape(getattr(call.module, "weight", None))
    return _shape(call.argument(position, "weight"))


def _convolution(call: OperatorCall) -> int | None:
    weight = _weight_shape(call)
    return None if weight is None else call.elements() * weight[1:].numel()


def _transposed_convolution(call: OperatorCall) -> int | None:
    weight, given = _weight_shape(call), _shape(call.argument(0, "input"))
    return None if weight is None or given is None else given.numel() * weight[1:].numel()


def _linear(call: OperatorCall) -> int | None:
    weight = _weight_shape(call)
    return None if weight is None else call.elements() * weight[-1]


def _product(call: OperatorCall) -> int | None:
    left = _shape(call.argument(0, "input"))
    return None if left is None else call.elements() * left[-1]


def _product_and_sum(call: OperatorCall) -> int | None:
    left = _shape(call.argument(1, "mat1", call.kwargs.get("batch1")))
    return None if left is None else call.elements() * left[-1]


def _attention(call: OperatorCall) -> int | None:
    query, key, value = (
        _shape(call.argument(place, name)) for place, name in enumerate(("query", "key", "value"))
    )
    if query is None or key is None or value is None:
        return None
    rows = call.elements() // value[-1]
    return rows * key[-2] * (query[-1] + value[-1])


def _multihead_attention(call: OperatorCall) -> int | None:
    module = call.module
    query, key, value = (
        _shape(call.argument(place, name)) for place, name in enumerate(("query", "key", "value"))
    )
    if not isinstance(module, nn.MultiheadAttention) or query is None or key is None or value is None:
        return None
    width = module.embed_dim
    targets, sources = query[:-1].numel(), key[:-1].numel()
    batch = 1 if len(query) == 2 else query[0 if module.batch_first else 1]
    projected = targets * query[-1] * width + sources * (key[-1] + value[-1]) * width
    # Each row of a sequence attends to every row of the other: once for the weights, once for the sum.
    attended = 2 * targets * (sources // batch) * width
    return projected + attended + targets * width * width


# -- element by element


def _once_per_element(call: OperatorCall) -> int:
    return call.elements()


def _once_per_input(call: OperatorCall) -> int | None:
    given = _shape(call.argument(0, "input"))
    return None if given is None else given.numel()


def _thrice_per_input(call: OperatorCall) -> int | None:
    # Two passes to find the statistics, one to apply them.
    once = _once_per_input(call)
    return None if once is None else 3 * once


def _batch_norm(call: OperatorCall) -> int:
    # Scale and shift are one multiply-add; statistics of the batch need mean and variance besides.
    module = call.module
    if module is not None:
        by_batch = module.training or getattr(module, "running_mean", None) is None
    else:
        by_batch = bool(call.argument(5, "training", default=False))
    return (3 if by_batch else 1) * call.elements()


def _lookup(call: OperatorCall) -> CallCost:
    rows = sum(part.shape.numel() * part.dtype.itemsize for part in tensors_in(call.result))
    indices = call.argument(0, "input")
    index_bytes = indices.shape.numel() * indices.dtype.itemsize if isinstance(indices, TensorMetadata) else 0
    return CallCost(0, rows + index_bytes)


def _no_arithmetic(_: OperatorCall) -> int:
    return 0


def _no_work(_: OperatorCall) -> CallCost:
    return CallCost(0, 0, 0)


# -- which calls


_TORCH_HOLDERS = (torch, functional, torch.ops.aten)


def _forms_of(name: str) -> Iterator[Hashable]:
    """Yield what a graph calls when a program computes what torch calls `name`: functions, the method, the operator."""
    for holder in _TORCH_HOLDERS:
        found = getattr(holder, name, None)
        if callable(found):
            yield found
    if hasattr(torch.Tensor, name):
        yield name
    python = getattr(operator, _PYTHON_NAMES.get(name, name), None)
    if python is not None and name not in _NOT_PYTHON:
        yield python


_PYTHON_NAMES = {"div": "truediv", "floor_divide": "floordiv", "remainder": "mod"}
_NOT_PYTHON = frozenset({"div_", "index", "concat"})

_NAMES: dict[Formula, str] = {
    _convolution: "conv1d conv2d conv3d",
    _transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    _linear: "linear",
    _product: "matmul mm bmm mv dot __matmul__",
    _product_and_sum: "addmm baddbmm addmv addmm_ baddbmm_",
    _attention: "scaled_dot_product_attention",
    _batch_norm: "batch_norm",
    _thrice_per_input: "layer_norm group_norm instance_norm rms_norm softmax log_softmax softmin var std",
    _once_per_input: "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
    "mean sum prod cumsum cumprod norm logsumexp",
    _once_per_element: "add add_ sub sub_ mul mul_ div div_ iadd isub imul itruediv pow pow_ square sqrt sqrt_ rsqrt "
    "exp exp_ log log2 log10 sin cos tan tanh tanh_ sigmoid sigmoid_ gelu silu mish elu selu celu softplus hardswish "
    "hardsigmoid erf reciprocal addcmul addcdiv lerp rsub floor_divide remainder true_divide multiply divide subtract",
    _lookup: "embedding index_select gather",
    _no_arithmetic: "relu relu_ relu6 leaky_relu hardtanh clamp clamp_ abs neg sign maximum minimum max min amax amin "
    "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d argmax argmin topk "
    "sort argsort cat concat stack pad where masked_fill masked_fill_ clone contiguous to type type_as float half "
    "double long int bool bfloat16 dropout dropout1d dropout2d dropout3d eq ne lt le gt ge logical_not logical_and "
    "logical_or copy_ repeat tile roll flip tril triu one_hot interpolate upsample zeros ones full arange "
    "zeros_like ones_like full_like empty empty_like bitwise_and bitwise_or floor ceil round trunc scatter "
    "repeat_interleave index_add outer_ cumsum_ expand_as nan_to_num threshold prelu index_put",
    _no_work: "view reshape flatten unflatten squeeze unsqueeze transpose permute t expand chunk split unbind select "
    "narrow movedim swapaxes size dim numel detach getitem item is_floating_point view_as unfold_ "
    "data_ptr stride element_size is_contiguous",
}

_MODULE_NAMES: dict[Formula, str] = {
    _convolution: "Conv1d Conv2d Conv3d",
    _transposed_convolution: "ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    _linear: "Linear",
    _multihead_attention: "MultiheadAttention",
    _batch_norm: "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm",
    _thrice_per_input: "LayerNorm GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d RMSNorm Softmax LogSoftmax "
    "Softmin Softmax2d",
    _once_per_input: "AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d",
    _once_per_element: "Tanh Sigmoid GELU SiLU Mish ELU SELU CELU Softplus Hardswish Hardsigmoid Softsign LogSigmoid",
    _lookup: "Embedding",
    _no_arithmetic: "ReLU ReLU6 LeakyReLU PReLU Hardtanh MaxPool1d MaxPool2d MaxPool3d AdaptiveMaxPool1d "
    "AdaptiveMaxPool2d AdaptiveMaxPool3d Dropout Dropout1d Dropout2d Dropout3d AlphaDropout Upsample ZeroPad2d "
    "PixelShuffle PixelUnshuffle",
    _no_work: "Identity Flatten Unflatten",
}


@functools.lru_cache(maxsize=1)
def builtin_formulas() -> tuple[FlopFormulaRecord, ...]:
    """Return the formulas that fxplug itself offers; made when somebody asks, since there are hundreds of targets."""
    return tuple(_records())


def _records() -> Iterator[FlopFormulaRecord]:
    for formula, names in _NAMES.items():
        for name in names.split():
            for target in dict.fromkeys(_forms_of(name)):
                yield FlopFormulaRecord(target, formula)
    for formula, names in _MODULE_NAMES.items():
        for name in names.split():
            yield FlopFormulaRecord(getattr(nn, name), formula)
    for target in (getattr, hasattr, len, operator.truth, operator.not_, *CHECKS):
        yield FlopFormulaRecord(target, _no_work)

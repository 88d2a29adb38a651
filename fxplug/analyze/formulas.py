"""Which formula of fxplug counts which calls of torch."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from fxplug.analyze import elementwise, products, recurrent
from fxplug.analyze.cost import CallCost, FlopFormulaRecord, OperatorCall
from fxplug.execute.fused import FUSED_MODULES
from fxplug.semantics.checks import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    Formula = Callable[[OperatorCall], int | CallCost | None]

__all__ = ["builtin_formulas"]

# -- which calls


_TORCH_HOLDERS = (torch, functional, torch.Tensor, torch.ops.aten)


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
    products.convolution: "conv1d conv2d conv3d",
    products.transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    products.general_convolution: "convolution _convolution",
    products.linear: "linear",
    products.bilinear: "bilinear",
    products.product: "matmul mm bmm mv dot __matmul__",
    products.inner_product: "inner",
    products.product_and_sum: "addmm baddbmm addmv addmm_ baddbmm_ addmv_",
    products.addbmm: "addbmm addbmm_",
    products.tensordot: "tensordot",
    products.einsum: "einsum",
    products.attention: "scaled_dot_product_attention",
    products.multihead_attention_function: "multi_head_attention_forward",
    elementwise.batch_norm: "batch_norm",
    elementwise.thrice_per_input: "layer_norm group_norm instance_norm rms_norm softmax log_softmax softmin var std",
    elementwise.once_per_input: "mean sum prod cumsum cumsum_ cumprod norm logsumexp",
    elementwise.average_pool(1): "avg_pool1d",
    elementwise.average_pool(2): "avg_pool2d",
    elementwise.average_pool(3): "avg_pool3d",
    elementwise.adaptive_average_pool(1): "adaptive_avg_pool1d",
    elementwise.adaptive_average_pool(2): "adaptive_avg_pool2d",
    elementwise.adaptive_average_pool(3): "adaptive_avg_pool3d",
    elementwise.once_per_element: "add add_ sub sub_ mul mul_ div div_ iadd isub imul itruediv pow pow_ square sqrt "
    "sqrt_ rsqrt exp exp_ log log2 log10 sin cos tan tanh tanh_ sigmoid sigmoid_ gelu silu mish elu selu celu softplus "
    "hardswish hardsigmoid erf reciprocal addcmul addcdiv lerp rsub floor_divide remainder true_divide multiply divide "
    "subtract leaky_relu leaky_relu_ prelu",
    elementwise.interpolation: "interpolate upsample",
    elementwise.taps("nearest"): "upsample_nearest upsample_nearest1d upsample_nearest2d upsample_nearest3d",
    elementwise.taps("linear"): "upsample_linear1d",
    elementwise.taps("bilinear"): "upsample_bilinear upsample_bilinear2d",
    elementwise.taps("trilinear"): "upsample_trilinear3d",
    elementwise.taps("bicubic"): "upsample_bicubic2d",
    elementwise.embedding: "embedding",
    elementwise.lookup(2, "index"): "index_select gather",
    elementwise.lookup(1, "index", "indices", "mask"): "take take_along_dim masked_select index",
    elementwise.item: "getitem __getitem__",
    elementwise.scattered_sum(3, "source"): "index_add index_add_",
    elementwise.scattered_sum(2, "index"): "scatter_add scatter_add_",
    elementwise.scatter: "scatter",
    elementwise.index_put: "index_put",
    elementwise.dropout: "dropout dropout1d dropout2d dropout3d",
    elementwise.no_arithmetic: "relu relu_ relu6 hardtanh clamp clamp_ abs neg sign maximum minimum max min amax amin "
    "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d argmax argmin topk "
    "sort argsort cat concat stack pad where masked_fill masked_fill_ clone eq ne lt le gt ge "
    "logical_not logical_and logical_or copy_ repeat tile roll flip tril triu one_hot zeros ones full arange "
    "zeros_like ones_like full_like empty empty_like bitwise_and bitwise_or floor ceil round trunc repeat_interleave "
    "nan_to_num threshold",
    elementwise.contiguous: "contiguous",
    elementwise.conversion: "float half double long int bool bfloat16 type type_as",
    elementwise.transfer: "to",
    elementwise.rearranged: "reshape reshape_as flatten ravel",
    elementwise.no_work: "view _unsafe_view unflatten squeeze unsqueeze transpose permute t expand expand_as chunk "
    "split unbind select narrow slice diagonal as_strided broadcast_to tensor_split hsplit vsplit movedim moveaxis "
    "swapaxes swapdims size dim numel detach item is_floating_point view_as data_ptr stride element_size is_contiguous",
}

_MODULE_NAMES: dict[Formula, str] = {
    products.convolution: "Conv1d Conv2d Conv3d",
    products.transposed_convolution: "ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    products.linear: "Linear",
    products.bilinear: "Bilinear",
    products.multihead_attention: "MultiheadAttention",
    recurrent.recurrent_layers: "LSTM GRU RNN",
    recurrent.recurrent_cell: "LSTMCell GRUCell RNNCell",
    elementwise.batch_norm: "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm",
    elementwise.thrice_per_input: "LayerNorm GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d RMSNorm Softmax "
    "LogSoftmax Softmin Softmax2d",
    elementwise.average_pool(1): "AvgPool1d",
    elementwise.average_pool(2): "AvgPool2d",
    elementwise.average_pool(3): "AvgPool3d",
    elementwise.adaptive_average_pool(1): "AdaptiveAvgPool1d",
    elementwise.adaptive_average_pool(2): "AdaptiveAvgPool2d",
    elementwise.adaptive_average_pool(3): "AdaptiveAvgPool3d",
    elementwise.once_per_element: "Tanh Sigmoid GELU SiLU Mish ELU SELU CELU Softplus Hardswish Hardsigmoid Softsign "
    "LogSigmoid LeakyReLU PReLU",
    elementwise.interpolation: "Upsample UpsamplingNearest2d UpsamplingBilinear2d",
    elementwise.embedding: "Embedding",
    elementwise.dropout: "Dropout Dropout1d Dropout2d Dropout3d AlphaDropout",
    elementwise.no_arithmetic: "ReLU ReLU6 Hardtanh MaxPool1d MaxPool2d MaxPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d "
    "AdaptiveMaxPool3d ZeroPad2d PixelShuffle PixelUnshuffle",
    elementwise.rearranged: "Flatten",
    elementwise.no_work: "Identity Unflatten",
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
    for layer, fused in FUSED_MODULES.items():
        # What an activation adds to its layer is next to nothing.
        yield FlopFormulaRecord(fused, products.linear if layer is nn.Linear else products.convolution)
    for target in (getattr, hasattr, len, operator.truth, operator.not_, *CHECKS):
        yield FlopFormulaRecord(target, elementwise.no_work)

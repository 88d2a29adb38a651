"""The table: which calls of PyTorch TensorRT has layers for."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows it by

from fxplug.lower import CallRow as Row
from fxplug.lower import CallTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from fxplug import LoweringContext, Node

__all__ = ["POOL_TO_ONE", "ROWS", "TABLE"]


POOL_TO_ONE = Row(
    ("reduce",),
    (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
)
"""Adaptive pooling, for which TensorRT has a layer only if everything becomes one value."""


def _functions(*names: str) -> tuple[Callable[..., Any], ...]:
    return tuple(getattr(torch, name) for name in names)


_UNARY = (
    "abs",
    "ceil",
    "cos",
    "erf",
    "exp",
    "floor",
    "log",
    "logical_not",
    "neg",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "sqrt",
)
_BINARY = (
    "add",
    "div",
    "eq",
    "gt",
    "logical_and",
    "logical_or",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "pow",
    "sub",
)
_NEGATED = ("ge", "le", "ne")

_LAYERS = (
    Row(("convolution_nd",), (nn.Conv1d, nn.Conv2d, nn.Conv3d), (F.conv1d, F.conv2d, F.conv3d)),
    Row(
        ("deconvolution_nd",),
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    ),
    Row(("matrix_multiply", "elementwise"), (nn.Linear,), (F.linear, torch.addmm), ("addmm",)),
    Row(
        ("matrix_multiply",),
        functions=(torch.matmul, torch.mm, torch.bmm, operator.matmul),
        methods=("matmul", "mm", "bmm"),
    ),
    Row(("matrix_multiply", "softmax"), functions=(F.scaled_dot_product_attention,)),
    Row(("einsum",), functions=(torch.einsum,)),
    Row(
        ("scale_nd",),
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        (F.batch_norm, torch.batch_norm),
    ),
    Row(
        ("normalization_v2",),
        (nn.LayerNorm, nn.GroupNorm),
        (F.layer_norm, torch.layer_norm, F.group_norm, torch.group_norm),
    ),
    Row(
        ("pooling_nd",),
        (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        (F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
    ),
    POOL_TO_ONE,
    Row(("resize",), (nn.Upsample,), (F.interpolate,)),
    Row(("gather",), (nn.Embedding,), (F.embedding, torch.embedding)),
    Row(("loop", "matrix_multiply", "activation"), (nn.LSTM,)),
    Row(
        ("matrix_multiply", "activation", "concatenation"),
        (nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell),
    ),
    Row(
        (),
        (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
        (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
        shares_memory=True,
    ),
)

_ACTIVATIONS = (
    Row(
        ("activation",),
        (nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardtanh, nn.LeakyReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.Sigmoid),
        (F.elu, F.gelu, F.hardsigmoid, F.hardtanh, F.leaky_relu, F.relu, F.relu6, F.selu, F.sigmoid),
    ),
    Row(("activation",), (nn.Softplus, nn.Softsign, nn.Tanh), (F.softplus, F.softsign, F.tanh)),
    Row(
        ("activation",),
        functions=_functions("clamp", "relu", "selu", "sigmoid", "tanh"),
        methods=("clamp", "relu", "sigmoid", "tanh"),
    ),
    Row(("activation", "elementwise"), (nn.SiLU, nn.Mish, nn.Hardswish), (F.silu, F.mish, F.hardswish)),
    Row(("parametric_relu",), (nn.PReLU,), (F.prelu, torch.prelu)),
    Row(("softmax",), (nn.Softmax,), (F.softmax, torch.softmax), ("softmax",)),
    Row(("softmax", "unary"), (nn.LogSoftmax,), (F.log_softmax, torch.log_softmax), ("log_softmax",)),
)

_ARITHMETIC = (
    Row(("unary",), functions=(*_functions(*_UNARY), operator.neg), methods=_UNARY),
    Row(("elementwise",), functions=_functions(*_BINARY), methods=_BINARY),
    Row(
        ("elementwise",),
        functions=(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow),
    ),
    Row(("elementwise",), functions=(operator.iadd, operator.isub, operator.imul, operator.itruediv)),
    Row(("elementwise",), functions=(operator.eq, operator.gt, operator.lt)),
    Row(("elementwise", "unary"), functions=_functions(*_NEGATED), methods=_NEGATED),
    Row(("elementwise", "unary"), functions=(operator.ge, operator.le, operator.ne)),
    Row(("select",), functions=(torch.where, torch.masked_fill), methods=("where", "masked_fill")),
    Row(
        ("reduce",),
        functions=_functions("amax", "amin", "mean", "sum"),
        methods=("amax", "amin", "mean", "sum"),
    ),
    Row(("topk",), functions=_functions("argmax", "argmin", "topk"), methods=("argmax", "argmin", "topk")),
    Row(("cumulative",), functions=(torch.cumsum,), methods=("cumsum",)),
)

_LAYOUT = (
    Row(("concatenation",), functions=(torch.cat, torch.concat)),
    Row(("concatenation", "unsqueeze"), functions=(torch.stack,)),
    Row(("slice", "concatenation"), functions=(torch.roll,), methods=("roll",)),
    Row(("slice",), (nn.ZeroPad2d,), (F.pad, torch.tile), ("repeat", "tile")),
    Row(("gather",), functions=(torch.index_select,), methods=("index_select",)),
    Row(("gather_v2",), functions=(torch.gather,), methods=("gather",)),
    Row((), functions=(torch.clone,), methods=("clone",)),
    Row((), methods=("contiguous", "detach"), shares_memory=True),
    Row(("cast",), methods=("to", "float", "double", "half", "int", "long", "bool"), shares_memory=True),
    Row(
        ("shuffle",),
        (nn.Flatten, nn.Unflatten),
        _functions("flatten", "permute", "reshape", "t", "transpose"),
        ("flatten", "permute", "reshape", "t", "transpose", "unflatten", "view"),
        shares_memory=True,
    ),
    Row(("squeeze",), functions=(torch.squeeze,), methods=("squeeze",), shares_memory=True),
    Row(("unsqueeze",), functions=(torch.unsqueeze,), methods=("unsqueeze",), shares_memory=True),
    Row(
        ("slice",),
        functions=(torch.broadcast_to, torch.split, torch.chunk),
        methods=("expand", "expand_as", "split", "chunk"),
        shares_memory=True,
    ),
    Row(("slice", "gather"), functions=(operator.getitem,), shares_memory=True),
)

_SHAPE = Row(("shape",), methods=("size",))
ROWS = (*_LAYERS, *_ACTIVATIONS, *_ARITHMETIC, *_LAYOUT, _SHAPE)


class _Table(CallTable):
    """What TensorRT has layers for."""

    def reason_against(self, node: Node, context: LoweringContext) -> str:
        """Return why TensorRT cannot run a node, for people; empty when it can."""
        if self.find(node, context) is POOL_TO_ONE and not _pools_to_one(node, context):
            return "it pools to more than one value, for which TensorRT has no layer"
        return super().reason_against(node, context)


def _pools_to_one(node: Node, context: LoweringContext) -> bool:
    if node.op == "call_module":
        size: Any = context.module.get_submodule(node.target).output_size
    else:
        size = node.args[1] if len(node.args) > 1 else node.kwargs.get("output_size")
    return all(part == 1 for part in (size if isinstance(size, (tuple, list)) else (size,)))


TABLE = _Table("TensorRT", "fxplug-tensorrt", ROWS, shape=_SHAPE)
"""The operations are methods of TensorRT's ``INetworkDefinition`` without ``add_``."""

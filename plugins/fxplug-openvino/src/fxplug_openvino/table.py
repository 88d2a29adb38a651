"""The table: which calls of PyTorch OpenVINO has operations for."""

from __future__ import annotations

import operator

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everybody knows it by

from fxplug.lower import CallRow as Row
from fxplug.lower import CallTable

__all__ = ["ROWS", "TABLE"]


def _same_name(operation: str, *names: str) -> Row:
    """Return the row of calls that are functions of ``torch`` and methods of tensors by the same names."""
    functions = tuple(getattr(torch, name) for name in names)
    return Row((operation,), functions=functions, methods=names)


_LAYERS = (
    Row(
        ("convolution", "group_convolution", "add"),
        (nn.Conv1d, nn.Conv2d, nn.Conv3d),
        (F.conv1d, F.conv2d, F.conv3d),
    ),
    Row(
        ("convolution_backprop_data", "group_convolution_backprop_data", "add"),
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
    ),
    Row(("matmul", "add"), (nn.Linear,), (F.linear, torch.addmm), ("addmm",)),
    Row(
        ("matmul",),
        functions=(torch.matmul, torch.mm, torch.bmm, operator.matmul),
        methods=("matmul", "mm", "bmm"),
    ),
    Row(("einsum",), functions=(torch.einsum,)),
    Row(
        ("batch_norm_inference",),
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        (F.batch_norm, torch.batch_norm),
    ),
    Row(("mvn", "multiply", "add"), (nn.LayerNorm,), (F.layer_norm, torch.layer_norm)),
    Row(("group_normalization",), (nn.GroupNorm,), (F.group_norm, torch.group_norm)),
    Row(("gather",), (nn.Embedding,), (F.embedding, torch.embedding)),
    Row(
        ("max_pool",), (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), (F.max_pool1d, F.max_pool2d, F.max_pool3d)
    ),
    Row(
        ("avg_pool",), (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
    ),
    Row(
        ("adaptive_avg_pool",),
        (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
        (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    ),
    Row(("interpolate",), (nn.Upsample,), (F.interpolate,)),
    Row(("scaled_dot_product_attention",), functions=(F.scaled_dot_product_attention,)),
    Row(
        (),
        (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
        (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
        shares_memory=True,
    ),
)

_ACTIVATIONS = (
    Row(("relu",), (nn.ReLU,), (F.relu, torch.relu), ("relu",)),
    Row(("clamp",), (nn.ReLU6, nn.Hardtanh), (F.relu6, F.hardtanh, torch.clamp), ("clamp",)),
    Row(("prelu",), (nn.LeakyReLU, nn.PReLU), (F.leaky_relu, F.prelu, torch.prelu)),
    Row(("elu",), (nn.ELU,), (F.elu,)),
    Row(("selu",), (nn.SELU,), (F.selu, torch.selu)),
    Row(("gelu",), (nn.GELU,), (F.gelu,)),
    Row(("swish",), (nn.SiLU,), (F.silu,)),
    Row(("mish",), (nn.Mish,), (F.mish,)),
    Row(("hswish",), (nn.Hardswish,), (F.hardswish,)),
    Row(("hsigmoid",), (nn.Hardsigmoid,), (F.hardsigmoid,)),
    Row(("softplus",), (nn.Softplus,), (F.softplus,)),
    Row(("softsign",), (nn.Softsign,), (F.softsign,)),
    Row(("sigmoid",), (nn.Sigmoid,), (F.sigmoid, torch.sigmoid), ("sigmoid",)),
    Row(("tanh",), (nn.Tanh,), (F.tanh, torch.tanh), ("tanh",)),
    Row(("softmax",), (nn.Softmax,), (F.softmax, torch.softmax), ("softmax",)),
    Row(("log_softmax",), (nn.LogSoftmax,), (F.log_softmax, torch.log_softmax), ("log_softmax",)),
)

_ARITHMETIC = (
    Row(("add", "multiply"), functions=(operator.add, operator.iadd, torch.add), methods=("add",)),
    Row(("subtract", "multiply"), functions=(operator.sub, operator.isub, torch.sub), methods=("sub",)),
    Row(("multiply",), functions=(operator.mul, operator.imul, torch.mul), methods=("mul",)),
    Row(("divide",), functions=(operator.truediv, operator.itruediv, torch.div), methods=("div",)),
    Row(("power",), functions=(operator.pow, torch.pow, torch.rsqrt), methods=("pow", "rsqrt")),
    Row(("negative",), functions=(operator.neg, torch.neg), methods=("neg",)),
    Row(("equal",), functions=(operator.eq, torch.eq), methods=("eq",)),
    Row(("not_equal",), functions=(operator.ne, torch.ne), methods=("ne",)),
    Row(("less",), functions=(operator.lt, torch.lt), methods=("lt",)),
    Row(("less_equal",), functions=(operator.le, torch.le), methods=("le",)),
    Row(("greater",), functions=(operator.gt, torch.gt), methods=("gt",)),
    Row(("greater_equal",), functions=(operator.ge, torch.ge), methods=("ge",)),
    Row(("select",), functions=(torch.where, torch.masked_fill), methods=("where", "masked_fill")),
    *(
        _same_name(operation, *names)
        for operation, *names in (
            ("abs", "abs"),
            ("ceiling", "ceil"),
            ("cos", "cos"),
            ("erf", "erf"),
            ("exp", "exp"),
            ("floor", "floor"),
            ("log", "log"),
            ("logical_and", "logical_and"),
            ("logical_not", "logical_not"),
            ("logical_or", "logical_or"),
            ("maximum", "maximum"),
            ("minimum", "minimum"),
            ("round", "round"),
            ("sign", "sign"),
            ("sin", "sin"),
            ("sqrt", "sqrt"),
            ("reduce_max", "amax"),
            ("reduce_mean", "mean"),
            ("reduce_min", "amin"),
            ("reduce_sum", "sum"),
            ("cum_sum", "cumsum"),
            ("topk", "topk", "argmax", "argmin"),
        )
    ),
)

_LAYOUT = (
    Row(("concat",), functions=(torch.cat, torch.concat)),
    Row(("concat", "unsqueeze"), functions=(torch.stack,)),
    Row(("pad",), (nn.ZeroPad2d,), (F.pad,)),
    Row(("roll",), functions=(torch.roll,), methods=("roll",)),
    Row(("tile",), functions=(torch.tile,), methods=("repeat", "tile")),
    Row(("gather",), functions=(torch.index_select,), methods=("index_select",)),
    Row(("gather_elements",), functions=(torch.gather,), methods=("gather",)),
    Row((), functions=(torch.clone,), methods=("clone",)),
    Row(("convert",), methods=("to", "float", "double", "half", "int", "long", "bool"), shares_memory=True),
    Row((), methods=("contiguous", "detach"), shares_memory=True),
    Row(
        ("reshape",),
        (nn.Flatten, nn.Unflatten),
        (torch.flatten, torch.reshape),
        ("flatten", "reshape", "unflatten", "view"),
        shares_memory=True,
    ),
    Row(
        ("transpose",),
        functions=(torch.permute, torch.transpose, torch.t),
        methods=("permute", "transpose", "t"),
        shares_memory=True,
    ),
    Row(("squeeze",), functions=(torch.squeeze,), methods=("squeeze",), shares_memory=True),
    Row(("unsqueeze",), functions=(torch.unsqueeze,), methods=("unsqueeze",), shares_memory=True),
    Row(("broadcast",), functions=(torch.broadcast_to,), methods=("expand", "expand_as"), shares_memory=True),
    Row(
        ("variadic_split",),
        functions=(torch.split, torch.chunk),
        methods=("split", "chunk"),
        shares_memory=True,
    ),
    Row(("strided_slice", "gather"), functions=(operator.getitem,), shares_memory=True),
)

_SHAPE = Row(("shape_of",), methods=("size",))
ROWS = (*_LAYERS, *_ACTIVATIONS, *_ARITHMETIC, *_LAYOUT, _SHAPE)

TABLE = CallTable("OpenVINO", "fxplug-openvino", ROWS, shape=_SHAPE)
"""The operations are named as in OpenVINO's opset15."""

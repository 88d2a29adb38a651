"""Which functions of torch, operators and methods of tensors have which shape function."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.semantics.checks import check_equal, check_length, check_true, same_value
from fxplug.semantics.shapes.joining import embedded, joined, norm, reduced, repeated, rolled, stacked, varied
from fxplug.semantics.shapes.networks import (
    adaptive_pooling,
    attended,
    average_pooling,
    convolution,
    group_normed,
    interpolated,
    layer_normed,
    linearly_mapped,
    max_pooling,
    multiplied,
    multiplied_in_batches,
    normed,
    padded,
)
from fxplug.semantics.shapes.operands import of_numbers
from fxplug.semantics.shapes.pointwise import (
    activated,
    bent,
    bent_by_slope,
    bent_to_limit,
    clamped,
    compared,
    dropped,
    elementwise,
    filled,
    in_place,
    of_length_one,
    of_tensor_first,
    of_three,
    of_two,
    of_two_in_place,
    raised_to_power,
    softened,
    softened_in_any_dtype,
)
from fxplug.semantics.shapes.reading import checked, count_of_dimensions, count_of_elements, size
from fxplug.semantics.shapes.views import (
    chunked,
    exchanged,
    expanded,
    expanded_as,
    flattened,
    item,
    made_contiguous,
    permuted,
    permuted_to,
    reshaped,
    reshaped_as,
    reshaped_to,
    split,
    squeezed,
    swapped,
    transposed_matrix,
    unbound,
    unsqueezed,
    viewed,
    viewed_as,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FUNCTIONS", "METHODS", "are_intact"]

_ELEMENTWISE = [
    "abs",
    "cos",
    "erf",
    "exp",
    "log",
    "neg",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "sin",
    "sqrt",
    "square",
    "tanh",
]


_ACTIVATIONS = ["hardsigmoid", "hardswish", "mish", "relu", "relu6", "selu", "silu"]


_OF_TWO = {"add": operator.add, "div": operator.truediv, "mul": operator.mul, "sub": operator.sub}


METHODS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys([*_ELEMENTWISE, "clone", "relu"], elementwise),
    **{name: of_tensor_first(function) for name, function in _OF_TWO.items()},
    **{f"{name}_": of_two_in_place for name in _OF_TWO},
    **dict.fromkeys(("exp_", "relu_", "sigmoid_", "sqrt_", "tanh_"), in_place),
    "amax": reduced,
    "amin": reduced,
    "bmm": multiplied_in_batches,
    "masked_fill": filled,
    "repeat": repeated,
    "std": varied,
    "var": varied,
    "chunk": chunked,
    "clamp": clamped,
    "contiguous": made_contiguous,
    "dim": count_of_dimensions,
    "expand": expanded,
    "expand_as": expanded_as,
    "flatten": flattened,
    "matmul": multiplied,
    "mean": reduced,
    "ndimension": count_of_dimensions,
    "norm": norm,
    "numel": count_of_elements,
    "permute": permuted,
    "pow": raised_to_power,
    "reshape": reshaped,
    "reshape_as": reshaped_as,
    "size": size,
    "softmax": softened,
    "split": split,
    "squeeze": squeezed,
    "sum": reduced,
    "log_softmax": softened,
    "swapaxes": swapped,
    "t": transposed_matrix,
    "transpose": exchanged,
    "unbind": unbound,
    "unsqueeze": unsqueezed,
    "view": viewed,
    "view_as": viewed_as,
}
"""Method of tensors -> its shape function."""


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, name): elementwise for name in _ELEMENTWISE},
    **{getattr(torch, name): of_tensor_first(function) for name, function in _OF_TWO.items()},
    **{getattr(functional, name): activated for name in _ACTIVATIONS},
    functional.elu: bent_to_limit,
    functional.leaky_relu: bent_by_slope,
    **{function: of_two(function) for function in _OF_TWO.values()},
    **dict.fromkeys((operator.iadd, operator.imul, operator.isub, operator.itruediv), of_two_in_place),
    **{
        function: of_numbers(function)
        for function in (
            *(operator.floordiv, operator.mod, operator.not_, operator.truth),
            *(value for name, value in vars(math).items() if callable(value) and not name.startswith("_")),
        )
    },
    **{
        function: compared(function)
        for function in (operator.eq, operator.ge, operator.gt, operator.le, operator.lt, operator.ne)
    },
    **{check: checked(check) for check in (check_equal, check_length, check_true, same_value)},
    functional.adaptive_avg_pool1d: adaptive_pooling(1),
    functional.adaptive_avg_pool2d: adaptive_pooling(2),
    functional.avg_pool1d: average_pooling(1),
    functional.avg_pool2d: average_pooling(2),
    functional.batch_norm: normed,
    functional.dropout: dropped,
    functional.embedding: embedded,
    functional.gelu: bent,
    functional.group_norm: group_normed,
    functional.interpolate: interpolated,
    functional.layer_norm: layer_normed,
    functional.linear: linearly_mapped,
    functional.log_softmax: softened_in_any_dtype,
    functional.max_pool1d: max_pooling(1),
    functional.max_pool2d: max_pooling(2),
    functional.normalize: of_length_one,
    functional.pad: padded,
    functional.scaled_dot_product_attention: attended,
    functional.softmax: softened_in_any_dtype,
    operator.getitem: item,
    operator.matmul: multiplied,
    operator.neg: elementwise,
    operator.pow: raised_to_power,
    torch.addcmul: of_three,
    torch.bmm: multiplied_in_batches,
    torch.cat: joined,
    torch.chunk: chunked,
    torch.clamp: clamped,
    torch.conv1d: convolution(1),
    torch.conv2d: convolution(2),
    torch.conv3d: convolution(3),
    torch.flatten: flattened,
    torch.matmul: multiplied,
    torch.mean: reduced,
    torch.permute: permuted_to,
    torch.relu: elementwise,
    torch.relu_: in_place,
    torch.reshape: reshaped_to,
    torch.roll: rolled,
    torch.softmax: softened,
    torch.split: split,
    torch.squeeze: squeezed,
    torch.stack: stacked,
    torch.sum: reduced,
    torch.swapaxes: swapped,
    torch.transpose: exchanged,
    **dict.fromkeys((torch.ones_like, torch.zeros_like), elementwise),
    torch.unbind: unbound,
    torch.unsqueeze: unsqueezed,
}
"""Function -> its shape function."""


def are_intact() -> bool:
    """Return whether torch's functions and methods are those of which this module speaks: nobody has exchanged any."""
    try:
        return all(read(home) == found for read, home, found in _EXPECTED)
    except (AttributeError, KeyError):
        return False


_FURTHER_METHODS = ("cpu", "double", "float", "is_contiguous", "to", "type_as")
_OPERATORS_OF_TENSORS = (
    *(
        "__add__",
        "__eq__",
        "__ge__",
        "__getitem__",
        "__gt__",
        "__iadd__",
        "__imul__",
        "__isub__",
        "__itruediv__",
    ),
    *("__le__", "__lt__", "__matmul__", "__mul__", "__ne__", "__neg__", "__pow__", "__radd__", "__rmul__"),
    *("__rsub__", "__rtruediv__", "__sub__", "__truediv__"),
)


_OF_LAYERS = {
    "torch": ("batch_norm", "group_norm", "layer_norm", "pixel_shuffle"),
    "torch.nn.functional": (
        *("adaptive_avg_pool3d", "conv_transpose1d", "conv_transpose2d", "hardtanh", "max_pool3d"),
        *("multi_head_attention_forward", "pixel_shuffle"),
    ),
}
"""What layers call besides, by the module where they find it."""


def _expected() -> list[tuple[Callable[[Any], Any], Any, Any]]:
    """Return how all functions of a module or class are read at once, what it is, and what they have to be.

    Functions are compared by identity first, all of them in one call.
    """
    known = {id(function) for function in FUNCTIONS}
    read: Any = operator.attrgetter(*METHODS, *_FURTHER_METHODS, *_OPERATORS_OF_TENSORS)
    found: list[tuple[Callable[[Any], Any], Any, Any]] = [(read, torch.Tensor, read(torch.Tensor))]
    for module in (torch, functional):
        held = vars(module)
        names = [name for name, value in held.items() if id(value) in known]
        read = operator.itemgetter(*names, *_OF_LAYERS[module.__name__])
        found.append((read, held, read(held)))
    return found + [
        (read, kind, read(kind))
        for kinds, read in (
            ((nn.Conv1d, nn.Conv2d, nn.Conv3d), operator.attrgetter("_conv_forward")),
            ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), operator.attrgetter("_check_input_dim")),
            ((nn.ConvTranspose1d, nn.ConvTranspose2d), operator.attrgetter("_output_padding")),
        )
        for kind in kinds
    ]


_EXPECTED = _expected()

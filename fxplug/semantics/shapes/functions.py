"""Which functions of torch, operators and methods of tensors have which shape function."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fxplug.semantics.checks import check_equal, check_length, check_true, same_value, the_same
from fxplug.semantics.shapes.joining import (
    embedded,
    extreme,
    joined,
    norm,
    of_indices,
    outer_product,
    place_of_extreme,
    reduced,
    repeated,
    repeated_in_place,
    rolled,
    stacked,
    summed_up,
    varied,
)
from fxplug.semantics.shapes.networks import (
    adaptive_pooling,
    attended,
    average_pooling,
    convolution,
    folded,
    group_normed,
    interpolated,
    layer_normed,
    linearly_mapped,
    max_pooling,
    multiplied,
    multiplied_in_batches,
    normed,
    normed_by_squares,
    padded,
    unfolded,
)
from fxplug.semantics.shapes.operands import of_numbers
from fxplug.semantics.shapes.pointwise import (
    activated,
    bent,
    bent_by_slope,
    bent_softly,
    bent_to_limit,
    chosen,
    clamped,
    compared,
    divided,
    dropped,
    elementwise,
    filled,
    gated,
    in_place,
    made_alike,
    of_flags,
    of_length_one,
    of_tensor_first,
    of_tensors,
    of_three,
    of_triangle,
    of_two,
    of_two_assigned,
    of_two_in_place,
    raised_to_power,
    softened,
    softened_in_any_dtype,
    turned,
)
from fxplug.semantics.shapes.reading import checked, count_of_dimensions, count_of_elements, named, size
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
    written_at,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FUNCTIONS", "METHODS", "METHODS_OF_FLAGS", "are_intact"]

_ELEMENTWISE = [
    *("abs", "atan", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "log", "log10", "log1p", "log2"),
    *(
        "neg",
        "reciprocal",
        "round",
        "rsqrt",
        "sigmoid",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "tan",
        "tanh",
    ),
    "trunc",
]


_ACTIVATIONS = ["hardsigmoid", "hardswish", "mish", "relu", "relu6", "selu", "silu"]


_OF_TWO = {"add": operator.add, "div": operator.truediv, "mul": operator.mul, "sub": operator.sub}


METHODS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys([*_ELEMENTWISE, "clone", "relu"], elementwise),
    **{name: of_tensor_first(function) for name, function in _OF_TWO.items()},
    **{f"{name}_": of_two_in_place for name in _OF_TWO},
    **dict.fromkeys(("exp_", "relu_", "sigmoid_", "sqrt_", "tanh_"), in_place),
    **dict.fromkeys(("argmax", "argmin"), place_of_extreme),
    **dict.fromkeys(("cumprod", "cumsum"), summed_up),
    **dict.fromkeys(("maximum", "minimum"), of_tensors),
    **dict.fromkeys(("tril", "triu"), of_triangle),
    "amax": reduced,
    "amin": reduced,
    "bmm": multiplied_in_batches,
    "masked_fill": filled,
    "max": extreme,
    "min": extreme,
    **dict.fromkeys(("new_empty", "new_ones", "new_zeros"), made_alike),
    "repeat": repeated,
    "repeat_interleave": repeated_in_place,
    "zero_": in_place,
    "std": varied,
    "var": varied,
    "chunk": chunked,
    "clamp": clamped,
    "contiguous": made_contiguous,
    "dim": count_of_dimensions,
    "div": divided,
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


METHODS_OF_FLAGS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), of_flags),
    "logical_not": turned,
}
"""The same for tensors of flags."""


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(torch, name): elementwise for name in _ELEMENTWISE},
    **{getattr(torch, name): of_tensor_first(function) for name, function in _OF_TWO.items()},
    **{getattr(functional, name): activated for name in _ACTIVATIONS},
    functional.elu: bent_to_limit,
    functional.leaky_relu: bent_by_slope,
    **{function: of_two(function) for function in _OF_TWO.values()},
    **{
        function: of_two_assigned(function)
        for function in (operator.iadd, operator.imul, operator.isub, operator.itruediv)
    },
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
    the_same: named,
    **{check: checked(check) for check in (check_equal, check_length, check_true, same_value)},
    functional.adaptive_avg_pool1d: adaptive_pooling(1),
    functional.adaptive_avg_pool2d: adaptive_pooling(2),
    functional.avg_pool1d: average_pooling(1),
    functional.avg_pool2d: average_pooling(2),
    functional.batch_norm: normed,
    functional.dropout: dropped,
    functional.embedding: embedded,
    functional.fold: folded,
    functional.gelu: bent,
    functional.glu: gated,
    functional.group_norm: group_normed,
    functional.interpolate: interpolated,
    functional.layer_norm: layer_normed,
    functional.logsigmoid: elementwise,
    functional.linear: linearly_mapped,
    functional.log_softmax: softened_in_any_dtype,
    functional.max_pool1d: max_pooling(1),
    functional.max_pool2d: max_pooling(2),
    functional.normalize: of_length_one,
    functional.pad: padded,
    functional.rms_norm: normed_by_squares,
    functional.sigmoid: elementwise,
    functional.softplus: bent_softly,
    functional.tanh: elementwise,
    functional.scaled_dot_product_attention: attended,
    functional.softmax: softened_in_any_dtype,
    functional.unfold: unfolded,
    operator.getitem: item,
    operator.setitem: written_at,
    operator.matmul: multiplied,
    operator.neg: elementwise,
    operator.pow: raised_to_power,
    **dict.fromkeys((operator.and_, operator.or_, operator.xor), of_flags),
    **dict.fromkeys((torch.argmax, torch.argmin), place_of_extreme),
    **dict.fromkeys((torch.cumprod, torch.cumsum), summed_up),
    **dict.fromkeys((torch.logical_and, torch.logical_or, torch.logical_xor), of_flags),
    **dict.fromkeys((torch.maximum, torch.minimum), of_tensors),
    **dict.fromkeys((torch.tril, torch.triu), of_triangle),
    operator.invert: turned,
    torch.addcmul: of_three,
    torch.bmm: multiplied_in_batches,
    torch.cat: joined,
    torch.chunk: chunked,
    torch.clamp: clamped,
    torch.conv1d: convolution(1),
    torch.conv2d: convolution(2),
    torch.conv3d: convolution(3),
    torch.div: divided,
    torch.einsum: of_indices,
    torch.flatten: flattened,
    torch.logical_not: turned,
    torch.matmul: multiplied,
    torch.max: extreme,
    torch.mean: reduced,
    torch.min: extreme,
    torch.outer: outer_product,
    torch.permute: permuted_to,
    torch.pow: raised_to_power,
    torch.relu: elementwise,
    torch.relu_: in_place,
    torch.repeat_interleave: repeated_in_place,
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
    torch.where: chosen,
}
"""Function -> its shape function."""


def are_intact() -> bool:
    """Return whether torch's functions and methods are those of which this module speaks: nobody has exchanged any."""
    try:
        return _WERE_INTACT and all(read(home) == found for read, home, found in _EXPECTED)
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
    *(
        "__and__",
        "__invert__",
        "__or__",
        "__rand__",
        "__ror__",
        "__rpow__",
        "__rxor__",
        "__setitem__",
        "__xor__",
    ),
    *("__le__", "__lt__", "__matmul__", "__mul__", "__ne__", "__neg__", "__pow__", "__radd__", "__rmul__"),
    *("__rsub__", "__rtruediv__", "__sub__", "__truediv__"),
)


_OF_LAYERS = {
    "torch": ("batch_norm", "group_norm", "layer_norm", "pixel_shuffle", "rms_norm"),
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
    read: Any = operator.attrgetter(*METHODS, *METHODS_OF_FLAGS, *_FURTHER_METHODS, *_OPERATORS_OF_TENSORS)
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


_HOME = str(torch.__file__).removesuffix("__init__.py")


def _is_of_torch(value: Any) -> bool:
    """Return whether a function was written in C, or in Python by torch."""
    code = getattr(value, "__code__", None)
    return code is None or str(code.co_filename).startswith(_HOME)


_EXPECTED = _expected()
_WERE_INTACT = all(
    _is_of_torch(value)
    for _, _, found in _EXPECTED
    for value in (found if isinstance(found, tuple) else (found,))
)
"""Somebody may have exchanged them before this module was loaded, which is when it is needed first."""

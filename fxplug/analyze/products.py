"""What convolutions, products of matrices and attention cost: one multiply-add for each multiplication summed up."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from torch import nn

from fxplug.analyze.cost import CallCost, OperatorCall
from fxplug.analyze.shapes import TensorMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

__all__ = [
    "addbmm",
    "attention",
    "bilinear",
    "convolution",
    "einsum",
    "general_convolution",
    "inner_product",
    "linear",
    "multihead_attention",
    "multihead_attention_function",
    "product",
    "product_and_sum",
    "tensordot",
    "transposed_convolution",
]


def _weight_shape(call: OperatorCall, position: int = 1) -> torch.Size | None:
    if call.module is None:
        return call.shape(position, "weight")
    weight = getattr(call.module, "weight", None)
    return None if weight is None else weight.shape


def convolution(call: OperatorCall) -> int | None:
    """Count a convolution: each element of the result sums up a window of the channels of its group."""
    weight = _weight_shape(call)
    return None if weight is None else call.elements() * weight[1:].numel()


def transposed_convolution(call: OperatorCall) -> int | None:
    """Count a transposed convolution: each element of the input is spread over a window."""
    weight, given = _weight_shape(call), call.shape(0, "input", "self")
    return None if weight is None or given is None else given.numel() * weight[1:].numel()


def general_convolution(call: OperatorCall) -> int | None:
    """Count the operator that stands for convolutions of both kinds and of any rank."""
    return (transposed_convolution if call.argument(6, "transposed") else convolution)(call)


def linear(call: OperatorCall) -> int | None:
    """Count a linear layer; its bias is where the sums begin."""
    weight = _weight_shape(call)
    return None if weight is None else call.elements() * weight[-1]


def bilinear(call: OperatorCall) -> int | None:
    """Count a bilinear layer: the weight is multiplied by the first input, and the result by the second one."""
    weight = _weight_shape(call, 2)
    return None if weight is None else call.elements() * (weight[-2] * weight[-1] + weight[-1])


def product(call: OperatorCall) -> int | None:
    """Count a product of vectors, matrices or batches of them."""
    left = call.shape(0, "input", "self")
    return None if left is None else call.elements() * left[-1]


def inner_product(call: OperatorCall) -> int | None:
    """Count ``torch.inner``, which multiplies element by element where one side is a single number."""
    left, right = call.shape(0, "input", "self"), call.shape(1, "other")
    return None if left is None or right is None else call.elements() * (left[-1] if left and right else 1)


def product_and_sum(call: OperatorCall) -> int | None:
    """Count a product of matrices that is added to something; what is added is where the sums begin."""
    left = call.shape(1, "mat1", "batch1", "mat")
    return None if left is None else call.elements() * left[-1]


def addbmm(call: OperatorCall) -> int | None:
    """Count products of a batch of matrices that are all added up."""
    left = call.shape(1, "batch1")
    return None if left is None else call.elements() * left[0] * left[-1]


def tensordot(call: OperatorCall) -> int | None:
    """Count a product of tensors that is summed up over some of their dimensions."""
    left = call.shape(0, "a", "self")
    dims: Any = call.argument(2, "dims", call.kwargs.get("dims_self", 2))
    if left is None:
        return None
    if isinstance(dims, int):
        return call.elements() * left[len(left) - dims :].numel()
    if type(dims) not in {list, tuple}:
        return None
    # torch.tensordot takes the dimensions of both sides here, the operator those of the left one alone.
    own: Sequence[int] = dims[0] if dims and isinstance(dims[0], (list, tuple)) else dims
    return call.elements() * math.prod(left[dim] for dim in own)


# -- einsum

Label = str | int
"""A letter, or for dimensions behind an ellipsis their place counted from the end of it."""


def einsum(call: OperatorCall) -> int | CallCost | None:
    """Count what an equation says for one or two operands; in which order more are multiplied is torch's choice."""
    equation, *operands = call.args
    if operands and type(operands[0]) in {list, tuple}:
        operands = list(operands[0])
    shapes = [part.shape for part in operands if isinstance(part, TensorMetadata)]
    if not isinstance(equation, str) or len(shapes) != len(operands) or len(shapes) > 2:
        return None
    terms, kept = _read_equation(equation, shapes)
    if len(terms) == 1:
        moved = terms[0].keys() <= kept
        return CallCost(0, 0, 0) if moved else math.prod(terms[0].values())
    return _contraction(terms, kept)


def _read_equation(equation: str, shapes: list[torch.Size]) -> tuple[list[dict[Label, int]], set[Label]]:
    """Return the sizes of the labels of each operand, and the labels of the result."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms: list[dict[Label, int]] = []
    uses: Counter[Label] = Counter()
    for term, shape in zip(left.split(","), shapes, strict=True):
        before, dots, after = term.partition("...")
        hidden = len(shape) - len(before) - len(after) if dots else 0
        labels: list[Label] = [*before, *range(-hidden, 0), *after]
        terms.append(dict(zip(labels, shape, strict=True)))
        uses.update(labels)
    if not arrow:
        return terms, {label for label, count in uses.items() if count == 1 or isinstance(label, int)}
    letters: set[Label] = {*right.replace(".", "")}
    return terms, letters | {label for label in uses if isinstance(label, int) and "..." in right}


def _contraction(terms: list[dict[Label, int]], kept: set[Label]) -> int:
    # What is summed up and stands on one side only is summed up before the sides are multiplied.
    total = 0
    alone: set[Label] = set()
    for term, other in (terms, terms[::-1]):
        own = {
            label
            for label, size in term.items()
            if label not in kept and size != 1 and other.get(label, 1) == 1
        }
        total += math.prod(term.values()) if own else 0
        alone |= own
    sizes = {label: max(term.get(label, 1) for term in terms) for term in terms for label in term}
    if any(0 in term.values() for term in terms):
        return total
    return total + math.prod(size for label, size in sizes.items() if label not in alone)


# -- attention


def _attention_shapes(call: OperatorCall) -> tuple[torch.Size, torch.Size, torch.Size] | None:
    query, key, value = (call.shape(place, name) for place, name in enumerate(("query", "key", "value")))
    return None if query is None or key is None or value is None else (query, key, value)


def attention(call: OperatorCall) -> int | None:
    """Count the two products of attention; its softmax is not counted."""
    shapes = _attention_shapes(call)
    if shapes is None:
        return None
    query, key, value = shapes
    rows = call.elements() // max(value[-1], 1)
    return rows * key[-2] * (query[-1] + value[-1])


def multihead_attention(call: OperatorCall) -> int | None:
    """Count the four projections and two products of ``nn.MultiheadAttention``; its softmax is not counted."""
    module = call.module
    if not isinstance(module, nn.MultiheadAttention):
        return None
    more = int(module.bias_k is not None) + int(module.add_zero_attn)
    return _projected_attention(call, module.embed_dim, int(module.batch_first), more)


def multihead_attention_function(call: OperatorCall) -> int | None:
    """Count the function that does the work of ``nn.MultiheadAttention``."""
    if call.argument(21, "static_k") is not None or call.argument(22, "static_v") is not None:
        return None
    more = int(call.argument(7, "bias_k") is not None) + int(bool(call.argument(9, "add_zero_attn")))
    return _projected_attention(call, call.argument(3, "embed_dim_to_check"), 0, more)


def _projected_attention(call: OperatorCall, width: int, length_dim: int, more: int) -> int | None:
    """Count projections and products; `more` is how many keys and values come to those that are given."""
    shapes = _attention_shapes(call)
    if shapes is None:
        return None
    query, key, value = shapes
    targets, sources = query[:-1].numel(), key[:-1].numel()
    length = key[0 if len(key) == 2 else length_dim]
    projected = targets * query[-1] * width + sources * (key[-1] + value[-1]) * width
    # Each row of a sequence attends to every row of the other: once for the weights, once for the sum.
    return projected + 2 * targets * (length + more) * width + targets * width * width

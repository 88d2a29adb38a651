"""Sizes: asked for, computed with, iterated over."""

# ruff: noqa: C416, RUF005
from __future__ import annotations

import math
import operator

import torch
from torch import nn
from torch.nn import functional as F

from capture_corpus.corpus import program
from capture_corpus.inputs import (
    cube,
    image,
    larger,
    larger_cube,
    larger_image,
    longer_vector,
    one,
    ramp,
    tokens,
    tracked,
    tracked_larger,
    two,
    two_larger,
    vector,
)


@program(one, others=larger, rows=(20,), symbolic="FXP-T003")
def length_of_a_tensor(x):
    return x * len(x)


@program(tracked, others=tracked_larger, rows=(20,), symbolic="FXP-T005")
def rows_of_a_tensor(x):
    return torch.stack([row * (index + 1) for index, row in enumerate(x)])


@program(one, others=larger, rows=(20,), symbolic="FXP-T005")
def starred_shape(x):
    return x.reshape(*x.shape, 1)


@program(one, others=larger, rows=(20,), symbolic="FXP-T005")
def shape_in_a_tuple(x):
    return x.view((*x.shape[:-1], 3, 1)).expand(tuple(x.shape) + (2,))


@program(cube, others=larger_cube, rows=(20,), symbolic="FXP-T005")
def starred_unpacking(x):
    batch, *rest = x.shape
    return x.reshape(batch, math.prod(rest))


@program(one, others=larger, rows=(20,), symbolic="FXP-T005")
def sum_of_a_shape(x):
    return x * sum(x.shape)


@program(one, others=larger, rows=(20,), symbolic="FXP-T002")
def range_of_a_size(x):
    total = x[0]
    for index in range(1, x.shape[0]):
        total = total + x[index] * index
    return total


@program(two, others=two_larger, rows=(20,), symbolic="FXP-T005")
def rows_side_by_side(x, y):
    return [first * second for first, second in zip(x, y, strict=True)]


@program(one, rows=(20,))
def unpacked_tensor(x):
    first, second = x
    return first - second


@program(longer_vector, others=vector, rows=(20,), symbolic="FXP-T005")
def first_and_rest(x):
    first, *rest = x
    return first * torch.stack(rest)


@program(one, others=larger, symbolic="FXP-T005")
def rows_in_reverse(x):
    return torch.cat([row for row in reversed(x)])


@program(image, others=larger_image, rows=(20,))
def unpacked_size(x):
    batch, channels, height, width = x.size()
    return x.permute(0, 2, 3, 1).reshape(batch, height * width, channels)


@program(one, others=larger, rows=(21,))
def zeros_of_a_size(x):
    return x + torch.zeros(x.shape[0], 3)


@program(one, others=larger, rows=(21,))
def tensor_of_a_shape(x):
    return x / torch.tensor(x.shape).prod()


@program(image, others=larger_image, rows=(21,))
def half_of_a_size(x):
    half = int(x.shape[-1] / 2)
    return x[..., :half] - x[..., half:]


@program(image, others=larger_image, rows=(21,), symbolic="FXP-T001")
def longest_side(x):
    side = max(x.shape[-2], x.shape[-1])
    return F.pad(x, (0, side - x.shape[-1], 0, side - x.shape[-2]))


@program(image, others=larger_image, rows=(21,), symbolic="FXP-T002")
def rounded_size(x):
    return F.interpolate(x, size=(round(x.shape[2] * 0.7), math.ceil(x.shape[3] / 3)))


@program(cube, others=larger_cube, rows=(21,))
def scale_by_the_root_of_a_size(x):
    return x / math.sqrt(x.size(-1)) * float(x.shape[0]) ** -0.5


@program(cube, others=larger_cube, symbolic="FXP-T005")
def smallest_of_a_shape(x):
    return x.narrow(0, 0, min(x.shape)) * sorted(x.shape)[-1]


@program(vector, others=longer_vector, symbolic="FXP-T068")
def quotient_and_remainder(x):
    rows, left = divmod(x.numel(), 2)
    return x.reshape(rows, 2) + left + abs(2 - rows)


@program(one, others=larger, rows=(21,))
def positions(x):
    return x + torch.arange(x.size(0), device=x.device, dtype=x.dtype).unsqueeze(1)


@program(one, others=larger)
def filled_with_a_size(x):
    return torch.full((x.size(1), x.size(0)), x.size(0) + 0.5) @ x


@program(one, others=larger)
def new_tensor_of_a_shape(x):
    return torch.cat([x, x.new_zeros(x.shape[:1] + (1,)), x.new_ones(x.size(0), 2)], dim=1)


@program(cube, others=larger_cube)
def flattened_by_hand(x):
    return x.view(x.size(0), -1)


@program(cube, others=larger_cube)
def heads(x):
    batch, length, width = x.shape
    return x.view(batch, length, 2, width // 2).transpose(1, 2).contiguous().view(batch * 2, length, -1)


@program(vector, others=longer_vector)
def causal_mask(x):
    size = x.shape[0]
    mask = torch.ones(size, size, dtype=torch.bool).tril()
    return (x[:, None] * x).masked_fill(~mask, float("-inf")).softmax(-1)


@program(tokens, others=lambda: (torch.tensor([[1, 2, 3]]),))
class LearnedPositions(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.places = nn.Embedding(8, 4)

    def forward(self, ids):
        places = torch.arange(ids.shape[1]).expand(ids.shape)
        return self.words(ids) + self.places(places)


@program(cube, others=lambda: (ramp(2, 5, 4),))
class SlicedTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", ramp(8, 4))

    def forward(self, x):
        return x + self.table[: x.size(1)]


# -- branches on sizes and kinds


@program(one, others=(lambda: (ramp(2, 3, 4),), vector), rows=(19,), symbolic="FXP-T001")
def branch_on_rank(x):
    if x.dim() == 2:
        return x.unsqueeze(0)
    return x * 2 if x.ndim == 3 else x


@program(one, others=larger, rows=(19,), symbolic="FXP-T001")
def branch_on_a_size(x):
    if x.shape[0] > 3:
        return x.mean(0)
    return x.sum(0)


@program(one, others=lambda: (torch.ones(2, 3, dtype=torch.float64),), rows=(19,), symbolic="FXP-T001")
def branch_on_dtype(x):
    return x * 2 if x.dtype == torch.float32 else x * 3


@program(one, rows=(19,), symbolic="FXP-T001")
def branch_on_device(x):
    return x * 2 if x.device.type == "cpu" and not x.is_cuda and x.device == torch.device("cpu") else x


@program(two, others=(lambda: (*one(), *larger()), two_larger), symbolic="FXP-T001")
def shapes_must_agree(x, y):
    if x.shape != y.shape:
        raise ValueError(f"Shapes differ: {tuple(x.shape)} and {tuple(y.shape)}")
    return x + y


@program(one, others=lambda: (ramp(2, 4),), symbolic="FXP-T001")
def asserted_shape(x):
    assert x.shape[1] == 3, f"expected 3 columns, got {x.shape[1]}"
    return x @ torch.ones(3, 1)


@program(one, others=(larger, lambda: (ramp(9, 3),)), symbolic="FXP-T001")
def chained_comparison(x):
    return x * 2 if 1 < x.shape[0] < 5 else x * 3


@program(one, others=larger, symbolic="FXP-T001")
def size_is_one_of(x):
    return x * 2 if x.shape[0] in (2, 4) and x.size() in [(2, 3), (4, 3)] else x * 3


@program(one, others=lambda: (ramp(2, 0),), symbolic="FXP-T001")
def size_as_truth(x):
    if not x.shape[1] or not x.numel():
        return x.sum()
    return x.max()


@program(vector, others=(longer_vector, lambda: (ramp(8),)), symbolic="FXP-T001")
def halved_until_one(x):
    size = x.shape[0]
    while size > 1:
        size //= 2
        x = x[:size] + x[-size:]
    return x


def _tree_sum(x):
    half = x.shape[0] // 2
    return x if half == 0 else _tree_sum(x[:half]) + _tree_sum(x[half : 2 * half])


@program(vector, others=longer_vector, symbolic="FXP-T001")
def recursion_on_a_size(x):
    return _tree_sum(x)


@program(one, others=lambda: (torch.ones(2, 3, dtype=torch.float64),), symbolic="FXP-T068")
def limits_of_a_dtype(x):
    return x + torch.finfo(x.dtype).eps + torch.full_like(x, torch.finfo(x.dtype).max).isinf()


@program(one, others=larger)
def bytes_of_a_tensor(x):
    return x * (x.element_size() * x.nelement())


@program(one, others=larger, symbolic="FXP-T002")
def size_as_an_index(x):
    names = list("abcdefgh")
    return x * (len(names[: operator.index(x.shape[0])]) + ord(names[x.shape[0]]))


@program(one, others=larger)
def repeated_list(x):
    return torch.cat([x] * x.shape[1] + [x[:1]] * x.shape[0])


@program(one, others=larger)
def returned_sizes(x):
    return x.shape, x.shape[0] + 1, x.dim(), x.dtype, x.device


@program(image, others=larger_image, symbolic="FXP-T002")
def windows(x):
    rows = [
        x[:, :, top : top + 4, left : left + 4].mean((2, 3))
        for top in range(0, x.shape[2] - 3, 4)
        for left in range(0, x.shape[3] - 3, 4)
    ]
    return torch.stack(rows, dim=1)


@program(image, others=larger_image)
def padded_to_a_multiple(x):
    height, width = x.shape[-2:]
    return F.pad(x, (0, -width % 5, 0, -height % 5))


@program(vector, others=longer_vector, symbolic="FXP-T002")
def loop_over_bits_of_a_size(x):
    for bit in range(x.shape[0].bit_length()):
        if x.shape[0] >> bit & 1:
            x = x + bit
    return x


@program(one, others=larger, symbolic="FXP-T042")
def size_converted_back_and_forth(x):
    return x[: int(float(str(x.shape[0]))) - 1] * complex(x.shape[1]).real


@program(one, others=larger)
def size_times_tensor(x):
    return x.shape[0] * x + x.shape[1] - x / x.shape[0] + x.shape[0] ** x

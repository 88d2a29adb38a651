"""Text, hashes and keys made of values."""

# ruff: noqa: UP031, G004
from __future__ import annotations

import logging

import torch
from torch import nn

from capture_corpus.corpus import program
from capture_corpus.inputs import larger, one, two


@program(one, others=lambda: (torch.ones(12, 3),), rows=(5,), symbolic="FXP-T042")
def formatted_size(x):
    return x * len(f"{x.shape[0]}")


@program(one, others=lambda: (torch.ones(2, 3, dtype=torch.int64),), rows=(5,), symbolic="FXP-T042")
def text_of_a_dtype(x):
    return x * (2 if "float" in str(x.dtype) else 3)


@program(one, rows=(5,), symbolic="FXP-T042")
def text_of_a_device(x):
    return x * 2 if str(x.device).startswith("cpu") else x


@program(one, others=larger, rows=(5,), symbolic="FXP-T042")
class LayerNamedByASize(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer02 = nn.Linear(3, 2)
        self.layer05 = nn.Linear(3, 4)

    def forward(self, x):
        return getattr(self, f"layer{x.shape[0]:02d}")(x)


@program(one, others=larger, symbolic="FXP-T002")
def percent_format(x):
    return x * len("%d rows of %s" % (x.shape[0], x.dtype))


@program(one, others=larger, symbolic="FXP-T005")
def joined_shape(x):
    return x * len("x".join(map(str, x.shape))) + len(repr(x.shape))


@program(one, symbolic="FXP-T042", shape="FXP-T066")
def printed_tensor(x):
    return x * len(str(x[0])) + len(repr(x))


@program(one, others=larger, symbolic="FXP-T042")
def format_method(x):
    return x * len(f"{x.size(0):>5}|{x.size(1)!r}|{tuple(x.size())}")


@program(one, others=lambda: (torch.ones(2, 3, dtype=torch.float64),), symbolic="FXP-T043")
def dtype_as_a_key(x):
    return x * {torch.float32: 1.5, torch.float64: 2.5}[x.dtype]


@program(one, others=larger, symbolic="FXP-T005")
def shape_as_a_key(x):
    cache = {(2, 3): torch.tanh}
    return cache.get(tuple(x.shape), torch.sigmoid)(x) + cache.get(x.shape, torch.exp)(x)


@program(one, others=larger, symbolic="FXP-T043")
def size_as_a_key(x):
    return x * {2: 10.0, 5: 20.0}[x.shape[0]]


@program(one, others=larger, symbolic="FXP-T043")
def size_in_a_set(x):
    return x * len({x.shape[0], x.shape[1], 2, 3})


@program(two, symbolic="FXP-T043")
def tensors_as_keys(x, y):
    scales = {x: 2.0, y: 3.0}
    return sum(value * scale for value, scale in scales.items())


@program(two, symbolic="FXP-T043")
def set_of_tensors(x, y):
    return x * len({x, y, x}) + (x in {y})


@program(one, symbolic="FXP-T043")
def hash_of_a_tensor(x):
    return x * 2 if hash(x) == hash(x) else x


@program(one, others=lambda: (torch.ones(2, 4),), symbolic="FXP-T001")
def text_only_in_the_error(x):
    if x.shape[1] != 3:
        raise ValueError(f"{x.shape[1]} columns; expected {3!r:>4}")
    return x + 1


@program(one, rows=(7,), shape="FXP-T066")
def logged_shape(x):
    logging.getLogger("capture_corpus").debug("shape %s, first %s", x.shape, x[0])
    logging.getLogger("capture_corpus").debug(f"mean {x.mean()}")
    return x + 1


@program(
    one, factory=True, state=lambda root: root.lines, symbolic="FXP-T042", shape="FXP-T055", value="FXP-T055"
)
def lines_kept_by_a_callback():
    def forward(x):
        forward.lines.append(f"{x.dtype} {x.ndim}")
        return x + len(forward.lines)

    forward.lines = []
    return forward

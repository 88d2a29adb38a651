"""Programs that eager refuses: its own error must come through."""

from __future__ import annotations

import functools

import torch
from torch import nn

from capture_corpus.corpus import program
from capture_corpus.inputs import one, ramp, tracked, two, vector

wrong = functools.partial(program, illegal=True)


@wrong(two)
def shapes_that_do_not_fit(x, y):
    return x @ y


@wrong(vector)
def too_few_values_to_unpack(x):
    a, b, c, d, e = x
    return a + b + c + d + e


@wrong(one)
def attribute_that_nothing_has(x):
    return x.no_such_attribute * 2


@wrong(one, symbolic="FXP-T001")
def error_raised_on_purpose(x):
    if x.shape[0] == 2:
        raise LookupError("two rows are not allowed")
    return x


@wrong(tracked)
def write_to_a_leaf_that_needs_gradients(x):
    x += 1
    return x


@wrong(one)
class MissingChild(nn.Module):
    def forward(self, x):
        return self.no_such_layer(x)


@wrong(one, symbolic="FXP-T001")
def ambiguous_truth(x):
    return x if x > 0 else -x


@wrong(lambda: (ramp(2, 3), "three"))
def wrong_kind_of_argument(x, y):
    return torch.add(x, y)

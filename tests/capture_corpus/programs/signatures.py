"""Parameters: optional, named, starred, with odd names and odd defaults; and what is wrapped around functions."""

# ruff: noqa: A002, B006, B008, TC003
from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Annotated

import torch
from torch import nn

from capture_corpus.corpus import program
from capture_corpus.inputs import larger, one, ramp, tracked, two


def mask():
    return {"mask": torch.tensor([[True, False, True]])}


@program(one, other_kwargs=mask, rows=(22,))
def optional_input_left_out(x, mask=None):
    return x * 2 if mask is None else x.masked_fill(mask, 0.0)


@program(one, kwargs=mask, rows=(22,), symbolic="FXP-T060")
def optional_input_given(x, mask=None):
    if mask is not None:
        x = x.masked_fill(mask, 0.0)
    return x


@program(one, rows=(22,))
def optional_input_with_or(x, scale=None):
    scale = scale or 3.0
    return x * scale


@program(one, kwargs=lambda: {"y": ramp(2, 3), "scale": 2.0}, rows=(26,))
def keyword_only(x, *, y, scale=1.0, bias=None):
    out = x + y * scale
    return out if bias is None else out + bias


@program(two, kwargs=lambda: {"shift": torch.ones(3)}, rows=(26,), symbolic="FXP-T005")
def starred_parameters(*values, **options):
    return sum(values) + options["shift"] + len(values) * len(options)


@program(two, kwargs=lambda: {"a": ramp(3), "b": ramp(3)}, rows=(26,), symbolic="FXP-T005")
def all_starred_parameters_passed_on(*args, **kwargs):
    def inner(x, y, *, a, b):
        return x * a + y * b

    return inner(*args, **kwargs)


@program(two, rows=(26,))
def positional_only(x, y, /, scale=2.0):
    return (x - y) * scale


@program(lambda: (), kwargs=lambda: {"y": ramp(2, 3), "x": ramp(3)}, rows=(26,))
def keywords_out_of_order(x, y):
    return x - y * 2


@program(one, rows=(31,), symbolic="FXP-T012")
def tensor_as_a_default(x, weight=torch.tensor([1.0, 2.0, 3.0])):
    return x * weight


@program(one, kwargs=lambda: {"activation": torch.tanh}, other_kwargs=dict, rows=(31,))
def callable_as_a_default(x, activation=torch.relu):
    return activation(x)


@program(one, symbolic="FXP-T003")
def list_as_a_default(x, seen=[]):
    return x + len(seen)


@program(one, rows=(14,))
def parameter_called_nan(nan):
    return nan * float("nan"), nan + float("inf"), nan - float("-inf")


@program(two, rows=(14,))
def parameters_called_torch_and_device(torch, device):
    return (torch + device).relu().to(dtype=torch.dtype).to("cpu")


@program(two, rows=(26,))
def parameter_called_self(self, root):
    return self - root.sum()


@program(two, rows=(14,), symbolic="FXP-T003")
def parameters_called_like_builtins(input, getattr):
    return input * getattr + input.size(0) * len(input.shape)


@program(lambda: (), kwargs=lambda: {"not a name": ramp(3), "x": ramp(3), "class": ramp(3)}, rows=(30,))
def keywords_that_are_no_names(**inputs):
    return inputs["not a name"] + inputs["class"] * inputs["x"]


@program(
    lambda: ({"x'] + __import__('os').getpid() #": ramp(2), "\n": ramp(2)},), rows=(30,), symbolic="FXP-T005"
)
def keys_that_look_like_code(batch):
    return {key + "()": value * 2 for key, value in batch.items()}


@program(one, rows=(32,))
def odd_annotations(
    x: Annotated[torch.Tensor, "float32"], f: Callable[[int], int] = abs, y: torch.Tensor | None = None
) -> Annotated[torch.Tensor, 3]:
    return x * f(-2)


@program(one, rows=(32,))
def keyword_schema_names(x):
    return x.clone().random_(**{"from": 3, "to": 4}) + getattr(torch.ops.aten.random, "from")(x, 5, 6)


def doubled(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@program(two, rows=(26,))
@doubled
def decorated_function(x, y, scale=1.0):
    return x * scale + y


@program(tracked, rows=(26,))
class DecoratedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @doubled
    def forward(self, x, *, bias=1.0):
        return self.linear(x) + bias


@program(tracked, rows=(26,), symbolic="FXP-T005")
class ForwardWithStars(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Bilinear(3, 3, 2)

    def forward(self, *args, **kwargs):
        return self.inner(args[0], *args, **kwargs)


@program(one, factory=True, rows=(26,))
def partial_of_a_function():
    return functools.partial(lambda x, scale, shift=0.0: x * scale + shift, scale=3.0)


@program(one, factory=True)
def bound_method():
    class Holder:
        def __init__(self):
            self.scale = torch.tensor(2.0)

        def run(self, x):
            return x * self.scale

    return Holder().run


@program(one, factory=True)
def object_with_a_call():
    class Affine:
        def __init__(self):
            self.weight = torch.eye(3) * 2

        def __call__(self, x, bias=1.0):
            return x @ self.weight + bias

    return Affine()


@program(one, factory=True)
def function_of_torch_itself():
    return torch.nn.functional.normalize


@program(one, factory=True)
def lambda_as_the_root():
    return lambda x, *, p=2: x**p


@program(one, others=larger, symbolic="FXP-T043")
def cached_helper(x):
    @functools.cache
    def scale(size):
        return math.sqrt(size)

    return x * scale(x.shape[0]) + scale(x.shape[0])


@program(one, symbolic="FXP-T005")
def reduced(x):
    return functools.reduce(lambda total, row: total * 2 + row, x.unbind(0), torch.zeros(3))


@program(one)
def default_of_an_inspected_function(x):
    def helper(value, factor=4):
        return value * factor

    return helper(x, inspect.signature(helper).parameters["factor"].default)


@program(two)
def argument_used_as_a_default(x, y):
    def helper(value, other=y):
        return value + other

    return helper(x) * helper(y, other=x)


@program(lambda: (ramp(2, 3), torch.nn.functional.relu), others=lambda: (ramp(2, 3), torch.tanh))
def callable_input(x, activation):
    return activation(x) * 2


@program(
    lambda: (ramp(2, 3), nn.Linear(3, 2, bias=False).requires_grad_(False)),
)
def module_input(x, layer):
    return layer(x)

"""What is a traced value? Questions about classes, attributes and identity."""

from __future__ import annotations

import collections.abc
import enum
import functools
import numbers

import torch
from torch import nn

from capture_corpus.corpus import program
from capture_corpus.inputs import larger, nothing, one, positive, tracked, two


@program(tracked, rows=(2,), others=larger, symbolic="FXP-T040")
def isinstance_of_tensor(x):
    return x + 1 if isinstance(x, torch.Tensor) else x


@program(one, rows=(2,), symbolic="FXP-T040")
def is_tensor(x):
    return x + 1 if torch.is_tensor(x) else x


@program(one, rows=(2, 9), symbolic="FXP-T040")
def exact_type(x):
    return x + 1 if type(x) is torch.Tensor else x


@program(one, rows=(2,), symbolic="FXP-T040")
def class_attribute(x):
    return x + 1 if x.__class__ is torch.Tensor else x


@functools.singledispatch
def _dispatched(value):
    return value * 100


@_dispatched.register(torch.Tensor)
def _(value):
    return value + 1


@_dispatched.register(list)
def _(value):
    return sum(_dispatched(part) for part in value)


@program(one, rows=(2,), symbolic="FXP-T040")
def single_dispatch(x):
    return _dispatched(x)


@program(lambda: ([one()[0], positive()[0]],), symbolic="FXP-T040")
def single_dispatch_on_a_list(values):
    return _dispatched(values)


class _Scaler:
    @functools.singledispatchmethod
    def scale(self, value):
        return value * 3

    @scale.register(torch.Tensor)
    def _(self, value):
        return value * 2


@program(one, symbolic="FXP-T040")
def single_dispatch_method(x):
    return _Scaler().scale(x)


@program(one, rows=(2,), symbolic="FXP-T040")
def is_callable(x):
    return x() if callable(x) else x - 1


@program(one, rows=(2,), symbolic="FXP-T040")
def match_on_class(x):
    match x:
        case torch.Tensor(ndim=2):
            return x + 2
        case torch.Tensor():
            return x + 1
        case _:
            return x


@program(one, rows=(2,), others=lambda: (torch.ones(2, 3, 4),), symbolic="FXP-T003")
def match_on_shape(x):
    match x.shape:
        case (rows, columns):
            return x.reshape(columns, rows)
        case [*_, last]:
            return x * last
        case _:
            return x


@program(lambda: ({"kind": "sum", "x": torch.ones(2, 3)},), symbolic="FXP-T041")
def match_on_mapping(request):
    match request:
        case {"kind": "mean", "x": x}:
            return x.mean()
        case {"kind": "sum", "x": x, **rest}:
            return x.sum() + len(rest)
    return None


@program(one, others=lambda: ([one()[0], one()[0]],), symbolic="FXP-T040")
def isinstance_of_several(x):
    return torch.stack(list(x)) if isinstance(x, (list, tuple)) else x * 2


@program(one, symbolic="FXP-T040")
def not_a_number(x, scale=2.0):
    parts = [part if isinstance(part, numbers.Number) else part.sum() for part in (x, scale)]
    return parts[0] * parts[1]


@program(one)
def isinstance_of_a_size(x):
    return x * 2 if isinstance(x.shape[0], int) and not isinstance(x.shape[0], bool) else x


@program(one)
def shape_is_a_sequence(x):
    return x + isinstance(x.shape, collections.abc.Sequence) + 2 * isinstance(x.shape, tuple)


@program(tracked, symbolic="FXP-T040")
class IsinstanceOfParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        scales = [value for value in (self.scale, x) if isinstance(value, nn.Parameter)]
        return x * scales[0] + len(scales)


@program(one, symbolic="FXP-T040")
def subclass_of_tensor(x):
    return x * 2 if issubclass(type(x), torch.Tensor) else x


@program(one, symbolic="FXP-T040")
def class_as_key(x):
    actions = {torch.Tensor: torch.sigmoid, float: abs}
    return actions[type(x)](x)


@program(one, symbolic="FXP-T040")
def name_of_the_class(x):
    return x * 2 if type(x).__name__ == "Tensor" else x * 3


@program(one, rows=(4,), symbolic="FXP-T040")
def missing_attribute(x):
    return x * x.scale if hasattr(x, "scale") else x + 1


@program(one, rows=(4,), symbolic="FXP-T040")
def present_attribute(x):
    return x.clamp(min=0) if hasattr(x, "clamp") else x + 1


@program(one, rows=(4,), symbolic="FXP-T040")
def attribute_with_default(x):
    return x * getattr(x, "scale", 2.0)


@program(one, rows=(4,), others=tracked, symbolic="FXP-T040")
def no_gradient_function(x):
    y = x * 1
    return y + 1 if getattr(y, "grad_fn", None) is None else y


@program(one, rows=(4,), symbolic="FXP-T060")
def attribute_error_is_caught(x):
    try:
        return x * x.factor
    except AttributeError:
        return x * 5


def _marked():
    x = torch.ones(2, 3)
    x.is_mask = True
    return (x,)


@program(_marked, others=one, rows=(4,), symbolic="FXP-T040")
def attribute_that_the_caller_set(x):
    return x * 7 if getattr(x, "is_mask", False) else x


@program(one, symbolic="FXP-T040")
def listed_attributes(x):
    return x + ("relu" in dir(x)) + ("no_such_method" in dir(x))


@program(two, others=(lambda: one() * 2,))
def identity_of_two_inputs(x, y):
    return x * 5 if x is y else x + y


@program(
    lambda: ({"x": one()[0], "mask": None},),
    others=(lambda: ({"x": one()[0], "mask": two()[1]},),),
    symbolic="FXP-T041",
)
def none_on_the_left(batch):
    return batch["x"] * 5 if None is batch["mask"] else batch["x"]


@program(one)
def identity_with_a_constant(x):
    parts = [x if part is None else 0.5 for part in (None, True)]
    return parts[0] * parts[1]


@program(one, symbolic="FXP-T001")
def equal_to_none(x):
    return x * 2 if x == None else x * 3  # noqa: E711


@program(two, symbolic="FXP-T044")
def memo_by_identity(x, y):
    memo = {id(x): x * 2}
    if id(y) not in memo:
        memo[id(y)] = y * 3
    return memo[id(x)] + memo[id(y)]


@program(one)
def looks_like_a_tensor(x):
    return x + 1 if torch.overrides.is_tensor_like(x) else x


@program(one)
def is_it_compiled(x):
    traced = torch.jit.is_tracing() or torch.jit.is_scripting() or torch.compiler.is_compiling()
    return x * 100 if traced else x + 1


@program(tracked, others=one, symbolic="FXP-T001")
def needs_gradients(x):
    return x * 2 if x.requires_grad and x.is_leaf else x * 3


@program(one, others=lambda: (torch.ones(3, 2).t(),), symbolic="FXP-T001")
def is_contiguous(x):
    return x.view(-1) if x.is_contiguous() else x.reshape(-1) * 2


@program(one, symbolic="FXP-T005")
def strides_and_offset(x):
    y = x[1:]
    return x * y.storage_offset() + sum(x.t().stride())


@program(one, symbolic="FXP-T001")
def same_storage(x):
    y = x[0]
    return x + 1 if y.data_ptr() == x.data_ptr() else x


@program(one, others=lambda: (torch.ones(2, 3, dtype=torch.int64),), symbolic="FXP-T001")
def is_floating_point(x):
    return x / 2 if torch.is_floating_point(x) and x.is_floating_point() and not x.is_complex() else x // 2


class _Reduction(enum.Enum):
    MEAN = "mean"
    SUM = "sum"


@program(
    one,
    kwargs=lambda: {"kind": _Reduction.SUM},
    other_kwargs=(lambda: {"kind": _Reduction.MEAN},),
    rows=(31,),
    symbolic="FXP-T060",
)
def member_of_an_enumeration(x, kind=_Reduction.MEAN):
    return x.mean() if kind is _Reduction.MEAN else x.sum()


@program(
    one,
    kwargs=lambda: {"mode": "SUM"},
    other_kwargs=(lambda: {"mode": "Mean"},),
    rows=(5, 19),
    symbolic="FXP-T060",
)
def name_of_a_mode(x, mode="mean"):
    return {"sum": torch.sum, "mean": torch.mean}[mode.lower()](x)


@program(nothing)
def no_inputs_at_all():
    return torch.ones(2) * 3

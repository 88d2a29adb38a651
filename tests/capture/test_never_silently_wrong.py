"""Programs that symbolic tracing must capture rightly or refuse, but never capture wrongly.

Each program is run in eager mode and as a captured module. A `TraceError` is an honest answer; another result is not.
Programs marked as expected failures are captured wrongly today.
"""

from __future__ import annotations

import contextlib
import copy
import random
from functools import singledispatch

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.capture import Proxy
from fxplug.errors import FxplugError, TraceError

PROGRAMS = {}


def program(*, wrong: str = ""):
    def register(function):
        mark = pytest.mark.xfail(bool(wrong), strict=True, reason=wrong)
        PROGRAMS[function.__name__] = pytest.param(function, id=function.__name__, marks=mark)
        return function

    return register


@program()
def isinstance_of_tensor(x):
    return x + 1 if isinstance(x, torch.Tensor) else x


@program()
def is_tensor(x):
    return x + 1 if torch.is_tensor(x) else x


@program()
def exact_type(x):
    return x + 1 if type(x) is torch.Tensor else x


@program()
def class_attribute(x):
    return x + 1 if x.__class__ is torch.Tensor else x


@singledispatch
def _dispatched(value):
    return value * 100


@_dispatched.register
def _(value: torch.Tensor):
    return value + 1


@program()
def single_dispatch(x):
    return _dispatched(x)


@program()
def is_callable(x):
    return x + 1 if callable(x) else x


@program()
def match_on_shape(x):
    match x.shape:
        case (_, _):
            return x + 1
        case _:
            return x


@program()
def has_attribute(x):
    return x + 1 if hasattr(x, "no_such_attribute") else x


@program()
def attribute_with_default(x):
    return x * getattr(x, "no_such_attribute", 2.0)


@program()
def gradient_function_is_none(x):
    return x + 1 if getattr(x, "grad_fn", None) is None else x


@program()
def optional_input(x, mask=None):
    if mask is not None:
        x = x * 0
    return x


@program()
def swallowed_length(x):
    try:
        size = len(x)
    except Exception:
        size = 100
    return x * size


@program()
def swallowed_condition(x):
    try:
        if x.sum() > 1e9:
            return x
    except ValueError:
        return x * 100
    return -x


@program()
def formatted_size(x):
    return x * len(f"{x.shape[0]}")


@program()
def text_of_dtype(x):
    return x * (2 if "float" in str(x.dtype) else 3)


@program()
def key_made_of_text(x):
    return {"torch.float32": x, "other": -x}.get(x.dtype, x * 100) if x.ndim == 1 else x


@program()
def without_gradients(x):
    with torch.no_grad():
        return x * 2


@program()
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


@program()
def inference_mode(x):
    with torch.inference_mode():
        return x * 2


@program()
def assigned_requires_grad(x):
    y = x.detach()
    y.requires_grad = True
    return y


@program()
def assigned_data(x):
    y = x.detach().clone()
    y.data = x.detach() * 2
    return y


@program()
def random_tensor(x):
    return x + torch.rand(3)


@program()
def random_tensor_in_place(x):
    return x + torch.empty(3).uniform_()


@program()
def python_random(x):
    return x * random.random()


@program()
def random_like(x):
    return x + torch.rand_like(x)


@program()
def functional_dropout(x):
    return F.dropout(x, 0.5)


@program()
def shape_branch(x):
    return x if x.shape[0] == 2 else -x


@program()
def alias_of_augmented(x):
    y = x.clone()
    z = y
    y += 1
    return z


@program()
def caught_eager_error(x):
    try:
        return x + {}["missing"]
    except KeyError:
        return x * 2


@program()
def ordered_mapping(x):
    from collections import OrderedDict

    return OrderedDict(first=x)


@program()
def size_as_result(x):
    return torch.Size((1, 2))


def outcome(function):
    torch.manual_seed(3)
    random.seed(3)
    results = []
    for _ in range(2):
        x = torch.linspace(0.5, 1, 6).reshape(2, 3).requires_grad_()
        results.append(function(x))
    return results


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.requires_grad, ours.is_inference()) == (
            theirs.dtype,
            theirs.requires_grad,
            theirs.is_inference(),
        )
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("function", PROGRAMS.values())
def test_program_is_captured_rightly_or_refused(capture, function):
    try:
        module = capture(function)
    except FxplugError:
        return
    for ours, theirs in zip(outcome(module), outcome(function), strict=True):
        assert_same(ours, theirs)


class Scaling(nn.Module):
    def forward(self, x):
        return x * 2


def hooked():
    module = Scaling()
    module.register_forward_hook(lambda module, args, result: result * 10)
    return module


def pre_hooked():
    module = Scaling()
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return module


def with_own_forward():
    module = Scaling()
    module.forward = lambda x: x * 5
    return module


class OwnCall(Scaling):
    def __call__(self, x):
        return super().__call__(x) * 10


@pytest.mark.parametrize(
    "make",
    [
        hooked,
        pre_hooked,
        OwnCall,
        with_own_forward,
    ],
)
def test_everything_around_the_forward_of_the_root_is_captured(capture, make):
    x = torch.ones(3)
    try:
        module = capture(make())
    except FxplugError:
        return
    assert torch.equal(module(x), make()(x))


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen: list = []
        self.last = None

    def forward(self, x):
        self.calls += 1
        self.seen.append(x)
        self.last = x
        return x * 2


@pytest.mark.filterwarnings("ignore:While tracing, forward:fxplug.errors.TraceWarning")
def test_module_is_as_before_after_a_trace(capture):
    root = Stateful()
    before = copy.deepcopy(vars(root))
    with contextlib.suppress(FxplugError):
        capture(root)
    assert (root.calls, root.seen, root.last) == (before["calls"], before["seen"], before["last"])


def test_proxy_that_outlives_its_trace_is_dead(capture):
    leaked = []

    def function(x):
        leaked.append(x)
        return x * 2

    module = capture(function)
    size = len(module.graph.nodes)
    with pytest.raises(FxplugError):
        leaked[0] + 1
    assert isinstance(leaked[0], Proxy)
    assert len(module.graph.nodes) == size


def test_evaluation_mode_is_honoured_or_refused(capture):
    class Root(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, self.training)

    module = capture(Root())
    x = torch.ones(100)
    try:
        result = module.eval()(x)
    except FxplugError:
        return
    assert torch.equal(result, x)


def test_a_refusal_that_the_program_turns_into_another_error_is_told():
    def program(x):
        try:
            return x + (1 if x.sum() > 0 else 2)
        except TraceError:
            raise KeyError("nothing of this says what is wrong") from None

    def own(x):
        raise KeyError("of the program")

    with pytest.raises(
        TraceError, match=r"What caught this error went on to raise a KeyError.\) \[FXP-T\d+\]$"
    ):
        fxplug.symbolic_trace(program)
    for trace in (fxplug.symbolic_trace, lambda root: fxplug.trace(root, (torch.ones(3),))):
        with pytest.raises(KeyError, match="of the program"):
            trace(own)

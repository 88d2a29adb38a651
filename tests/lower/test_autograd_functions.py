"""Calls of autograd.Function: engines run forwards that only compute, the others stay in PyTorch with the reason."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.ir import Graph
from fxplug.lower import lower, plan_lowering
from fxplug.lower.autograd_functions import reason_against_forward
from fxplug.semantics.python_code import reason_against_function

sys.path.insert(0, str(Path(__file__).parent))
from lines_backend import LinesBackend, aten, record

X = torch.linspace(-2, 2, 6).reshape(2, 3)
SEEN = []
COUNT = 0
SCALE = 2.0
WEIGHT = torch.ones(3)


class Own(torch.autograd.Function):
    """Scaling, whose gradient is another one."""

    @staticmethod
    def forward(ctx, x, factor=SCALE):
        ctx.save_for_backward(x)
        ctx.factor = factor
        ctx.set_materialize_grads(False)
        y = x * factor
        return torch.tanh(y) if ctx.factor > 1 else y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Apart(torch.autograd.Function):
    """Notes what the gradient needs in a method of its own."""

    @staticmethod
    def forward(x, other):
        return x.relu(), helper(x) + other

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[0])
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, *gradients):
        return gradients


def helper(x):
    return torch.tanh(x * math.pi) * SCALE


def function_of(forward, **methods):
    """Return an autograd.Function with a forward."""
    return type("Made", (torch.autograd.Function,), {"forward": staticmethod(forward), **methods})


def prints(ctx, x):
    print("seen")  # noqa: T201 - on purpose
    return x.relu()


def appends(ctx, x):
    SEEN.append(1)
    return x.relu()


def counts(ctx, x):
    global COUNT  # noqa: PLW0603 - on purpose
    COUNT += 1
    return x.relu()


def reads_a_tensor(ctx, x):
    return x * WEIGHT


def reads_the_clock(ctx, x):
    return x * time.time()


def seeds(ctx, x):
    torch.manual_seed(0)
    return x.relu()


def reads_data(ctx, x):
    return x * 2 if x.sum() > 0 else x


def writes_its_input(ctx, x):
    x.mul_(2)
    return x.relu()


def writes_an_element(ctx, x):
    x[0] = 1
    return x.relu()


def asks_for_gradients(ctx, x):
    return x * 2 if ctx.needs_input_grad[0] else x.relu()


def marks(ctx, x):
    x.my_own = 1
    return x.relu()


def hooks(ctx, x):
    x.register_hook(lambda gradient: gradient)
    return x.relu()


def reaches(ctx, x):
    getattr(torch, "manual_seed")(0)  # noqa: B009 - hidden on purpose
    return x.relu()


def imports(ctx, x):
    import cmath

    return x * cmath.pi


def calls_another(ctx, x):
    return another(x)


def another(x):
    SEEN.append(2)
    return x.relu()


def remembers(ctx, x, *, seen=[]):  # noqa: B006 - on purpose
    return x.relu()


class RefusedError(ValueError):
    def __init__(self):
        SEEN.append(3)


def catches(ctx, x):
    try:
        return x * 2 if x.sum() > 0 else x
    except RuntimeError:
        return x * 3


def catches_all(ctx, x):
    try:
        factor = x.sum().item()
    except:  # noqa: E722 - on purpose
        factor = 3.0
    return x * factor


def asks_for_strides(ctx, x):
    return x * 2 if x.is_contiguous() else x.relu()


def asks_for_an_operator(ctx, x):
    return x * torch.ops.aten.stride.default(x)[0]


def asks_by_a_function(ctx, x):
    return x.relu() if torch.is_conj(x) else x


def runs_python_on_elements(ctx, x):
    return (x * 1).apply_(abs)


def makes_an_exception(ctx, x):
    RefusedError()
    return x.relu()


def marks_by_a_builtin(ctx, x):
    setattr(x, "my_own", 1)  # noqa: B010 - on purpose
    return x.relu()


def marks_one_of_two(ctx, x):
    (x if x.dim() else ctx).my_own = 1
    return x.relu()


def asks_one_of_two(ctx, x):
    return (x if x.dim() else torch).is_storage


def inner():
    total = 0

    def forward(ctx, x):
        nonlocal total
        total += 1
        return x.relu()

    return forward


def hides():
    def forward(ctx, x):
        return sum([SEEN.append(number) or x for number in range(2)])

    return forward


class Applies(nn.Module):
    def __init__(self, function, *more):
        super().__init__()
        self.function, self.more = function, more

    def forward(self, x):
        return self.function.apply(torch.relu(x), *self.more) * 2


KNOWN = [record(target) for target in (aten.neg.default, aten.alias.default, aten.view_as.default)]


def test_a_forward_that_only_computes_runs_on_the_engine():
    lowered = lower(fxplug.trace(Applies(Own), (X,)), LinesBackend(*KNOWN), (X,), name="lines", strict=True)

    assert len(lowered.report.partitions) == 1
    for x in (X, X - 3):
        torch.testing.assert_close(lowered.module(x), Applies(Own)(x))


def test_plain_arguments_and_other_branches_of_the_forward():
    lowered = lower(
        fxplug.trace(Applies(Own, 0.5), (X,)),
        LinesBackend(*KNOWN),
        (X,),
        name="lines",
        strict=True,
    )

    torch.testing.assert_close(lowered.module(X - 1), Applies(Own, 0.5)(X - 1))


def test_what_is_noted_apart_and_helpers_are_read_too():
    class Model(nn.Module):
        def forward(self, x):
            first, second = Apart.apply(x.tanh(), x)
            return first + second

    lowered = lower(fxplug.trace(Model(), (X,)), LinesBackend(*KNOWN), (X,), name="lines", strict=True)
    torch.testing.assert_close(lowered.module(X - 1), Model()(X - 1))


@pytest.mark.filterwarnings("ignore:While it was traced, the program:fxplug.errors.TraceWarning")
@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (prints, "it calls print, which may do something besides"),
        (appends, "it reads SEEN, which may change"),
        (counts, "it reads"),
        (reads_a_tensor, "it reads WEIGHT, which may change"),
        (reads_the_clock, "it calls time.time, which may do something besides"),
        (seeds, "it calls torch.manual_seed, which may do something besides"),
        (asks_for_gradients, "it reads 'needs_input_grad' of 'ctx'"),
        (marks, "it sets the attribute 'my_own'"),
        (reaches, "it calls getattr, which may do something besides"),
        (imports, "it imports 'cmath'"),
        (calls_another, "it reads SEEN, which may change"),
        (remembers, "a default of remembers may change"),
        (catches, "it catches exceptions, of which there are others without data"),
        (catches_all, "it catches exceptions, of which there are others without data"),
        (asks_for_strides, "it uses 'is_contiguous', which inputs of the same dtypes and sizes may answer"),
        (asks_for_an_operator, "it uses torch.ops.aten.stride.default, which inputs of the same"),
        (asks_by_a_function, "it uses torch.is_conj, which inputs of the same dtypes and sizes may answer"),
        (makes_an_exception, "it calls RefusedError, which may do something besides"),
        (marks_by_a_builtin, "it calls setattr, which may do something besides"),
        (marks_one_of_two, "it sets the attribute 'my_own'"),
        (inner(), "'total'"),
        (hides(), "it reads SEEN, which may change"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_a_forward_that_may_do_more_stays_in_pytorch_with_the_reason(forward, reason, capsys):
    if forward is counts:
        reason = "'COUNT'"  # A number may be read, and is not written.
    module = fxplug.trace(Applies(function_of(forward)), (X,))
    SEEN.clear()
    capsys.readouterr()
    report = plan_lowering(module, LinesBackend(*KNOWN), "lines", (X,))

    (left,) = report.unsupported
    assert left.target == "apply"
    assert left.reason.startswith("its forward (Made) may do more than compute: ")
    assert reason in left.reason
    assert "test_autograd_functions.py:" in left.reason
    assert left.source


def test_python_that_runs_for_each_element_is_a_reason():
    reason = reason_against_function(runs_python_on_elements, has_owner=True)

    assert reason.startswith("it uses 'apply_', which inputs of the same")


def test_what_is_read_of_one_of_two_objects_counts_for_both():
    reason = reason_against_function(asks_one_of_two, has_owner=True)

    assert "it reads torch, which may change" in reason


def test_what_ends_a_with_statement_and_what_sizes_tell_is_no_reason():
    def forward(ctx, x):
        with torch.no_grad():
            if x.dim() > 1 and x.is_floating_point() and not torch.is_tensor(x.size(0)):
                x = torch.ops.aten.relu.default(x).type(torch.float32).unsqueeze(0).float()
        return x.split(1)[0].add_(x.numel()) if x.shape[0] else ValueError("empty")

    assert not reason_against_function(forward, has_owner=True)


def test_a_forward_that_reads_data_stays_in_pytorch_with_the_reason():
    report = plan_lowering(
        fxplug.trace(Applies(function_of(reads_data)), (X,)),
        LinesBackend(*KNOWN),
        "lines",
        (X,),
    )

    (left,) = report.unsupported
    assert "it depends on the values of tensors" in left.reason


def test_what_a_tensor_is_asked_to_do_besides_is_a_reason():
    reason = reason_against_function(hooks, has_owner=True)

    assert reason.startswith("it uses 'register_hook' of a value, which may do something besides")


@pytest.mark.parametrize("forward", [writes_its_input, writes_an_element], ids=lambda value: value.__name__)
def test_a_forward_that_writes_its_input_stays_in_pytorch(forward):
    class Model(nn.Module):
        def forward(self, x):
            y = torch.relu(x)
            return function_of_it.apply(y) + y.tanh()

    function_of_it = function_of(forward)
    backend = LinesBackend(*KNOWN)
    with torch.no_grad():
        lowered = lower(fxplug.trace(Model(), (X,)), backend, (X,), name="lines")
        assert "apply" in [node.target for node in lowered.report.eager]
        torch.testing.assert_close(lowered.module(X - 1), Model()(X - 1))


def test_a_forward_that_writes_a_view_writes_what_it_is_a_view_of():
    class Model(nn.Module):
        def forward(self, x):
            y = torch.relu(x)
            seen = function_of_it.apply(y.view(-1))
            return y.tanh(), seen

    function_of_it = function_of(writes_its_input)
    with torch.no_grad():
        lowered = lower(fxplug.trace(Model(), (X,)), LinesBackend(*KNOWN), (X,), name="lines")
        torch.testing.assert_close(lowered.module(X - 1), Model()(X - 1))


def test_forwards_between_what_stays_in_pytorch_are_run_by_the_engine():
    class Model(nn.Module):
        def forward(self, x):
            return Own.apply(x.sin()).cos()

    lowered = lower(fxplug.trace(Model(), (X,)), LinesBackend(*KNOWN), (X,), name="lines")

    assert [node.target for node in lowered.report.eager] == ["sin", "cos"]
    torch.testing.assert_close(lowered.module(X - 1), Model()(X - 1))


def test_an_argument_that_may_change_is_a_reason():
    class Takes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, options):
            return x.relu()

    graph = fxplug.trace(Applies(Own), (X,))
    (call,) = [node for node in graph.graph.nodes if getattr(node.target, "__name__", "") == "apply"]
    call.target = Takes.apply
    call.args = (call.args[0], F)
    report = plan_lowering(graph, LinesBackend(*KNOWN), "lines", (X,))

    assert any("which is neither a tensor nor a plain value" in node.reason for node in report.unsupported)


def loses_its_context(ctx, x):
    ctx = x if x.dim() else ctx
    ctx.my_own = 1
    return x.relu()


def reads_around():
    seen = []

    def forward(ctx, x):
        seen.append(1)
        return x.relu()

    return forward


async def waits(ctx, x):
    return x.relu()


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (loses_its_context, "it gives 'ctx' another value"),
        (reads_around(), "it reads seen, which may change"),
        (waits, "it is asynchronous"),
    ],
    ids=["loses its context", "reads around", "waits"],
)
def test_reasons_that_no_engine_comes_to_hear(forward, reason):
    assert reason_against_function(forward, has_owner=True).startswith(reason)


def test_what_notes_apart_may_do_is_a_reason_too():
    class Notes(Apart):
        @staticmethod
        def setup_context(ctx, inputs, output):
            SEEN.append(inputs)

    assert "it reads SEEN, which may change" in _reason_against(Notes.apply)
    assert not _reason_against(Apart.apply)


def test_only_apply_applies_a_function():
    class Counts(Own):
        @classmethod
        def count(cls, x):
            SEEN.append(x)
            return x.relu()

    assert _reason_against(Counts.count) == "it applies no autograd.Function"


def _reason_against(target):
    """Return why a call of a function of two tensors does more than compute."""
    graph = Graph()
    inputs = [graph.placeholder(name) for name in ("x", "other")]
    return reason_against_forward(graph.call_function(target, tuple(inputs)), dict.fromkeys(inputs, X))


def adds_in_place(ctx, x):
    x += 1
    return x.relu()


@pytest.mark.parametrize("forward", [writes_its_input, writes_an_element, adds_in_place])
def test_writing_is_a_reason_only_where_it_is_asked_for(forward):
    assert not reason_against_function(forward, has_owner=True)
    assert reason_against_function(forward, has_owner=True, may_write=False)

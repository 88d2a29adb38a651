"""Errors of calls that a program catches: the way of the `except` is taken by inputs alone for which the call fails."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture.examples.tracer import ExampleTracer
from fxplug.capture.policy import TracePolicy
from fxplug.errors import GuardError, TraceError

ONES = torch.ones(2)
LONGS = torch.tensor([1, 2])


def needing(*sizes):
    return torch.ones(*sizes, requires_grad=True)


def captured(root, inputs, mode, **options):
    return fxplug.trace(root, inputs, mode=mode, **{"check": False, **options})


class Trying(nn.Module):
    """Calls a layer, and does something else where that raises an error."""

    def __init__(self, layer, kind):
        super().__init__()
        self.layer = layer
        self.kind = kind

    def forward(self, x):
        try:
            return self.layer(x)
        except self.kind:
            return x * 0


def embedding():
    return Trying(nn.Embedding(4, 2), IndexError)


def linear():
    return Trying(nn.Linear(2, 2), RuntimeError)


# -- layers that only compute


LAYERS = {
    "values": (embedding, torch.tensor([0, 9]), torch.tensor([0, 1])),
    "dtype": (linear, torch.ones(1, 2, dtype=torch.long), torch.ones(1, 2)),
}


@pytest.mark.parametrize("on_guard_failure", ["error", "recapture", "eager"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(("make", "example", "later"), LAYERS.values(), ids=LAYERS)
def test_a_layer_whose_failure_is_caught_must_fail_again(make, example, later, check, on_guard_failure):
    model = make()
    module = captured(model, (example,), "value", check=check, on_guard_failure=on_guard_failure)

    assert torch.equal(module(example), model(example))
    if on_guard_failure == "error":
        with pytest.raises(
            GuardError, match=r"layer\(x\) raising .*'return self.layer\(x\)'.*now it does not"
        ):
            module(later)
    else:
        assert torch.equal(module(later), model(later))


def test_a_layer_that_fails_by_its_sizes_is_checked_in_shape_mode_too():
    model = linear()
    module = captured(model, (torch.ones(1, 3),), "shape", check=True)

    assert torch.equal(module(torch.ones(4, 3)), model(torch.ones(4, 3)))
    with pytest.raises(GuardError, match="now it does not"):
        module(torch.ones(1, 2))


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_whether_a_layer_that_fails_is_in_training_is_guarded(mode):
    model = Trying(nn.BatchNorm1d(2), ValueError).eval()
    module = captured(model, (ONES,), mode)

    assert torch.equal(module(ONES), ONES * 0)
    with pytest.raises(GuardError, match="training"):
        module.train()(torch.ones(3, 2))
    assert module.layer.num_batches_tracked == 0


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_a_layer_that_counts_its_calls_before_it_fails_is_refused(mode):
    with pytest.raises(TraceError, match=r"layer\(x\) fails.*ValueError.*more than 1 value.*FXP-T070"):
        captured(Trying(nn.BatchNorm1d(2), ValueError), (torch.ones(1, 2),), mode)


class Decomposing(nn.Module):
    def forward(self, x):
        return torch.linalg.cholesky(x)


def test_a_layer_that_stays_whole_and_may_do_anything_is_refused():
    policy = TracePolicy(is_leaf_module=lambda module, *_: type(module) is Decomposing or None)
    model = Trying(Decomposing(), RuntimeError)

    with pytest.raises(TraceError, match=r"layer\(x\) fails.*FXP-T070"):
        ExampleTracer((torch.zeros(2, 2),), {}, policy=policy).trace(model)


@fxplug.wrap
def decompose(x):
    return torch.linalg.cholesky(x)


def test_a_function_that_stays_a_call_and_may_do_anything_is_refused():
    with pytest.raises(TraceError, match=r"decompose\(x\) fails.*FXP-T070"):
        captured(trying(decompose), (torch.zeros(2, 2),), "value")


# -- calls that write, or whose effects are not known


def scaled_weight(layer, x):
    layer.weight.mul_(2.0)
    return x


CALLS = {
    "grad": lambda x: torch.autograd.grad((x * 2).sum(), x)[0],
    "torch.autograd.backward": lambda x: torch.autograd.backward((x * 2).sum()),
    "backward": lambda x: (x * 2).sum().backward(),
    "register_hook": lambda x: x.register_hook(torch.neg),
    "retain_grad": lambda x: x.retain_grad(),
}
WRITES = {
    "item": lambda x: x.__setitem__(0, 1),
    "add_": lambda x: x.add_(ONES),
    "overlap": lambda x: x.expand(3, 2).add_(1),
    "relu": lambda x: nn.functional.relu(x, inplace=True),
}


def trying(call, *kinds):
    def program(x, *others):
        try:
            call(x, *others)
        except (RuntimeError, *kinds):
            return x * 0
        return x + 1

    return program


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_fails_since_no_gradient_is_needed_is_refused(call, mode):
    with pytest.raises(TraceError) as caught:
        captured(trying(call), (ONES,), mode)
    assert caught.value.code == "FXP-T070"


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("name", ["item", "add_", "relu"])
def test_a_write_that_fails_since_a_gradient_is_needed_is_refused(name, mode):
    with pytest.raises(TraceError) as caught:
        captured(trying(WRITES[name]), (needing(2),), mode)
    assert caught.value.code == "FXP-T070"


def test_a_write_that_fails_by_memory_or_values_is_refused():
    def writes_at(x, index):
        x[index] = 1.0

    for call, inputs in [(WRITES["overlap"], (ONES,)), (writes_at, (ONES, torch.tensor(7)))]:
        with pytest.raises(TraceError, match="FXP-T070"):
            captured(trying(call, IndexError), inputs, "value")


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_a_write_to_a_weight_that_fails_by_the_mode_of_gradients_is_refused(mode):
    class Scaling(Trying):
        def forward(self, x):
            try:
                return scaled_weight(self.layer, x)
            except RuntimeError:
                return x * 0

    with pytest.raises(TraceError, match=r"weight.*mul_\(2.0\) fails.*FXP-T070"):
        captured(Scaling(nn.Linear(2, 2), RuntimeError), (ONES,), mode)


def test_the_refusal_names_the_call_its_line_the_error_and_what_to_do():
    with pytest.raises(TraceError) as caught:
        captured(trying(lambda x: x.add_(1)), (needing(2),), "value")

    line = test_the_refusal_names_the_call_its_line_the_error_and_what_to_do.__code__.co_firstlineno + 2
    said = caught.value.message
    assert said.startswith(f"Cannot trace: x.add_(1) fails on the example inputs at {__file__}:{line} in ")
    assert "with a RuntimeError (a leaf Variable that requires grad is being used" in said
    for advice in ("Test with an if, before the call", "fxplug.wrap", "let the error through"):
        assert advice in said


def test_the_error_of_eager_comes_out_where_the_program_lets_it_through():
    for catches in (False, True):
        program = trying(WRITES["add_"]) if catches else WRITES["add_"]
        with pytest.raises((RuntimeError, TraceError)) as caught:
            captured(program, (needing(2),), "value")
        assert type(caught.value) is (TraceError if catches else RuntimeError)


# -- writes that fail for all inputs with these sizes and dtypes


def add(x, y):
    x.add_(y)


def halve_copy(x):
    x.clone().clamp_(min=0).div_(2)


def add_into_longs(x):
    torch.add(x, 1, out=torch.empty(2, dtype=torch.long))


def assign_row(x, y):
    x[0] = y


KINDS = {
    "dtypes": (add, (LONGS, ONES), (ONES, ONES)),
    "dtype of a result": (halve_copy, (LONGS,), (ONES,)),
    "dtype of what is given as out": (add_into_longs, (ONES,), (LONGS,)),
    "sizes, whatever the dtypes": (add, (ONES, torch.ones(3)), (LONGS, torch.ones(3))),
    "sizes of a row": (assign_row, (torch.ones(2, 2), torch.ones(3)), (LONGS.expand(2, 2), torch.ones(3))),
}


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize(("call", "examples", "later"), KINDS.values(), ids=KINDS)
def test_a_write_that_fails_by_sizes_and_dtypes_is_captured_for_these(call, examples, later, mode, check):
    program = trying(call)
    module = captured(program, examples, mode, check=check)

    others = tuple(value + 1 for value in examples)
    assert torch.equal(module(*others), program(*(value + 1 for value in examples)))
    with pytest.raises(GuardError, match="dtype"):
        module(*(value.clone() for value in later))


def test_a_write_that_fails_by_dtypes_is_captured_whether_gradients_are_needed_or_not():
    module = captured(trying(add), (LONGS.clone(), needing(2)), "value")

    for around in (nullcontext(), torch.no_grad()):
        with around:
            assert torch.equal(module(LONGS.clone(), torch.ones(2)), torch.zeros(2))
            with pytest.raises(GuardError, match="dtype"):
                module(torch.ones(2), torch.ones(2))

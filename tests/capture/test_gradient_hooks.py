"""What changes gradients behind the back of tensors: hooks of what computes them, and of what that saves."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import graph

import fxplug
from fxplug.errors import TraceError

X = torch.tensor([2.0, 3.0], requires_grad=True)


def tenfold(inputs, _):
    return tuple(one if one is None else one * 10 for one in inputs)


def hooked(x):
    y = x * 2
    y.grad_fn.register_hook(tenfold)
    return y


def hooked_before(x):
    y = x * 2
    y.grad_fn.register_prehook(lambda grads: tuple(one * 10 for one in grads))
    return y


def hooked_further_up(x):
    y = x * 2 * 3
    y.grad_fn.next_functions[0][0].register_hook(tenfold)
    return y


def hooked_at_an_edge(x):
    y = x * 2
    graph.get_gradient_edge(y).node.register_hook(tenfold)
    return y


def hooked_together(x):
    y = x * 2
    graph.register_multi_grad_hook((x, y), print)
    return y


@pytest.mark.parametrize(
    "program", [hooked, hooked_before, hooked_further_up, hooked_at_an_edge, hooked_together]
)
def test_hooks_of_functions_that_compute_gradients_are_refused(capture_as, program, request):
    if "symbolic" in request.node.name:
        pytest.skip("without examples they are recorded, or need what is unknown")
    with pytest.raises(
        TraceError, match=r"of a function that computes gradients at .*test_gradient_hooks"
    ) as info:
        capture_as(program)
    assert info.value.code == "FXP-T010"


def test_hooks_of_such_functions_are_recorded_without_examples(capture):
    captured = capture(hooked)
    grads = torch.autograd.grad(captured(X).sum(), X)
    assert torch.equal(grads[0], torch.full((2,), 20.0))


class Doubling(graph.saved_tensors_hooks):
    def __init__(self):
        super().__init__(lambda saved: saved * 2, lambda saved: saved)


def _rounding(dtype):
    return lambda: graph.saved_tensors_hooks(lambda saved: saved.to(dtype), lambda saved: saved.float())


@pytest.mark.parametrize(
    "context",
    [
        lambda: graph.saved_tensors_hooks(torch.neg, torch.clone),
        Doubling,
        _rounding(torch.float16),
        _rounding(torch.bfloat16),
    ],
    ids=["negated", "doubled", "as halves", "as bfloat16"],
)
def test_functions_that_change_what_is_saved_are_refused(capture_as, context):
    def program(x):
        with context():
            return x * x

    with pytest.raises(TraceError, match="change what torch saves for gradients") as info:
        capture_as(program)
    assert info.value.code == "FXP-T050"


@pytest.mark.parametrize(
    "context", [graph.save_on_cpu, lambda: graph.saved_tensors_hooks(lambda saved: -saved, torch.neg)]
)
def test_saving_in_another_way_changes_nothing(capture_as, context):
    def program(x):
        with context():
            return x * x

    captured = capture_as(program)
    assert torch.equal(torch.autograd.grad(captured(X).sum(), X)[0], 2 * X)


class HooksFound(nn.Module):
    """Puts hooks on weights that it has found itself."""

    def __init__(self, find):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.find = find

    def forward(self, x):
        for weight in self.find(self):
            weight.register_hook(lambda gradient: gradient * 2)
        return self.layer(x)


FINDING = {
    "parameters": lambda module: module.parameters(),
    "state dict": lambda module: module.state_dict(keep_vars=True).values(),
    "table": lambda module: [module.layer._parameters["weight"]],
}


@pytest.mark.parametrize("find", FINDING.values(), ids=FINDING)
def test_hooks_on_weights_that_a_program_finds_are_refused_without_examples_and_taken_off(find):
    program = HooksFound(find)
    program.layer.weight.register_hook(lambda gradient: gradient)
    before = dict(program.layer.weight._backward_hooks)

    with pytest.raises(TraceError, match=r"(?s)hook.*'layer.weight'.*\[FXP-T010\]$"):
        fxplug.symbolic_trace(program)
    assert program.layer.weight._backward_hooks == before

    captured = fxplug.trace(program, (torch.ones(2),))
    assert program.layer.weight._backward_hooks == before
    for module in (program, captured):
        module(torch.ones(2)).sum().backward()
    assert torch.equal(program.layer.weight.grad, torch.full((2, 2), 2.0 + 4.0))

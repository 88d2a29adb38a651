"""Example inputs that are results of a computation, or views, and that a program writes to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze.comparison import MismatchError
from fxplug.analyze.isolation import SavedTensors

# What torch itself says of results that it makes stand-ins without data for.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)

WAYS = [(mode, check) for mode in ("value", "shape") for check in (True, False)]


def trebles(x, y):
    y.mul_(3)
    return (x * y).sum()


class Scales(nn.Module):
    """Writes to its input what requires a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([3.0, 5.0]))

    def forward(self, x):
        x.mul_(self.weight)
        return x.sum()


VIEWS = {
    "whole": lambda y: y,
    "part": lambda y: y[1:],
    "other shape": lambda y: y.view(2, 2),
}


@pytest.mark.parametrize(("mode", "check"), WAYS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_results_lead_to_what_they_were_computed_from(mode, check, view):
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    result = weight * 2
    given, before = view(result), result.detach().clone()
    captured = fxplug.trace(trebles, (torch.tensor(2.0), given), mode=mode, check=check)

    assert torch.equal(result, before)
    given.sum().backward(retain_graph=True)
    assert torch.equal(weight.grad, torch.full((4,), 2.0) * _is_in(view))
    weight.grad = None
    result.sum().backward()
    assert torch.equal(weight.grad, torch.full((4,), 2.0))

    fresh = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    captured(torch.tensor(2.0), view(fresh * 2)).backward()
    assert torch.equal(fresh.grad, torch.full((4,), 12.0) * _is_in(view))


def _is_in(view):
    marks = torch.zeros(4)
    view(marks).fill_(1)
    return marks


@pytest.mark.parametrize(("mode", "check"), WAYS)
@pytest.mark.parametrize("shows", [lambda base: base[0], torch.view_as_real], ids=["row", "real"])
def test_views_do_not_lead_to_the_weights_of_the_program(mode, check, shows):
    base = torch.zeros(2, dtype=torch.complex64) + 1 if shows is torch.view_as_real else torch.ones(3, 2)
    given, before, program = shows(base), base.clone(), Scales()
    fxplug.trace(program, (given,), mode=mode, check=check)

    assert torch.equal(base.detach(), before)
    if given.requires_grad:  # A view goes on to say so.
        given.sum().backward()
    assert program.weight.grad is None
    assert base.is_leaf or shows is torch.view_as_real
    (given * 2).sum()

    # Once more, by another view of it.
    other = shows(base)
    fxplug.trace(program, (other,), mode=mode, check=check)
    assert torch.equal(base.detach(), before)
    (other * given).sum()


def test_leaves_that_require_gradients_are_refused_as_ever():
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        fxplug.trace(trebles, (torch.ones(2), torch.ones(2, requires_grad=True)))


def test_gradients_of_results_among_the_inputs_are_checked(monkeypatch):
    run = fxplug.GraphModule.__call__

    def without_gradient(self, x):
        return run(self, x.detach()) + 0 * x

    monkeypatch.setattr(fxplug.GraphModule, "__call__", without_gradient)
    weight = torch.ones(3, requires_grad=True)
    with pytest.raises(MismatchError, match="result 0 among the inputs"):
        fxplug.trace(lambda x: x.sin() * 2, (weight * 2,))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_saved_tensors_get_their_history_back(view):
    weight = torch.ones(4, requires_grad=True)
    result = weight * 2
    given = view(result)
    saved = SavedTensors([given])
    given.mul_(torch.full_like(given, 5.0, requires_grad=True))
    saved.restore()

    assert torch.equal(result, torch.full((4,), 2.0))
    result.sum().backward()
    assert torch.equal(weight.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize(("mode", "check"), WAYS)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_what_was_computed_before_can_go_back_through_the_inputs(mode, check, requires_grad):
    start = torch.ones(3, requires_grad=True)
    given = start * 2 if requires_grad else torch.full((3,), 2.0)
    earlier = (given * given * start).sum()  # Keeps what it has multiplied.
    fxplug.trace(trebles, (torch.tensor(2.0), given), mode=mode, check=check)

    earlier.backward()
    assert torch.equal(start.grad, torch.full((3,), 12.0 if requires_grad else 4.0))


def writes_to_a_column(x):
    x[:, 0].add_(1)
    return x * 2


@pytest.mark.parametrize(("mode", "check"), WAYS)
def test_inputs_that_were_expanded_are_put_back(mode, check):
    example = torch.zeros(3, 1).expand(3, 2)
    captured = fxplug.trace(writes_to_a_column, (example,), mode=mode, check=check)

    assert torch.equal(example, torch.zeros(3, 2))
    fresh = [torch.zeros(3, 1).expand(3, 2) for _ in range(2)]
    assert torch.equal(captured(fresh[0]), writes_to_a_column(fresh[1]))
    assert torch.equal(*fresh)

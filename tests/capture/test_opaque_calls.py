"""Calls that stay whole: functions with a backward of their own, checkpoints, transforms, control flow."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import fxplug
from fxplug.errors import StorageError, TraceError, TraceWarning


class Rounding(torch.autograd.Function):
    """Rounds, and hands gradients through twofold."""

    @staticmethod
    def forward(ctx, x, digits=0):
        return x.round(decimals=digits)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


def straight_through(x):
    return Rounding.apply(x * 3, 1) + 1


def gradient_of(function, x):
    x = x.clone().requires_grad_()
    function(x).sum().backward()
    return x.grad


@pytest.mark.parametrize(
    "remake",
    [lambda module: module, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["captured", "copied", "pickled"],
)
def test_function_with_its_own_backward_keeps_it(capture, remake):
    module = remake(capture(straight_through))
    x = torch.linspace(0, 1, 5)
    assert torch.equal(module(x), straight_through(x))
    assert gradient_of(module, x).tolist() == gradient_of(straight_through, x).tolist() == [6] * 5
    assert [node.target for node in module.graph.nodes if node.op == "call_function"][1] == Rounding.apply


def test_function_with_its_own_backward_survives_files(capture, tmp_path):
    module = capture(straight_through)
    name = f"{__name__}:Rounding.apply"
    with pytest.raises(StorageError, match=r"Rounding\.apply.*allow="):
        fxplug.save(module, tmp_path / "module.fxplug")
    if "." not in __name__:  # Where the tests are a package, it is no module that a file could import.
        fxplug.save(module, tmp_path / "module.fxplug", allow=[name])


def test_function_with_its_own_backward_runs_on_constants(capture):
    module = capture(lambda x: x + Rounding.apply(torch.full((3,), 0.6)))
    assert module(torch.zeros(3)).tolist() == [1, 1, 1]
    assert not [node for node in module.graph.nodes if node.target == Rounding.apply]


class Recomputing(torch.autograd.Function):
    """Runs a function without gradients, and once more for them."""

    @staticmethod
    def forward(ctx, function, count, *values):
        ctx.function, ctx.values, ctx.weights = function, values[:count], values[count:]
        return function(*ctx.values)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [value.detach().requires_grad_() for value in ctx.values]
        with torch.enable_grad():
            result = ctx.function(*inputs)
        return (None, None, *torch.autograd.grad(result, (*inputs, *ctx.weights), gradient))


class RecomputesAMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 3), nn.Parameter(torch.tensor(2.0))

    def inner(self, x):
        return self.linear(x) * self.scale

    def forward(self, x):
        return Recomputing.apply(self.inner, 1, x, *self.linear.parameters(), self.scale)


class RecomputesAClosure(RecomputesAMethod):
    def forward(self, x):
        factor = x.detach() * 2
        return Recomputing.apply(lambda value: self.linear(value) * factor, 1, x, *self.linear.parameters())


class RecomputesALayer(RecomputesAMethod):
    def forward(self, x):
        return Recomputing.apply(self.linear, 1, x, *self.linear.parameters())


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("kind", [RecomputesAMethod, RecomputesAClosure, RecomputesALayer])
def test_functions_that_such_a_function_is_given_hold_what_the_captured_module_has(kind, mode, check):
    root = kind()
    module = fxplug.trace(root, (torch.rand(3, 3),), mode=mode, check=check)
    copied, expected = copy.deepcopy(module), copy.deepcopy(root)
    with torch.no_grad():
        for weight in (*copied.parameters(), *expected.parameters()):
            weight.mul_(2).add_(0.25)
    for one, other in ((module, root), (copied, expected), (fxplug.trace(module, (torch.rand(3, 3),)), root)):
        check_same(one, other)
        gradients = []
        for either in (one, other):
            either.zero_grad()
            either(torch.ones(2, 3)).sum().backward()
            gradients.append({name: weight.grad for name, weight in either.named_parameters()})
        torch.testing.assert_close(gradients[0], {name: gradients[1][name] for name in gradients[0]})


@pytest.mark.parametrize("kind", [RecomputesAMethod, RecomputesAClosure])
def test_without_examples_such_functions_are_refused(capture, kind):
    with pytest.raises(
        TraceError, match=r"Cannot record a call of Recomputing\.apply.*holds a.*\[FXP-T054\]$"
    ):
        capture(kind())


def made_around(held):
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * held

    return Made


class MadeInside(RecomputesAMethod):
    def forward(self, x):
        return made_around(3.0).apply(self.linear(x))


class MadeAroundAValue(RecomputesAMethod):
    def forward(self, x):
        return made_around(x.detach() * 2).apply(self.linear(x))


class MadeAroundASize(RecomputesAMethod):
    def forward(self, x):
        return made_around(x.shape[0]).apply(self.linear(x))


class MadeAroundAWeight(RecomputesAMethod):
    def forward(self, x):
        return made_around(self.scale).apply(self.linear(x))


class InheritsFromOne(RecomputesAMethod):
    def forward(self, x):
        class Derived(made_around(x.detach() * 2)):
            pass

        return Derived.apply(self.linear(x))


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("kind", [MadeAroundAValue, MadeAroundASize, MadeAroundAWeight, InheritsFromOne])
def test_functions_with_their_own_backward_that_are_made_around_values_are_refused(kind, mode):
    inputs = None if mode == "symbolic" else (torch.rand(3, 3),)
    with pytest.raises(
        TraceError, match=r"Cannot record a call of \w+\.apply at .*: the class holds a.*\[FXP-T054\]$"
    ):
        fxplug.trace(kind(), inputs, mode=mode, check=False)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_functions_with_their_own_backward_that_are_made_around_constants_are_captured(mode):
    root = MadeInside()
    check_same(fxplug.trace(root, None if mode == "symbolic" else (torch.rand(3, 3),), mode=mode), root)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def inner(self, x):
        return self.linear(x) + 1


class CheckpointsAPart(Model):
    def forward(self, x):
        return checkpoint(self.stack, x, use_reentrant=False)


class CheckpointsAFunction(Model):
    def forward(self, x):
        return checkpoint(torch.sin, x, use_reentrant=False)


class CheckpointsAMethod(Model):
    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


class CheckpointsSegments(Model):
    def forward(self, x):
        return checkpoint_sequential(self.stack, 2, x, use_reentrant=False)


def check_same(module, root):
    x = torch.rand(3, 3) + 1
    torch.testing.assert_close(module(x), root(x))
    torch.testing.assert_close(gradient_of(module, x), gradient_of(root, x))


@pytest.mark.parametrize("kind", [CheckpointsAPart, CheckpointsAFunction])
def test_checkpoint_of_a_constant_function_is_one_call(capture, kind):
    root = kind()
    module = capture(root)
    assert [node.target for node in module.graph.find_nodes(op="call_function")] == [checkpoint]
    check_same(module, root)


@pytest.mark.parametrize("kind", [CheckpointsAMethod, CheckpointsSegments])
def test_checkpoint_of_what_holds_modules_is_recorded_inside(capture, kind):
    root = kind()
    with pytest.warns(TraceWarning, match="without saving memory"):
        module = capture(root)
    assert not module.graph.find_nodes(op="call_function", target=checkpoint)
    check_same(module, root)


def test_reentrant_checkpoint_of_what_holds_modules_is_refused(capture):
    class Root(Model):
        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=True)

    with pytest.raises(TraceError, match=r"checkpoint.*holds a Root.*\[FXP-T054\]$"):
        capture(Root())


class CheckpointsANorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return checkpoint(lambda value: self.norm(self.linear(value)), x, use_reentrant=False)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_checkpoint_that_is_recorded_inside_stays_in_its_mode(mode):
    def trace(root):
        inputs = None if mode == "symbolic" else (torch.rand(4, 3),)
        with pytest.warns(TraceWarning, match="without saving memory"):
            return fxplug.trace(root, inputs, mode=mode)

    root = CheckpointsANorm().eval()
    module = trace(root)
    x = torch.rand(4, 3)
    torch.testing.assert_close(gradient_of(module, x), gradient_of(root, x))
    # In training, torch updates the statistics a second time where gradients are computed.
    with pytest.raises(fxplug.GuardError, match=r"self\.norm\.training is False"):
        module.train()(x)
    with torch.no_grad():
        module = trace(root.train())
        torch.testing.assert_close(module(x), root(x))
    with pytest.raises(fxplug.GuardError, match="is_grad_enabled"):
        module(x)


class MapsRows(Model):
    def forward(self, x):
        return torch.func.vmap(torch.sum)(x) + torch.vmap(lambda row: row * 2, in_dims=1)(x).sum()


class Differentiates(Model):
    def forward(self, x):
        gradient, value = torch.func.grad_and_value(lambda one: (one**2).sum())(x)
        return torch.func.grad(lambda one: (one**3).sum())(x) + gradient * value


class Pulls(Model):
    def forward(self, x):
        value, pull = torch.func.vjp(lambda one: one.square(), x)
        return value + pull(torch.ones_like(x))[0]


class Pushes(Model):
    def forward(self, x):
        return torch.func.jvp(lambda one: one.square(), (x,), (x,))[1]


class CallsWithParameters(Model):
    def forward(self, x):
        return torch.func.functional_call(self.linear, {"weight": x, "bias": x[0]}, (x,))


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
@pytest.mark.parametrize("kind", [MapsRows, Differentiates, Pulls, Pushes, CallsWithParameters])
def test_transform_of_a_constant_function_is_one_call(capture, kind):
    root = kind()
    check_same(capture(root), root)


class MapsAModule(Model):
    def forward(self, x):
        return torch.func.vmap(self.linear)(x)


class MapsAClosure(Model):
    def forward(self, x):
        y = x * 2
        return torch.func.vmap(lambda row: row + y)(x)


class Jacobian(Model):
    def forward(self, x):
        return torch.func.jacrev(torch.sin)(x)


class ChoosesWithAClosure(Model):
    def forward(self, x):
        return torch.cond(x.sum() > 0, self.linear, torch.sin, (x,))


@pytest.mark.parametrize("kind", [MapsAModule, MapsAClosure, Jacobian, ChoosesWithAClosure])
def test_functions_that_hold_what_a_graph_cannot_are_refused(capture, kind):
    with pytest.raises(
        TraceError, match=r"Cannot record a call of (torch\.func\.|cond).*\[FXP-T054\]$"
    ) as caught:
        capture(kind())
    assert __file__ in str(caught.value)


def test_choice_between_constant_functions_is_one_call(capture):
    def program(x):
        return torch.cond(x.sum() > 0, lambda value: value + 1, lambda value: value - 1, (x,))

    module = capture(program)
    assert module.graph.find_nodes(op="call_function", target=torch.cond)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (torch.ones(3), -torch.ones(3)):
            assert torch.equal(module(x), program(x))


def test_choice_by_a_plain_value_is_made_at_once(capture):
    module = capture(lambda x: torch.cond(True, torch.sin, torch.cos, (x,)))
    assert [node.target for node in module.graph.find_nodes(op="call_function")] == [torch.sin]

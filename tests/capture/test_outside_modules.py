"""Modules that the root does not have as submodules, and wrappers around modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import TraceWarning


def check_equal(module, program):
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    for _ in range(2):
        values = []
        for one in (module, program):
            torch.manual_seed(0)
            values.append(one(x))
        torch.testing.assert_close(*values)
        assert values[0].requires_grad == values[1].requires_grad


def calls(module):
    return [node.target for node in module.graph.find_nodes(op="call_module")]


class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 3))]
        self.named = {"drop": nn.Dropout(0.5)}
        self.weights = [nn.Parameter(torch.ones(3))]
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        self.same = self.stack[0]


class InAList(Root):
    def forward(self, x):
        return self.layers[1](self.layers[0](x))


class InADict(Root):
    def forward(self, x):
        return self.named["drop"](x)


class ParameterInAList(Root):
    def forward(self, x):
        return x * self.weights[0]


class MadeInForward(Root):
    def forward(self, x):
        return nn.LeakyReLU(0.1)(nn.Dropout(0.5)(x))


class MadeWithParameters(Root):
    def forward(self, x):
        return nn.Linear(3, 2)(nn.LayerNorm(3)(x))


class Slices(Root):
    def forward(self, x):
        return nn.Sequential(*list(self.stack)[1:])(self.stack[:2](x))


class UnderTwoNames(Root):
    def forward(self, x):
        return self.same(x) + self.stack(x)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(
    "kind", [InAList, InADict, ParameterInAList, MadeInForward, MadeWithParameters, Slices, UnderTwoNames]
)
def test_modules_are_captured_wherever_they_are(capture, kind, mode):
    root = getattr(kind(), mode)()
    check_equal(capture(root), copy.deepcopy(root))


def test_parts_of_a_slice_are_called_by_their_own_paths(capture):
    assert calls(capture(Slices())) == ["stack.0", "stack.1", "stack.1", "stack.2"]


def test_parameters_of_modules_in_lists_stay_trainable_and_shared(capture):
    root = InAList()
    module = capture(root)
    assert {id(one) for one in module.parameters()} == {
        id(one) for layer in root.layers for one in layer.parameters()
    }


def test_parameters_made_in_forward_are_fresh_in_every_call(capture):
    def program(x):
        return nn.Linear(3, 3)(x)

    module = capture(program)
    x = torch.ones(1, 3)
    assert module(x).tolist() != module(x).tolist()


def test_module_of_a_closure_is_captured(capture):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def program(x):
        return net(x) * 2

    module = capture(program)
    check_equal(module, program)
    with torch.no_grad():
        net[0].weight.zero_()
    check_equal(module, program)


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.inner = wrap(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))

    def forward(self, x):
        return self.inner(x) + 1


WRAPPERS = {
    "DataParallel": (nn.DataParallel, "module"),
    "compiled": (lambda module: torch.compile(module, backend="eager"), "_orig_mod"),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_inside_of_a_wrapper_is_captured(capture, name):
    wrap, attribute = WRAPPERS[name]
    root = Wrapped(wrap)
    module = capture(root)
    assert calls(module) == [f"inner.{attribute}.0", f"inner.{attribute}.1"]
    check_equal(module, Wrapped(lambda _: root.inner))


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapper_may_be_the_root(capture, name):
    wrap, attribute = WRAPPERS[name]
    inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    module = capture(wrap(inner))
    assert calls(module) == [f"{attribute}.0", f"{attribute}.1"]
    check_equal(module, inner)


def test_distributed_wrapper_is_looked_through(capture):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed package")
    inner = nn.Linear(3, 3)
    wrapper = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapper)  # Its own __init__ needs a process group.
    wrapper.module = inner
    root = nn.Sequential(wrapper)
    assert calls(capture(root)) == ["0.module"]


def test_hooks_of_a_wrapper_are_not_lost(capture):
    root = Wrapped(nn.DataParallel)
    root.inner.register_forward_hook(lambda module, args, result: result * 10)
    module = capture(root)
    check_equal(module, copy.deepcopy(root))


@pytest.mark.filterwarnings("ignore:`torch.jit.*`:DeprecationWarning")
def test_scripted_child_is_a_call(capture):
    class WithScript(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.jit.script(nn.Linear(3, 3))

        def forward(self, x):
            return self.inner(x) + 1

    root = WithScript()
    check_equal(capture(root), root)


@pytest.mark.parametrize(
    "make", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_parametrised_weights_are_computed_by_every_call(capture, make):
    class Parametrised(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = make(nn.Linear(3, 3))

        def forward(self, x):
            return self.linear(x) + F.linear(x, self.linear.weight)

    root = Parametrised()
    reference = copy.deepcopy(root)
    module = capture(root)
    for one in (root, reference):
        with torch.no_grad():
            next(one.linear.parametrizations.parameters()).mul_(2)
    check_equal(module, reference)


def test_forward_of_an_instance_is_captured(capture):
    class WithOwn(nn.Module):
        def __init__(self):
            super().__init__()
            self.entered = nn.Sequential()
            self.entered.forward = lambda x: x * 5
            self.leaf = nn.Linear(3, 3)
            self.leaf.forward = lambda x: x * 7

        def forward(self, x):
            return self.entered(x) + self.leaf(x)

    root = WithOwn()
    check_equal(capture(root), root)


def test_no_warning_for_modules_outside(capture, recwarn):
    capture(Slices())
    assert not [one for one in recwarn if issubclass(one.category, TraceWarning)]


# -- what a module outside has been switched to is a constant, as its weights are


class Asks(nn.Module):
    def forward(self, x):
        return x * 2 if self.training else x * 3


def part_in_eval_mode():
    return nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), Asks()).eval()


class Student(nn.Module):
    """Is trained beside a teacher that is hidden from it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.hidden = [part_in_eval_mode()]

    def forward(self, x):
        with torch.no_grad():
            wanted = self.hidden[0](x)
        return self.layer(x) - wanted


def in_a_closure():
    part = part_in_eval_mode()
    return lambda x: part(x)  # noqa: PLW0108 - as programs have it


def switched_by_the_program():
    part = part_in_eval_mode()

    def step(x):
        part.eval()
        return part(x)

    return step


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize(
    "make",
    [
        in_a_closure,
        switched_by_the_program,
        lambda: torch.no_grad()(in_a_closure()),
        Student,
        lambda: Student().eval(),
    ],
    ids=["closure", "switched", "decorated", "student", "student in eval"],
)
def test_modules_outside_that_are_in_eval_mode_are_captured_so(make, mode, check):
    program = make()
    inputs = (torch.rand(4, 3),)
    module = fxplug.trace(program, inputs if mode != "symbolic" else None, mode=mode, check=check)

    assert not [guard for guard in module.guards if "<" in guard.text]
    check_equal(module, program)
    if isinstance(program, Student):  # It is switched, and what it hides is not.
        check_equal(module.train(), program.train())
        check_equal(module.eval(), program.eval())


def restores_the_mode():
    part = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def evaluated(x):
        was = part.training
        part.eval()
        result = part(x)
        part.train(was)
        return result

    return part, evaluated


def leaves_it_in_eval():
    part = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def evaluated(x):
        part.eval()
        return part(x)

    return part, evaluated


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [restores_the_mode, leaves_it_in_eval])
def test_modules_outside_that_the_program_switches_are_left_as_they_were(
    make, training, mode, check, recwarn
):
    part, program = make()
    part.train(training)
    module = fxplug.trace(program, (torch.rand(4, 3),), mode=mode, check=check)

    assert {one.training for one in part.modules()} == {training}
    assert not [warning for warning in recwarn if issubclass(warning.category, TraceWarning)]
    check_equal(module, program)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_module_outside_that_is_switched_behind_its_call_is_refused(mode):
    part = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def program(x):
        result = part(x)
        part.eval()
        return result

    with pytest.raises(fxplug.TraceError, match=r"FXP-T\d+"):
        fxplug.trace(program, (torch.rand(4, 3),), mode=mode, check=False)
    assert {one.training for one in part.modules()} == {True}

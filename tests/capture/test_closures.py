"""Transforms of torch.func whose functions hold values of the program: they are handed over, not kept."""

from __future__ import annotations

import copy
import weakref
from collections import deque
from functools import cached_property, partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import TorchFunctionMode

import fxplug
from fxplug.capture.closures import Made, opened
from fxplug.errors import GuardError, TraceError

# What torch itself says of how it computes forward derivatives.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]


def of_a_closure(x, y):
    return torch.func.vmap(lambda row: row * y)(x)


def of_closures_in_closures(x, y):
    doubled = y * 2

    def inner(row):
        return row + doubled

    def outer(row):
        return inner(row) * y

    return torch.func.vmap(torch.func.vmap(outer, in_dims=0), in_dims=1)(
        x.expand(3, 3).unsqueeze(-1) + x.sum()
    )


def of_defaults(x, y):
    def function(row, shift=y, *, scale=y + 1):
        return row * scale + shift

    return torch.func.vmap(function)(x)


def of_a_partial(x, y):
    return torch.func.vmap(partial(torch.add, y, alpha=2))(x)


def of_a_partial_by_name(x, y):
    def function(row, other):
        return row - other

    return torch.func.vmap(partial(function, other=y))(x)


def of_a_tuple(x, y):
    pair = (y, (y + 1, 2))
    return torch.func.vmap(lambda row: row * pair[0] + pair[1][0] * pair[1][1])(x)


def of_a_size(x, y):
    count = x.shape[0]
    return torch.func.vmap(lambda row: row * count + y)(x)


def of_a_constant_tensor(x, y):
    table = torch.arange(3.0)
    return torch.func.vmap(lambda row: row * table)(x) + y


def of_a_gradient(x, y):
    return torch.func.grad(lambda value: (value * y).sin().sum())(x)


def of_a_gradient_and_a_value(x, y):
    gradient, value = torch.func.grad_and_value(lambda value: (value * y).sin().sum())(x)
    return gradient + value


def of_other_dimensions(x, y):
    return torch.func.vmap(lambda column, row: column.sum() * y + row, in_dims=(1, None), out_dims=1)(x, y)


def of_a_list(x, y):
    values = [y]
    return torch.func.vmap(lambda row: row * values[0])(x)


def of_a_list_beside_a_tensor(x, y):
    values = [y]
    return torch.func.vmap(lambda row: row * values[0] + y)(x)


def of_a_dict_in_a_list(x, y):
    held = [{"scale": y}, 2]
    return torch.func.vmap(lambda row: row * held[0]["scale"] * held[1])(x)


def of_a_jacobian(x, y):
    return torch.func.jacrev(lambda value: value * y)(x[0])


def of_a_forward_jacobian(x, y):
    return torch.func.jacfwd(lambda value, scale: value * scale * y, argnums=1)(x[0], x[1])


def of_a_hessian(x, y):
    return torch.func.hessian(lambda value: (value**3 * y).sum())(x[0])


def of_a_jacobian_of_each_row(x, y):
    return torch.func.vmap(torch.func.jacrev(lambda value: value.sin() * y))(x)


def of_a_jacobian_in_a_closure(x, y):
    jacobian = torch.func.jacrev(lambda value: value.sin() * y)
    return torch.func.vmap(lambda row: jacobian(row).sum() * y)(x)


def of_a_gradient_of_a_hessian(x, y):
    hessian = torch.func.hessian(lambda value: (value**4 * y).sum())
    return torch.func.grad(lambda value: hessian(value).sum())(x[0])


PROGRAMS = [
    of_a_closure,
    of_closures_in_closures,
    of_defaults,
    of_a_partial,
    of_a_partial_by_name,
    of_a_tuple,
    of_a_size,
    of_a_constant_tensor,
    of_a_gradient,
    of_a_gradient_and_a_value,
    of_other_dimensions,
    of_a_list,
    of_a_list_beside_a_tensor,
    of_a_dict_in_a_list,
    of_a_jacobian,
    of_a_forward_jacobian,
    of_a_hessian,
    of_a_jacobian_of_each_row,
    of_a_jacobian_in_a_closure,
    of_a_gradient_of_a_hessian,
]


@pytest.mark.parametrize("remake", [lambda module: module, copy.deepcopy], ids=["captured", "copied"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_function_holds_is_that_of_each_call(program, remake):
    module = remake(fxplug.trace(program, (torch.randn(3, 3), torch.randn(3))))

    for _ in range(3):
        x, y = torch.randn(3, 3), torch.randn(3)
        torch.testing.assert_close(module(x, y), program(x, y))


def test_it_is_one_call_that_is_handed_what_the_function_holds():
    module = fxplug.trace(of_a_closure, (torch.randn(4, 3), torch.randn(3)))

    (call,) = [node for node in module.graph.nodes if node.op == "call_function"]
    x, y = (node for node in module.graph.nodes if node.op == "placeholder")
    assert call.args == ((y,), x)
    assert call.target.__name__ == "vmap_lambda"
    assert torch.equal(module(torch.ones(7, 3), torch.arange(3.0)), torch.arange(3.0).expand(7, 3))


def test_a_value_that_is_held_twice_is_handed_over_once():
    def program(x, y):
        other = y
        return torch.func.vmap(lambda row: row * y + other)(x)

    module = fxplug.trace(program, (torch.randn(4, 3), torch.randn(3)))

    (call,) = [node for node in module.graph.nodes if node.op == "call_function"]
    assert len(call.args[0]) == 1


class Doubles(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.sin else result


@pytest.mark.parametrize("holds", [True, False], ids=["closure", "constant"])
def test_modes_of_the_program_are_entered_again(holds):
    def program(x, y):
        with Doubles():
            if holds:
                return torch.func.vmap(lambda row: torch.sin(row) + y)(x)
            return torch.func.vmap(lambda row: torch.sin(row) + 1)(x) + y

    module = fxplug.trace(program, (torch.randn(4, 3), torch.randn(3)))

    x, y = torch.randn(4, 3), torch.randn(3)
    assert torch.equal(module(x, y), program(x, y))
    assert torch.equal(torch.sin(x), x.sin())  # The mode is left.


def with_a_counter(x, y):
    count = 0

    def function(row):
        nonlocal count
        count += 1
        return row * y

    return torch.func.vmap(function)(x) + count


def with_itself(x, y):
    def function(row, depth=2):
        return function(row * y, depth - 1) if depth else row

    return torch.func.vmap(function)(x)


class Pair(NamedTuple):
    first: Any
    second: Any


def with_a_named_tuple(x, y):
    pair = Pair(y, 2)
    return torch.func.vmap(lambda row: row * pair.first)(x)


class Held:
    def __init__(self, value):
        self.value = value

    def call(self, row):
        return row * self.value


class HeldInSlots:
    __slots__ = ("value",)


def with_a_method(x, y):
    return torch.func.vmap(Held(y).call)(x)


def with_an_object(x, y):
    held = {"held": [Held(Held(y))]}
    return torch.func.vmap(lambda row: row * held["held"][0].value.value + y)(x)


def with_an_object_that_has_slots(x, y):
    held = HeldInSlots()
    held.value = y
    return torch.func.vmap(lambda row: row * held.value)(x)


def with_a_module(x, y):
    layer = nn.Linear(3, 3)
    return torch.func.vmap(lambda row: layer(row) + y)(x)


def with_a_counter_inside(x, y):
    count = 0

    def function(row):
        def counted():
            nonlocal count
            count += 1
            return count

        return row * y * counted()

    return torch.func.vmap(function)(x)


def with_an_attribute_of_the_function(x, y):
    def function(row):
        return row * function.scale

    function.scale = y
    return torch.func.vmap(function)(x)


def with_a_method_of_a_tensor(x, y):
    return torch.func.vmap((y + 1).__getitem__)(torch.tensor([0, 1]))


def with_a_deque(x, y):
    values = deque([y])
    return torch.func.vmap(lambda row: row * values[0])(x)


def with_an_iterator(x, y):
    values = iter([y])
    return torch.func.vmap(lambda row: row * next(values))(x)


def with_a_generator(x, y):
    values = (value + 1 for value in [y])
    return torch.func.vmap(lambda row: row * next(values))(x)


def with_a_weak_reference(x, y):
    value = weakref.ref(y)
    return torch.func.vmap(lambda row: row * value())(x)


def with_a_class_inside(x, y):
    class Scale:
        @staticmethod
        def of(row):
            return row * y

    return torch.func.vmap(lambda row: Scale.of(row))(x)  # noqa: PLW0108 - as programs have it


def with_a_callable_of_a_class_inside(x, y):
    class Scale:
        def __call__(self, row):
            return row * y

    return torch.func.vmap(Scale())(x)


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize(
    "program",
    [
        with_a_counter,
        with_a_counter_inside,
        with_an_attribute_of_the_function,
        with_a_method_of_a_tensor,
        with_a_deque,
        with_an_iterator,
        with_a_generator,
        with_a_weak_reference,
        with_a_class_inside,
        with_a_callable_of_a_class_inside,
        with_itself,
        with_a_named_tuple,
        with_a_method,
        with_an_object,
        with_an_object_that_has_slots,
        with_a_module,
    ],
)
def test_functions_that_cannot_be_made_again_are_refused(program, mode):
    with pytest.raises(TraceError, match=r"Cannot record a call of torch\.func\.vmap.*\[FXP-T05[47]\]$"):
        fxplug.trace(program, (torch.randn(4, 3), torch.randn(3)), mode=mode, check=False)


@pytest.mark.parametrize(
    "program",
    [
        with_an_attribute_of_the_function,
        with_a_deque,
        with_a_weak_reference,
        with_a_callable_of_a_class_inside,
    ],
)
def test_functions_that_hold_traced_values_are_refused_in_symbolic_captures(program):
    with pytest.raises(TraceError, match=r"holds a traced value"):
        fxplug.symbolic_trace(program)


def test_a_function_that_is_made_again_is_like_the_first():
    y = torch.ones(3)

    def function(row, /, scale=2, *, shift=y):
        """Shift."""
        return row * scale + shift + y

    function.note = "kept"
    closure = opened(function, torch.is_tensor)
    made = closure.make(Made([torch.zeros(3)]))

    assert closure.held == (y,)
    assert (made.__name__, made.__doc__, made.note) == ("function", "Shift.", "kept")
    assert made(torch.ones(3)).tolist() == [2, 2, 2]
    assert function(torch.ones(3)).tolist() == [4, 4, 4]


def test_what_is_no_value_of_the_program_stays_shared_with_others():
    y, factor = torch.ones(3), 1

    def change(value):
        nonlocal factor
        factor = value

    def function(row):
        return row * factor + y

    made = opened(function, torch.is_tensor).make(Made([torch.zeros(3)]))
    change(3)

    assert made(torch.ones(3)).tolist() == [3, 3, 3]


def test_copies_of_a_graph_call_the_same_function():
    module = fxplug.trace(of_a_closure, (torch.randn(4, 3), torch.randn(3)))

    targets = [
        [node.target for node in one.graph.nodes if node.op == "call_function"]
        for one in (module, copy.deepcopy(module))
    ]
    assert targets[0][0] is targets[1][0]


# -- functions that hold modules


class Model(nn.Module):
    """Has what functions of its forward may want of it."""

    factor = 3.0

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(1.0))
        self.table = [torch.ones(3), torch.full((3,), 2.0)]
        self.power = 2
        self.wave = torch.sin

    def energy(self, value):
        return (self.net(value) * self.scale).sum() * self.factor + self.shift

    def doubled(self, value):
        return self.energy(value) * 2


class OfASubmodule(Model):
    def forward(self, x):
        return torch.func.vmap(self.net)(x)


class OfTheModule(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: self.net(row) ** self.power * self.scale + self.shift)(x)


class OfAMethod(Model):
    def forward(self, x):
        return torch.func.vmap(torch.func.grad(self.doubled))(x)


class OfAJacobian(Model):
    def forward(self, x):
        return torch.func.vmap(torch.func.jacrev(self.net))(x)


class OfALaplacian(Model):
    def forward(self, x):
        def value(point):
            return self.net(point).squeeze()

        return torch.func.vmap(lambda point: torch.func.hessian(value)(point).trace())(x)


class OfALoop(Model):
    def forward(self, x):
        def through(row):
            for layer in self.layers:
                row = layer(row)
            return row.sum()

        value, gradient = torch.func.grad_and_value(lambda rows: through(rows) * self.scale)(x)
        return value + gradient


class OfConstants(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: self.wave(row) ** self.power * self.factor)(x)


class OfATable(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: self.wave(row) * self.table[0] + self.table[1])(x)


class OfGradientsOfSamples(Model):
    def forward(self, x):
        weights = {name: weight.detach() for name, weight in self.net.named_parameters()}

        def loss(weights, row):
            return torch.func.functional_call(self.net, weights, (row.unsqueeze(0),)).sum()

        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
        return gradients["0.weight"]


class OfWeights(Model):
    def forward(self, x):
        weights = dict(self.net.named_parameters())
        return torch.func.vmap(lambda row: torch.func.functional_call(self.net, weights, (row,)))(x)


class OfFunctionsInside(Model):
    def forward(self, x):
        def outer(row):
            def inner(value):
                return self.net(value) * self.scale

            return inner(row) + self.shift

        return torch.func.vmap(outer)(x)


class Pulls(Model):
    def forward(self, x):
        value, pull = torch.func.vjp(lambda rows: self.net(rows) * self.scale, x)
        return pull(value)[0] * 2


class PullsASubmodule(Model):
    def forward(self, x):
        value, pull = torch.func.vjp(self.net, x)
        (gradient,) = pull(torch.ones_like(value), retain_graph=True)
        return gradient


class PullsBesideMore(Model):
    def forward(self, x):
        def function(rows):
            return self.net(rows) * self.scale, rows * 2

        value, pull, more = torch.func.vjp(function, x, has_aux=True)
        return pull(value)[0] + more


class Pushes(Model):
    def forward(self, x):
        value, tangent = torch.func.jvp(lambda rows: self.net(rows) * self.scale, (x,), (torch.ones_like(x),))
        return value + tangent


# -- what functions ask the module itself


class AsksForItsMode(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: row * self.scale if self.training else row)(x)


class AsksForItsModeInAMethod(Model):
    def noisy(self, value):
        return nn.functional.dropout(self.net(value), 0.5, self.training).sum()

    def forward(self, x):
        return torch.func.vmap(torch.func.grad(self.noisy), randomness="same")(x) * 0 + x


class AsksForItsClass(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: row * self.scale * isinstance(self, nn.Module))(x)


class ReadsItsClass(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: row * self.scale * type(self).factor + self.__class__.factor)(x)


class AsksWhatItHas(Model):
    def forward(self, x):
        def function(row):
            row = row * getattr(self, "scale") if hasattr(self, "scale") else row  # noqa: B009 - as programs have it
            return row * 2 if hasattr(self, "missing") else row + getattr(self, "other", 1)

        return torch.func.vmap(function)(x)


class AsksForAllWeights(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: row * sum(weight.sum() for weight in self.parameters()))(x)


class AsksForNames(Model):
    def forward(self, x):
        def function(row):
            weights = sum((w**2).sum() for name, w in self.named_parameters() if name.endswith("weight"))
            return self.net(row).sum() + weights * len([*self.children()]) + len([*self.named_buffers()])

        return torch.func.vmap(torch.func.grad(function))(x)


class HasItAsADefault(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row, model=self: model.net(row))(x)


class HasItAsANamedDefault(Model):
    def forward(self, x):
        def function(row, *, model=self, power=self.power):
            return model.net(row) ** power

        return torch.func.vmap(function)(x)


class IsInAPartial(Model):
    def forward(self, x):
        return torch.func.vmap(torch.func.grad(partial(Model.energy, self)))(x)


class CallsItsBase(OfAMethod):
    def energy(self, value):
        return super().energy(value) * 2


class CallsItsBaseByName(OfAMethod):
    def energy(self, value):
        return super(CallsItsBaseByName, self).energy(value) * 2  # noqa: UP008 - as programs have it


class CallsBasesOfBases(CallsItsBase):
    def energy(self, value):
        return super().energy(value) * self.scale


class HasAProperty(Model):
    @property
    def weight(self):
        return self.scale * self.shift

    def forward(self, x):
        return torch.func.vmap(lambda row: row * self.weight)(x)


class HasMethodsOfTheClass(Model):
    @staticmethod
    def raised(value):
        return value**2

    @classmethod
    def scaled(cls, value):
        return value * cls.factor

    def forward(self, x):
        return torch.func.vmap(lambda row: self.raised(row) + self.scaled(row) * self.scale)(x)


ASKING = [
    AsksForItsMode,
    AsksForItsModeInAMethod,
    AsksForItsClass,
    ReadsItsClass,
    AsksWhatItHas,
    AsksForAllWeights,
    AsksForNames,
    HasItAsADefault,
    HasItAsANamedDefault,
    IsInAPartial,
    CallsItsBase,
    CallsItsBaseByName,
    CallsBasesOfBases,
    HasAProperty,
    HasMethodsOfTheClass,
]


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


HOLDING = [
    OfASubmodule,
    OfTheModule,
    OfAMethod,
    OfAJacobian,
    OfALaplacian,
    OfALoop,
    OfConstants,
    OfATable,
    OfGradientsOfSamples,
    OfWeights,
    OfFunctionsInside,
    Pulls,
    PullsASubmodule,
    PullsBesideMore,
    Pushes,
]


def gradients_of(module, x):
    module.zero_grad()
    result = module(x)
    if result.requires_grad:
        result.sum().backward()
    return {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("around", [lambda model: model, Around], ids=["root", "inside"])
@pytest.mark.parametrize("kind", [*HOLDING, *ASKING])
def test_modules_in_functions_are_those_of_the_captured_module(kind, around, mode):
    root = around(kind())
    module = fxplug.trace(root, (torch.randn(4, 3),), mode=mode)

    x = torch.randn(5, 3)
    torch.testing.assert_close(module(x), root(x))
    assert gradients_of(module, x).keys() == gradients_of(root, x).keys()
    # They are no constants: a copy has its own, and they are trained and converted with it.
    copied, expected = copy.deepcopy(module), copy.deepcopy(root)
    torch.testing.assert_close(gradients_of(copied, x), gradients_of(expected, x))
    for one in (copied, expected):
        for weight in one.parameters():
            weight.data.mul_(2).add_(0.25)
    torch.testing.assert_close(copied(x), expected(x))
    torch.testing.assert_close(module(x), root(x))
    again = fxplug.trace(module, (torch.randn(4, 3),), mode=mode)
    torch.testing.assert_close(again(x), root(x))
    assert gradients_of(again, x).keys() == gradients_of(module, x).keys()
    if kind is not OfATable:  # Its tables are in a list, where `double` does not find them.
        torch.testing.assert_close(copied.double()(x.double()), expected.double()(x.double()))


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("kind", [AsksForItsMode, AsksForItsModeInAMethod])
def test_a_module_that_a_function_asks_for_its_mode_has_to_stay_in_it(kind, mode):
    module = fxplug.trace(kind(), (torch.randn(4, 3),), mode=mode)

    with pytest.raises(GuardError, match=r"self\.training is True"):
        module.eval()(torch.randn(4, 3))


def test_what_stands_for_the_root_lets_go_of_nothing_that_others_have():
    root = AsksForNames()
    before = {name: id(value) for name, value in vars(root).items()}
    module = fxplug.trace(root, (torch.randn(4, 3),))
    module(torch.randn(2, 3))

    assert {name: id(value) for name, value in vars(root).items()} == before
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in root.named_parameters()]


def test_module_in_a_function_is_switched_with_the_captured_module():
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return torch.func.vmap(lambda row: self.drop(row) * 2, randomness="different")(x)

    module = fxplug.trace(Drops().eval(), (torch.ones(4, 3),))

    assert torch.equal(module(torch.ones(4, 3)), torch.full((4, 3), 2.0))
    assert (module.train()(torch.ones(50, 3)) == 0).any()


class Assigns(Model):
    def forward(self, x):
        def function(row):
            self.last = 1
            return row * self.scale

        return torch.func.vmap(function)(x)


class FindsAttributesItself(OfTheModule):
    def __getattr__(self, name):
        return super().__getattr__(name)


class AssignsInAMethod(OfAMethod):
    def energy(self, value):
        self.last = 1
        return super().energy(value)


class ComparesItself(Model):
    def forward(self, x):
        root = self
        return torch.func.vmap(lambda row: row * self.scale if self is root else row)(x)


class DeletesAnAttribute(Model):
    def forward(self, x):
        def function(row):
            del self.power
            return row * self.scale

        return torch.func.vmap(function)(x)


class FindsAttributesByAName(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: row * getattr(self, "".join(["sc", "ale"])))(x)


class HasAMemo(Model):
    @cached_property
    def doubled_scale(self):
        return self.scale * 2

    def forward(self, x):
        return torch.func.vmap(lambda row: row * self.doubled_scale)(x)


class LooksAtItsDict(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: row * self.__dict__["power"] * self.scale)(x)


class SwitchesItself(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: self.eval().net(row))(x)


class TakesAnotherFunctionForIsinstance(Model):
    def forward(self, x):
        isinstance = scale_of  # noqa: A001 - what a name of Python stands for is looked up
        return torch.func.vmap(lambda row: row * isinstance(self))(x)


class HandsItOn(Model):
    def forward(self, x):
        return torch.func.vmap(lambda row: row * scale_of(self))(x)


def scale_of(model):
    return model.scale


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize(
    "kind",
    [
        Assigns,
        AssignsInAMethod,
        ComparesItself,
        DeletesAnAttribute,
        FindsAttributesByAName,
        FindsAttributesItself,
        HandsItOn,
        HasAMemo,
        LooksAtItsDict,
        SwitchesItself,
        TakesAnotherFunctionForIsinstance,
    ],
)
def test_functions_that_could_tell_the_root_from_what_stands_for_it_are_refused(kind, mode):
    root = kind()
    with pytest.raises(
        TraceError, match=r"Cannot record a call of torch\.func\.vmap.*holds a.*\[FXP-T054\]$"
    ):
        fxplug.trace(root, (torch.randn(4, 3),), mode=mode, check=False)
    assert "last" not in vars(root)


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_functions_that_change_what_they_share_are_refused(mode):
    def program(x, y):
        seen = [y]

        def function(row):
            seen.append(1)
            return row * seen[0]

        return torch.func.vmap(function)(x) + len(seen)

    with pytest.raises(TraceError, match=r"changes a list or dict that it shares.*\[FXP-T054\]$"):
        fxplug.trace(program, (torch.randn(4, 3), torch.randn(3)), mode=mode, check=False)


def test_function_that_changes_what_it_shares_in_a_later_call_is_an_error():
    limit = [10]

    def program(x, y):
        seen = {"y": y}

        def function(row):
            if row.shape[0] > limit[0]:
                seen["longer"] = True
            return row * seen["y"]

        result = torch.func.vmap(function)(x)
        return result + len(seen)

    module = fxplug.trace(program, (torch.randn(4, 3), torch.randn(3)))

    assert torch.equal(module(torch.ones(2, 3), torch.ones(3)), torch.full((2, 3), 2.0))
    limit[0] = 2
    with pytest.raises(GuardError, match=r"'vmap_function': its function has changed the dict") as caught:
        module(torch.ones(2, 3), torch.ones(3))
    assert not caught.value.can_run_again


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_a_derivative_that_is_returned_is_that_of_each_call(mode):
    class Returns(Model):
        def forward(self, x):
            return torch.func.vjp(self.net, x)[1]

    root = Returns()
    module = fxplug.trace(root, (torch.randn(4, 3),), mode=mode, check=False)

    x = torch.randn(5, 3)
    for found, expected in zip(module(x)(torch.ones(5, 1)), root(x)(torch.ones(5, 1)), strict=True):
        torch.testing.assert_close(found, expected)


class PullsInARow(Model):
    def forward(self, x):
        value, pull = torch.func.vjp(lambda rows: self.net(rows) * self.scale, x)
        return torch.func.vmap(pull)(torch.stack([value, value * 2]))[0]


class PullsInAClosure(Model):
    def forward(self, x):
        value, pull = torch.func.vjp(self.net, x)
        rows = torch.func.vmap(lambda cotangent: pull(cotangent)[0] * self.scale)(torch.stack([value, value]))
        return rows + torch.func.vmap(pull)(value[None])[0]


class PullsInAChoice(Model):
    def forward(self, x):
        value, pull = torch.func.vjp(lambda rows: (rows * self.scale).sin(), x)
        return torch.func.jvp(lambda cotangent: pull(cotangent)[0], (value,), (x,))[1]


class Linearizes(Model):
    def forward(self, x):
        value, push = torch.func.linearize(lambda rows: self.net(rows) * self.scale, x)
        return value + push(torch.ones_like(x)) + torch.func.vmap(push)(x[None])[0]


class Functionalizes(Model):
    def forward(self, x):
        def function(rows):
            made = self.net(rows) * self.scale
            made.add_(1)
            return made

        return torch.func.functionalize(function)(x)


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("kind", [PullsInARow, PullsInAClosure, PullsInAChoice, Linearizes, Functionalizes])
def test_derivatives_are_called_in_other_transforms(kind, mode):
    root = kind()
    module = fxplug.trace(root, (torch.randn(4, 3),), mode=mode)

    for one in (module, copy.deepcopy(module), fxplug.trace(module, (torch.randn(4, 3),), mode=mode)):
        for batch in (4, 2):
            x = torch.randn(batch, 3)
            torch.testing.assert_close(one(x), root(x))
            torch.testing.assert_close(gradients_of(one, x), gradients_of(root, x))


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.hessian, torch.func.functionalize])
def test_transforms_of_constant_functions_are_captured_again(transform):
    def program(x):
        return transform(lambda row: (row * 2).sin().sum())(x[0])

    module = fxplug.trace(program, (torch.randn(4, 3),))

    for mode in ("symbolic", "shape", "value"):
        inputs = None if mode == "symbolic" else (torch.randn(4, 3),)
        x = torch.randn(2, 3)
        torch.testing.assert_close(fxplug.trace(module, inputs, mode=mode)(x), program(x))


# -- functions that are arguments of calls which stay calls


@fxplug.wrap
def call(function, x):
    return function(x)


def given_a_closure(x, y):
    doubled = y * 2
    return call(lambda value: value * doubled, x)


def given_a_partial(x, y):
    return call(partial(torch.mul, y * 2), x)


def given_a_size(x, y):
    count = x.shape[0]
    return call(lambda value: value * count, x) + y


def given_a_method(x, y):
    return call(Held(y * 2).call, x)


def given_a_method_of_a_tensor(x, y):
    return call((y * 2).mul, x)


def given_a_list(x, y):
    values = [y * 2]
    return call(lambda value: value * values[0], x)


GIVEN = [given_a_closure, given_a_partial, given_a_size]
REFUSED = [given_a_method, given_a_method_of_a_tensor, given_a_list]


@pytest.mark.parametrize(
    ("program", "mode"),
    [
        *[(program, "symbolic") for program in (*GIVEN, given_a_method, given_a_list)],
        *[(program, mode) for program in REFUSED for mode in ("value", "shape")],
    ],
)
def test_functions_that_hold_traced_values_are_no_constants(program, mode):
    inputs = None if mode == "symbolic" else (torch.randn(3), torch.randn(3))
    with pytest.raises(
        TraceError, match=r"Cannot record the function '.*holds a traced value.*\[FXP-T054\]$"
    ):
        fxplug.trace(program, inputs, mode=mode, check=False)


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("program", GIVEN)
def test_functions_given_to_calls_hold_the_values_of_each_call(program, mode, check):
    module = fxplug.trace(program, (torch.randn(3), torch.randn(3)), mode=mode, check=check)

    for one in (
        module,
        copy.deepcopy(module),
        fxplug.trace(module, (torch.ones(3), torch.ones(3)), mode=mode),
    ):
        for count in (3, 5):
            x, y = torch.randn(count), torch.randn(count)
            torch.testing.assert_close(one(x, y), program(x, y))


class GivesAMethod(Model):
    def forward(self, x):
        return call(self.doubled, x)


class GivesAClosure(Model):
    def forward(self, x):
        return call(lambda value: self.net(value) * self.scale + self.shift, x)


class GivesAWeight(Model):
    def forward(self, x):
        return call(partial(torch.mul, self.scale), x)


class GivesAMethodOfALayer(Model):
    def forward(self, x):
        return call(self.net.forward, x)


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
@pytest.mark.parametrize("kind", [GivesAMethod, GivesAClosure, GivesAWeight, GivesAMethodOfALayer])
def test_functions_given_to_calls_use_the_weights_of_the_captured_module(kind, mode, check):
    root = kind()
    if mode == "symbolic":
        with pytest.raises(TraceError, match=r"Cannot record the function '.*holds .*\[FXP-T054\]$"):
            fxplug.symbolic_trace(root)
        return
    module = fxplug.trace(root, (torch.randn(4, 3),), mode=mode, check=check)
    copied, expected = copy.deepcopy(module), copy.deepcopy(root)
    with torch.no_grad():
        for weight in (*copied.parameters(), *expected.parameters()):
            weight.mul_(2).add_(0.25)

    for one, other in ((module, root), (copied, expected)):
        for batch in (4, 2):
            x = torch.randn(batch, 3)
            torch.testing.assert_close(one(x), other(x))
            torch.testing.assert_close(gradients_of(one, x), gradients_of(other, x))


class AssignsInAClosure(Model):
    def forward(self, x):
        def function(value):
            self.last = 1
            return self.net(value)

        return call(function, x)


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
def test_functions_given_to_calls_that_need_the_module_itself_are_refused(mode):
    inputs = None if mode == "symbolic" else (torch.randn(4, 3),)
    with pytest.raises(
        TraceError, match=r"it holds the module that is traced, or a part of it.*\[FXP-T054\]$"
    ):
        fxplug.trace(AssignsInAClosure(), inputs, mode=mode, check=False)


class Attends(nn.Module):
    def __init__(self, bias, *, needs_gradient):
        super().__init__()
        self.bias = nn.Parameter(bias, requires_grad=needs_gradient)

    def forward(self, x):
        return flex_attention(x, x, x, score_mod=lambda score, _, head, row, column: score * self.bias[head])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("mode", ["value", "shape"])
def test_functions_of_operators_hold_what_needs_no_gradient(mode):
    root = Attends(torch.rand(2), needs_gradient=False)
    x = torch.rand(1, 2, 4, 16)
    module = fxplug.trace(root, (x,), mode=mode)
    copied, expected = copy.deepcopy(module), copy.deepcopy(root)
    for one in (copied, expected):
        one.bias.data.mul_(3)
    torch.testing.assert_close(module(x + 1), root(x + 1))
    torch.testing.assert_close(copied(x + 1), expected(x + 1))

    root = Attends(torch.rand(2), needs_gradient=True)
    with pytest.raises(TraceError, match=r"flex_attention.* may require gradients.*\[FXP-T054\]$"):
        fxplug.trace(root, (x,), mode=mode, check=False)
    with torch.no_grad():
        module = fxplug.trace(root, (x,), mode=mode)
        torch.testing.assert_close(module(x + 1), root(x + 1))
    with pytest.raises(GuardError, match="is_grad_enabled"):
        module(x)


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
def test_functions_that_hold_constants_are_constants(mode):
    factor = 3

    def program(x, y):
        return call(lambda value: value * factor, x) + y

    x, y = torch.randn(3), torch.randn(3)
    module = fxplug.trace(program, None if mode == "symbolic" else (x, y), mode=mode)
    assert torch.equal(module(x + 1, y), program(x + 1, y))


# -- hooks on values


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.table = torch.tensor([1.0, 0.0, 2.0])
        self.scale = nn.Parameter(torch.tensor(2.0))


class ByAValue(Hooked):
    def forward(self, x):
        y = self.layer(x)
        weight = y.detach().abs()
        y.register_hook(lambda gradient: gradient * weight)
        return y * 3


class ByASize(Hooked):
    def forward(self, x):
        y, count = self.layer(x), x.shape[0]
        y.register_hook(lambda gradient: gradient / count)
        return y * 3


class ByATable(Hooked):
    def forward(self, x):
        y = self.layer(x)
        y.register_hook(lambda gradient: gradient * self.table * self.scale.detach())
        return y * 3


class ByNothing(Hooked):
    def forward(self, x):
        y = self.layer(x)
        y.register_hook(lambda gradient: gradient.clamp(-1, 1))
        return y * 3


def gradients_with(module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    module(x).square().sum().backward()
    return x.grad, {
        name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None
    }


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("kind", [ByAValue, ByASize, ByATable, ByNothing])
def test_hooks_use_the_values_of_their_call(kind, mode, check):
    root = kind()
    module = fxplug.trace(root, (torch.randn(2, 3, requires_grad=True),), mode=mode, check=check)

    for module_, root_ in ((module, root), (copy.deepcopy(module), copy.deepcopy(root))):
        for batch in (2, 5):
            x = torch.randn(batch, 3)
            torch.testing.assert_close(gradients_with(module_, x), gradients_with(root_, x))
        with torch.no_grad():
            root_.scale.mul_(2)
            if module_ is not module and "scale" in dict(module_.named_parameters()):
                module_.get_parameter("scale").mul_(2)


class NotesTheGradient(Hooked):
    def note(self, gradient):
        self.gradient = gradient

    def forward(self, x):
        y = self.layer(x)
        y.register_hook(self.note)
        return y * 3


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_hooks_that_only_note_what_they_see_are_recorded(mode):
    root = NotesTheGradient()
    module = fxplug.trace(root, (torch.randn(2, 3, requires_grad=True),), mode=mode, check=False)
    x = torch.randn(5, 3)
    torch.testing.assert_close(gradients_with(module, x), gradients_with(root, x))


class ByAList(Hooked):
    def forward(self, x):
        y = self.layer(x)
        weights = [y.detach()]
        y.register_hook(lambda gradient: gradient * weights[0])
        return y * 3


class ByAnObject(Hooked):
    def forward(self, x):
        y = self.layer(x)
        y.register_hook(Held(y.detach()).call)
        return y * 3


@pytest.mark.parametrize("mode", ["symbolic", "value", "shape"])
@pytest.mark.parametrize("kind", [ByAList, ByAnObject])
def test_hooks_that_hold_values_otherwise_are_refused(kind, mode):
    inputs = None if mode == "symbolic" else (torch.randn(2, 3, requires_grad=True),)
    with pytest.raises(
        TraceError, match=r"Cannot record the function '.*holds a traced value.*\[FXP-T054\]$"
    ):
        fxplug.trace(kind(), inputs, mode=mode, check=False)


@pytest.mark.parametrize("kind", [ByAValue, ByASize])
def test_hooks_that_hold_traced_values_are_refused_without_examples(kind):
    with pytest.raises(TraceError, match=r"holds a traced value.*\[FXP-T054\]$"):
        fxplug.symbolic_trace(kind())

"""Plain programs that make functions: those of a ``def`` and of a ``lambda`` run when they are called."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceWarning

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.linspace(1, 2, 4))
        self.factor, self.yes = 3, True

    def steps(self, x):
        for layer in (self.layer, self.other):
            x = layer(x)
            yield x
        yield from multiples(x)


def multiples(x):
    for by in (2, 3):
        yield x * by


def net_of(forward):
    torch.manual_seed(0)
    return type("Making", (Net,), {"forward": forward})().eval()


def closes_over_a_value(self, x):
    def added(y):
        return x + y

    return added(self.layer(x)) * added(x)


def closes_over_the_module(self, x):
    def twice(y):
        return self.layer(self.layer(y)) * self.weight

    return twice(x) + 1


def a_lambda(self, x):
    scaled = lambda y, by=2: y * by * self.factor  # noqa: E731
    return scaled(self.layer(x)) + scaled(x, 3)


def one_in_another(self, x):
    def outer(y):
        def inner(z):
            return z * y

        return inner(self.other(y)) + inner(x)

    return outer(self.layer(x))


def changes_what_it_closes_over(self, x):
    total = x

    def add(y):
        nonlocal total
        total = total + y

    add(self.layer(x))
    add(self.other(x))
    return total


def kept_in_a_list(self, x):
    steps = [lambda y: y + 1, lambda y: y * 2, self.layer]
    for step in steps:
        x = step(x)
    return x


def handed_to_a_function(self, x):
    return apply(lambda y: y.sin() * self.factor, self.layer(x))


def apply(function, x):
    return function(x) + function(-x)


def calls_itself(self, x):
    def halved(y, times):
        return y if times == 0 else halved(y / 2, times - 1)

    return halved(self.layer(x), 3)


def enters_a_context(self, x):
    def without_gradients(y):
        with torch.no_grad():
            return self.layer(y)

    return without_gradients(x) + self.layer(x)


def asks_for_a_size(self, x):
    def widened(y):
        return y.repeat(1, 2) if y.shape[1] < 8 else y

    return widened(widened(self.layer(x)))


def asks_with_a_class(self, x):
    def doubled(y):
        return y * 2 if isinstance(y, torch.Tensor) else y

    return doubled(self.layer(x))


def yields(self, x):
    def parts(y):
        yield y
        yield y * 2

    return sum(parts(self.layer(x)))


def goes_through_a_generator(self, x):
    found = [*self.steps(x)]
    return found[0] + found[1] * found[2] / found[3]


def stops_in_the_middle(self, x):
    for part in self.steps(x):
        if part.shape[-1] == 4:
            return part
    return x


PLAIN = [
    yields,
    goes_through_a_generator,
    stops_in_the_middle,
    closes_over_a_value,
    closes_over_the_module,
    a_lambda,
    one_in_another,
    changes_what_it_closes_over,
    kept_in_a_list,
    handed_to_a_function,
    calls_itself,
    enters_a_context,
    asks_for_a_size,
    asks_with_a_class,
]


@pytest.mark.parametrize("forward", PLAIN)
@pytest.mark.parametrize("check", [True, False])
def test_functions_that_are_made_are_not_listened_to(forward, check, captured_both_ways):
    captured_both_ways(net_of(forward), X, X.neg(), check=check)


def program_with_functions(x):
    def scaled(y):
        return y * 2 + x

    return scaled(x.sin())


def test_a_function_may_be_the_program(plainly):
    captured = fxplug.trace(program_with_functions, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X.neg()), program_with_functions(X.neg()))


calls = []


def notes_its_calls(self, x):
    def noted(y):
        calls.append(1)
        return y * 2

    return noted(x)


def is_given_the_module(self, x):
    def of(net, y):
        return net.layer(y) * net.factor

    return of(self, x)


def yields_in_a_try(self, x):
    found = []

    def parts(y):
        try:
            yield y
            yield y * 2
        finally:
            found.append(y * 3)

    for part in parts(self.layer(x)):
        found.append(part)
        break
    del part
    return sum(found)


def closes_up(parts, found):
    try:
        yield from parts
    finally:
        found.append(parts[0])


def goes_through_a_part(self, x):
    found = []
    for part in closes_up([self.layer(x), x], found):
        found.append(part)
        break
    return sum(found)


def yields_in_a_context(self, x):
    def parts(y):
        with torch.no_grad():
            yield y
            yield y * 2

    return sum(self.layer(part) for part in parts(x))


def sets_an_attribute(self, x):
    def note(y):
        self.seen = 1
        return y

    return note(self.layer(x))


def handles_errors(self, x):
    def attempted(y):
        try:
            return self.layer(y)
        except RuntimeError:
            return y

    return attempted(x)


def is_handed_to_a_tensor(self, x):
    y = self.layer(x)
    y.register_hook(lambda grad: grad * 2)
    return y


def sorts(self, x):
    found = sorted([3, 1, 2], key=lambda number: -number)
    return x * found[0]


def makes_a_class(self, x):
    class Scale:
        by = 2

    return self.layer(x) * Scale.by


@pytest.mark.parametrize(
    "forward",
    [
        notes_its_calls,
        is_given_the_module,
        yields_in_a_context,
        yields_in_a_try,
        goes_through_a_part,
        sets_an_attribute,
        handles_errors,
        is_handed_to_a_tensor,
        sorts,
        makes_a_class,
    ],
)
def test_other_functions_are_listened_to(forward, plainly):
    net = net_of(forward)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)  # What it changes elsewhere is told.
        try:
            captured = fxplug.trace(net, (X,))
        except fxplug.TraceError:
            captured = None  # It is said that it cannot be captured.
    assert plainly == [None]
    if captured is not None:
        torch.testing.assert_close(captured(X.neg()), net(X.neg()))


def test_an_error_in_one_comes_through():
    def forward(self, x):
        def failing(y):
            return y @ y

        return failing(self.layer(x))

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        fxplug.trace(net_of(forward), (X,), check=False)


class Base(nn.Module):
    def helper(self, x):
        return x + 1


class Other(Base):
    def helper(self, x):
        self.seen["k"].append(x)
        return x * 2 if self.training else x


class Block(Base):
    def __init__(self, child=None):
        super().__init__()
        self.child = child

    def forward(self, x):
        def call(self):
            return super().helper(x)

        return call(self.child)


class Child(Block, Other):
    def forward(self, x):
        return x


def test_super_in_a_function_is_that_of_its_own_first_argument(plainly):
    net = Block(Child()).eval()
    net.child.seen = {"k": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        with contextlib.suppress(fxplug.TraceError):
            fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert net.child.seen == {"k": []}


def is_returned(self, x):
    return self.layer(x), (lambda: x)


def test_one_that_is_returned_with_a_traced_value_is_refused():
    with pytest.raises(fxplug.TraceError, match="FXP-T054"):
        fxplug.trace(net_of(is_returned), (X,), check=False)

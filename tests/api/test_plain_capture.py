"""Captures on examples of programs that ask nothing: as a symbolic trace, and the program runs by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fxplug
from fxplug.errors import FxplugError, TraceError, TraceWarning

X = torch.linspace(-2, 2, 8).reshape(2, 4)


class Net(nn.Module):
    """A plain program."""

    def __init__(self, first=None) -> None:
        super().__init__()
        self.first = first if first is not None else nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        y = self.second(self.act(self.first(x)))
        y += x
        return y


class Counting(TorchDispatchMode):
    """Counts the matrix products of what runs."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("check", [True, False])
def test_what_is_captured_is_what_a_symbolic_trace_captures(plainly, check):
    net = Net().eval()
    captured = fxplug.trace(net, (torch.randn(2, 4),), check=check)
    assert captured is plainly[0]
    assert captured.code == fxplug.symbolic_trace(net).code
    assert captured.guards == ()
    x = torch.randn(5, 4)
    torch.testing.assert_close(captured(x), net(x), rtol=0, atol=0)


def test_without_the_check_the_program_runs_once():
    net = Net().eval()
    with Counting() as counting:
        fxplug.trace(net, (torch.randn(2, 4),), check=False)
    assert counting.count == 2


@pytest.mark.parametrize("check", [True, False])
def test_an_error_of_the_program_comes_through(check):
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        fxplug.trace(Net().eval(), (torch.randn(2, 5),), check=check)
    assert any("first" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("check", [True, False])
def test_other_inputs_than_it_takes_are_refused(check):
    with pytest.raises(TraceError) as caught:
        fxplug.trace(Net(), (torch.randn(2, 4), torch.randn(2, 4)), check=check)
    assert caught.value.code == "FXP-T064"


def marks(net, x):
    held = [*net.parameters(), *net.buffers()]
    return [x.clone(), torch.get_rng_state(), *(tensor.detach().clone() for tensor in held)]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(lambda: nn.ReLU(inplace=True), id="in place"),
        pytest.param(nn.Identity, id="the input itself"),
        pytest.param(nn.Flatten, id="its memory"),
        pytest.param(lambda: nn.Dropout(0.5), id="random"),
        pytest.param(lambda: nn.BatchNorm1d(4), id="statistics"),
        pytest.param(nn.RReLU, id="random slopes"),
    ],
)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("check", [True, False])
def test_all_is_as_before(first, training, check):
    net = Net(first()).train(training)
    x = torch.randn(3, 4) - 1
    before = marks(net, x)
    fxplug.trace(net, (x,), check=check)
    for former, now in zip(before, marks(net, x), strict=True):
        torch.testing.assert_close(now, former, rtol=0, atol=0)


def test_weights_that_a_layer_writes_to_are_as_before():
    net = nn.Sequential(nn.Embedding(5, 4, max_norm=0.1), nn.Linear(4, 4)).eval()
    former = net[0].weight.detach().clone()
    fxplug.trace(net, (torch.tensor([0, 3]),), check=False)
    torch.testing.assert_close(net[0].weight.detach(), former, rtol=0, atol=0)


class Weighs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.tensor([-1.0, 0.0, 1.0, 2.0]))

    def forward(self, x):
        return x * self.weight + self.shift


class Changes(Weighs):
    def forward(self, x):
        return x * self.weight + torch.nn.functional.relu(self.shift, inplace=True)


class Called(nn.Module):
    """Calls what a layer of torch calls: a function that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = []
        self.layer = nn.TransformerEncoderLayer(4, 1, 8, 0.0, activation=self.count, batch_first=True)

    def count(self, x):
        self.calls.append(1)
        return torch.relu(x)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(Changes, (2, 4), id="changes weights"),
        pytest.param(lambda: Net(nn.Dropout(0.5)), (2, 4), id="draws"),
        pytest.param(lambda: Net(nn.BatchNorm1d(4)), (2, 4), id="updates"),
        pytest.param(lambda: nn.TransformerEncoderLayer(4, 1, 8, 0.0), (2, 4), id="layers in a layer"),
    ],
)
def test_programs_that_do_more_are_listened_to(plainly, make, shape):
    fxplug.trace(make(), (torch.randn(shape),), check=False)
    assert plainly == [None]


def test_weights_that_are_only_read_are_read_by_what_is_captured(plainly):
    net, x = Weighs(), torch.randn(2, 4)
    captured = fxplug.trace(net, (x,), check=False)
    assert plainly == [captured]
    torch.testing.assert_close(captured(x), net(x), rtol=0, atol=0)
    with torch.no_grad():
        captured.weight.mul_(3)
        captured.shift.add_(1)
    torch.testing.assert_close(captured(x), net(x), rtol=0, atol=0)  # They are those of the program.
    captured(x).sum().backward()
    torch.testing.assert_close(net.weight.grad, x.sum(0))


def test_functions_that_layers_call_leave_nothing():
    net = Called()
    with pytest.warns(TraceWarning, match="'calls'"):
        fxplug.trace(net, (torch.randn(1, 2, 4),), check=False)
    assert not net.calls


class Differs(nn.Module):
    def forward(self, x, y, scale=None):
        return x - y if scale is None else (x - y) * scale


@pytest.mark.parametrize(
    ("given", "named", "is_plain"),
    [
        pytest.param(1, ["y"], True, id="the next one"),
        pytest.param(0, ["y", "x"], True, id="in another order"),
        pytest.param(1, ["scale", "y"], True, id="with an optional one"),
        pytest.param(2, [], True, id="by position"),
        pytest.param(1, ["y", "flag"], None, id="one that it does not take"),
        pytest.param(2, ["y"], None, id="one twice"),
        pytest.param(1, ["scale"], None, id="without one that it needs"),
    ],
)
def test_inputs_may_be_given_by_name(plainly, given, named, is_plain):
    net, inputs = Differs(), {"x": X, "y": X * 2, "scale": X + 1, "flag": X}
    args, kwargs = (X, X * 2)[:given], {name: inputs[name] for name in named}
    if is_plain is None:
        with pytest.raises(FxplugError):
            fxplug.trace(net, args, example_kwargs=kwargs)
        assert plainly in ([], [None])
        return
    captured = fxplug.trace(net, args, example_kwargs=kwargs)
    assert plainly == [captured]
    torch.testing.assert_close(captured(*args, **kwargs), net(*args, **kwargs), rtol=0, atol=0)


def test_an_input_by_position_alone_is_not_given_by_name(plainly):
    class Alone(nn.Module):
        def forward(self, x, /, y):
            return x - y

    captured = fxplug.trace(Alone(), (X,), example_kwargs={"y": X * 2})
    assert plainly == [captured]
    torch.testing.assert_close(captured(X, y=X * 2), -X, rtol=0, atol=0)
    with pytest.raises(FxplugError):
        fxplug.trace(Alone(), example_kwargs={"x": X, "y": X}, check=False)


def test_numbers_are_given_to_a_program_that_is_listened_to(plainly):
    fxplug.trace(Differs(), (X, X, 2.0))
    assert plainly == [None]


class Collects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        parts = [x]
        parts += torch.chunk(self.layer(x), 2)
        return torch.cat(parts)


def test_lists_that_are_extended_are_what_they_are():
    net = Collects()
    x = torch.randn(2, 4)
    torch.testing.assert_close(fxplug.trace(net, (x,), check=False)(x), net(x))


class DropsHere(Collects):
    def forward(self, x):
        return nn.functional.dropout(self.layer(x), inplace=True)


def test_functions_that_draw_leave_the_random_state():
    net, state = DropsHere(), torch.get_rng_state()
    fxplug.trace(net, (torch.ones(2, 4),), check=False)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_program_says_to_its_very_inputs_comes_through():
    with torch.inference_mode():
        x = torch.ones(2, 4)
    with pytest.raises(RuntimeError, match="Inference tensors"):
        fxplug.trace(Net(), (x,))


class Weight(nn.Parameter):
    """Draws where it is multiplied."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            torch.rand(1)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_weights_of_other_classes_are_listened_to(plainly):
    net = nn.Sequential(nn.Linear(4, 4))
    net[0].weight = Weight(torch.ones(4, 4))
    state = torch.get_rng_state()
    fxplug.trace(net, (torch.ones(2, 4),), check=False)
    assert plainly == [None]
    assert torch.equal(torch.get_rng_state(), state)


def test_inputs_with_a_history_are_given_to_a_program_that_is_listened_to(plainly):
    x = torch.ones(2, 4, requires_grad=True) * 2
    fxplug.trace(Net().eval(), (x,), check=False)
    assert plainly == [None]

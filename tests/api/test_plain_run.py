"""How what was traced of a plain program is run: its layers by their forwards, and each value until its last use."""

from __future__ import annotations

import gc
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import fxplug
from fxplug.api import plain_capture
from fxplug.api.plain_run import run_plainly
from fxplug.capture import Tracer
from fxplug.plugins import Config, PluginManager, TraceConfig

WHOLE = PluginManager(candidates=())
THROUGH = PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))), candidates=())
LEVELS = pytest.mark.parametrize(
    "manager", [pytest.param(WHOLE, id="layers"), pytest.param(THROUGH, id="functions")]
)


class Noted(nn.Module):
    """Notes what it is given, and how many of the values before are still alive."""

    values: ClassVar[list[weakref.ref[torch.Tensor]]] = []
    alive: ClassVar[list[int]] = []
    given: ClassVar[list[list[float]]] = []

    def forward(self, x):
        gc.collect()
        self.alive.append(sum(value() is not None for value in self.values))
        self.given.append(x.tolist())
        result = x + 1
        self.values.append(weakref.ref(result))
        return result


@pytest.fixture
def noted():
    for notes in (Noted.values, Noted.alive, Noted.given):
        notes.clear()
    return Noted


class KeepsNoted(Tracer):
    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, Noted)


def run_noted(program):
    nodes = KeepsNoted().trace(program).nodes.listed()
    calls = [
        (program.get_submodule(node.target), node.args[0], node, node, node)
        for node in nodes
        if node.op == "call_module"
    ]
    run_plainly(program, nodes, (torch.zeros(2),), calls)


def test_a_value_ends_with_its_last_use(noted):
    run_noted(nn.Sequential(*[noted() for _ in range(6)]))
    # Each layer finds what it is given, and nothing older.
    assert noted.alive == [0, 1, 1, 1, 1, 1]
    assert noted.given == [[float(n)] * 2 for n in range(6)]
    gc.collect()
    assert not any(value() is not None for value in noted.values)


class Four(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (Noted() for _ in range(4))


class UsedByALayerLast(Four):
    def forward(self, x):
        kept = self.a(x)
        return self.d(self.b(kept) + self.c(kept))


class UsedByAnOperatorLast(Four):
    def forward(self, x):
        kept = self.a(x)
        self.b(kept)  # Nobody reads it.
        return self.d(self.c(kept) + kept)


class ChangedLast(Four):
    def forward(self, x):
        kept = self.a(x)
        self.b(kept)
        y = self.c(kept)
        kept += 1  # What this gives is the same tensor, and nobody reads it.
        return self.d(y)


@pytest.mark.parametrize(
    ("make", "alive"),
    [
        (UsedByALayerLast, [0, 1, 2, 0]),
        (UsedByAnOperatorLast, [0, 1, 1, 0]),
        (ChangedLast, [0, 1, 1, 1]),
    ],
)
def test_a_value_that_is_used_again_lasts_until_then(noted, make, alive):
    run_noted(make())
    assert noted.alive == alive
    assert noted.given[:3] == [[0, 0], [1, 1], [1, 1]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.first(x))
        z = self.norm(self.second(y))
        z += y
        return torch.flatten(torch.cat([z, x], dim=1), 1) * 2


class Names(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.calls.append((getattr(func, "__name__", ""), result.detach().clone()))
        return result


@LEVELS
def test_all_that_the_program_does_is_done_once_with_the_same_values(manager):
    net, x = Net(), torch.randn(2, 4)
    fxplug.trace(net, (x,), check=False, manager=manager)  # What layers record is known from here on.
    tracer = plain_capture._tracer(manager.trace_policy())
    tracer.trace(net)
    nodes = tracer.graph.nodes.listed()
    assert len(tracer.layer_calls) == 4
    with Names() as wanted:
        net(x)
    with Names() as found:
        run_plainly(net, nodes, (x,), tracer.layer_calls)
    assert [name for name, _ in found.calls] == [name for name, _ in wanted.calls]
    for (_, value), (_, other) in zip(found.calls, wanted.calls, strict=True):
        assert torch.equal(value, other)


def first_in_place():
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4))


def first_twice():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

        def forward(self, x):
            return self.linear(x) + self.act(x)

    return Twice()


def first_by_a_function():
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(functional.relu(x, inplace=True))

    return Direct()


@LEVELS
@pytest.mark.parametrize("make", [first_in_place, first_twice, first_by_a_function])
def test_inputs_that_the_program_writes_to_are_as_before(plainly, manager, make):
    net, x = make(), torch.randn(3, 4)
    before = x.clone()
    for _ in range(2):  # Once it learns, and once it knows.
        fxplug.trace(net, (x,), check=False, manager=manager)
        assert torch.equal(x, before)
    assert plainly[-1] is not None


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.bernoulli(functional.dropout(self.linear(x), 0.5))


@LEVELS
def test_draws_leave_the_random_state(manager):
    net, x = Draws(), torch.zeros(2, 4)
    nn.init.zeros_(net.linear.weight)
    nn.init.constant_(net.linear.bias, 0.25)
    for _ in range(2):
        state = torch.get_rng_state()
        fxplug.trace(net, (x,), check=False, manager=manager)
        assert torch.equal(torch.get_rng_state(), state)


@LEVELS
def test_errors_of_layers_come_through(manager):
    net = Net()
    fxplug.trace(net, (torch.randn(2, 4),), check=False, manager=manager)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        fxplug.trace(net, (torch.randn(2, 5),), check=False, manager=manager)
    assert any("first" in note for note in caught.value.__notes__)


class Flattens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.flatten(self.linear(x), 3)


@LEVELS
def test_errors_of_functions_come_through(manager):
    net = Flattens()
    fxplug.trace(net, (torch.randn(2, 1, 1, 4),), check=False, manager=manager)
    with pytest.raises(IndexError, match="Dimension out of range") as caught:
        fxplug.trace(net, (torch.randn(2, 4),), check=False, manager=manager)
    assert any("torch.flatten(self.linear(x), 3)" in note for note in caught.value.__notes__)


class DropsIn(nn.Module):
    def forward(self, x):
        return functional.dropout(x)


class DropsOfTwo(nn.Module):
    def forward(self, x, y):
        return torch.bernoulli(torch.sigmoid(x + y))


class Rectifies(nn.Linear):
    def forward(self, x):
        return functional.relu(x, inplace=True)


class Updates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x):
        return functional.batch_norm(x, self.mean, self.var, training=True)


class AroundOne(nn.Module):
    def __init__(self, leaf) -> None:
        super().__init__()
        self.leaf, self.linear = leaf, nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(self.leaf(x))


class AroundTwo(AroundOne):
    def forward(self, x):
        return self.linear(self.leaf(x, x))


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: AroundOne(DropsIn()), id="draws"),
        pytest.param(lambda: AroundTwo(DropsOfTwo()), id="draws for two"),
        pytest.param(lambda: AroundOne(Rectifies(4, 4)), id="writes"),
        pytest.param(lambda: AroundOne(Updates()), id="updates"),
    ],
)
def test_modules_that_stay_calls_by_configuration_are_listened_to(plainly, make, check):
    manager = PluginManager(config=Config(trace=TraceConfig(leaf_modules=("leaf",))), candidates=())
    net, x, state = make(), torch.randn(3, 4), torch.get_rng_state()
    before = [x.clone(), *(tensor.detach().clone() for tensor in (*net.parameters(), *net.buffers()))]
    captured = fxplug.trace(net, (x,), check=check, manager=manager)
    assert "leaf" in [node.target for node in captured.graph.nodes]
    assert plainly == [None]
    assert torch.equal(torch.get_rng_state(), state)
    for former, now in zip(before, (x, *net.parameters(), *net.buffers()), strict=True):
        assert torch.equal(now, former)

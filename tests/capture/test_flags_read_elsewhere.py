"""Training flags that are read by what stands around a forward, by other objects, and by hooks of torch."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
from fxplug.errors import GuardError

MODES = ("symbolic", "value", "shape")


def captured(program, x, mode):
    return fxplug.symbolic_trace(program) if mode == "symbolic" else fxplug.trace(program, (x,), mode=mode)


def drops(forward):
    @functools.wraps(forward)
    def around(self, x):
        return functional.dropout(forward(self, x), 0.5, self.training)

    return around


def runs_in_training(forward):
    @functools.wraps(forward)
    def around(self, x):
        return forward(self, x) if self.training else x

    return around


class Around(nn.Module):
    @drops
    def forward(self, x):
        return x * 2


class Either(nn.Module):
    @runs_in_training
    def forward(self, x):
        return x * 2


class BehindAnother(nn.Module):
    @torch.no_grad()
    @runs_in_training
    def forward(self, x):
        return x * 2


class Owned:
    def __init__(self, owner):
        self.owner = owner

    def __call__(self, x):
        return x * 2 if self.owner.training else x

    def scaled(self, x):
        return x * 2 if self.owner.training else x

    def __enter__(self):
        return 2 if self.owner.training else 1

    def __exit__(self, *error):
        pass


class Calls(nn.Module):
    def forward(self, x):
        return Owned(self)(x)


class CallsMethod(nn.Module):
    def forward(self, x):
        return Owned(self).scaled(x)


class Enters(nn.Module):
    def forward(self, x):
        with Owned(self) as factor:
            return x * factor


def scaled(self, x):
    return x * 2 if self.training else x


class HandsOver(nn.Module):
    def forward(self, x):
        return scaled(self, x)


class Renames(nn.Module):
    def forward(self, x):
        for self in [self]:  # noqa: B020, PLR1704 - what is called so is not the object of the method any more
            flag = self.training
        return x * 2 if flag else x


PROGRAMS = (Around, Either, BehindAnother, Calls, CallsMethod, Enters, HandsOver, Renames)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize(
    "place", [lambda part: part, lambda part: nn.Sequential(part, nn.ReLU())], ids=["root", "part"]
)
def test_switched_programs_do_not_go_on_as_they_were(kind, mode, place):
    program = place(kind())
    module = captured(program, torch.ones(8), mode)
    program.eval()
    module.eval()

    with pytest.raises(GuardError, match="training"):
        module(torch.ones(8))
    module.train()
    assert module(torch.ones(8)).shape == (8,)


class Child(nn.Module):
    """Hands another module than itself to a function that calls it ``self``."""

    def __init__(self):
        super().__init__()
        self.child = nn.ReLU()

    def forward(self, x):
        return scaled(self.child, x)


@pytest.mark.parametrize("mode", MODES)
def test_the_flag_of_a_module_that_a_function_calls_self_is_guarded(mode):
    module = captured(Child(), torch.ones(8), mode)

    assert "self.child.training is True" in [guard.text for guard in module.guards]


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 3))

    def forward(self, x):
        return x @ self.weight


class Derived(nn.Linear):
    pass


NORMED = {
    "root": lambda: nn.utils.spectral_norm(nn.Linear(3, 3)),
    "module of the program": lambda: nn.utils.spectral_norm(Weighted()),
    "part": lambda: nn.Sequential(Weighted(), nn.utils.spectral_norm(Weighted())),
    "derived": lambda: nn.Sequential(nn.utils.spectral_norm(Derived(3, 3))),
}


@pytest.mark.filterwarnings("ignore:While tracing, forward assigned the attribute")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", NORMED.values(), ids=NORMED)
def test_hooks_of_torch_that_hang_on_the_flag_are_guarded(make, mode):
    program, x = make(), torch.rand(2, 3)
    module = captured(program, x, mode)
    program.eval()
    module.eval()
    before = [buffer.clone() for buffer in program.buffers()]

    with pytest.raises(GuardError, match="training"):
        module(x)
    assert all(map(torch.equal, before, program.buffers()))

    module = captured(program, x, mode)
    assert torch.equal(module(x), program(x))
    assert all(map(torch.equal, before, program.buffers()))

"""Optimizers and the like that a program moves on are refused before anything has run; local ones are the program's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError

X = torch.ones(2, 2)


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.Adam([self.weight], lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        self.engine = torch.quasirandom.SobolEngine(2)
        self.scaler = torch.amp.GradScaler("cpu")

    def forward(self, x):
        return self.act(x * self.weight)


class TakesAStep(Steps):
    def act(self, x):
        self.optimizer.zero_grad()
        x.sum().backward()
        self.optimizer.step()
        return self.weight.detach().clone()


class ReadsTheRate(Steps):
    def act(self, x):
        rate = self.optimizer.param_groups[0]["lr"]
        self.scheduler.step()
        return x * rate


class Draws(Steps):
    def act(self, x):
        return x + self.engine.draw(1)


class Scales(Steps):
    def act(self, x):
        return self.scaler.scale(x)


OPTIMIZER = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)


def halves_a_global(x):
    for group in OPTIMIZER.param_groups:
        group["lr"] *= 0.5
    return x * OPTIMIZER.param_groups[0]["lr"]


def closes_over_one():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=1.0)

    def program(x):
        optimizer.step()
        return x * 2

    return program


PROGRAMS = [TakesAStep(), ReadsTheRate(), Draws(), Scales(), halves_a_global, closes_over_one()]


def states_of(root):
    if not isinstance(root, nn.Module):
        return copy.deepcopy(OPTIMIZER.state_dict())
    return copy.deepcopy(
        [
            *(part.state_dict() for part in (root.optimizer, root.scheduler, root.scaler)),
            root.engine.num_generated,
        ]
    )


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("root", PROGRAMS)
def test_a_program_that_moves_it_on_is_refused_and_nothing_has_moved(root, mode, check):
    before = states_of(root)
    with pytest.raises(TraceError, match=r"whose state goes on with every call.*\[FXP-T055\]$"):
        fxplug.trace(root, (X,), mode=mode, check=check)
    assert str(states_of(root)) == str(before)


class OnlyHolds(Steps):
    def act(self, x):
        return x + 1

    def training_step(self, x):
        self.optimizer.step()
        return self(x)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_a_model_that_only_holds_one_is_captured(mode):
    root = OnlyHolds()
    captured = fxplug.trace(root, (X,), mode=mode)
    assert torch.equal(captured(X), root(X))

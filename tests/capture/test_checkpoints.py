"""Checkpoints whose functions do other things when they run again for the gradients: they stay one call."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import fxplug
from fxplug.errors import GuardError, TraceError

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning"),
    pytest.mark.filterwarnings("ignore:The function that torch.utils.checkpoint is given"),
]


class Model(nn.Module):
    is_reentrant = False

    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def normed(self, x, power=1):
        return self.norm(self.linear(x)) ** power * self.scale

    def dropped(self, x):
        return self.drop(self.linear(x)) * self.scale


class OfAMethod(Model):
    def forward(self, x):
        return checkpoint(self.normed, x, use_reentrant=self.is_reentrant)


class OfAClosure(Model):
    def forward(self, x):
        double = x * 2
        return checkpoint(lambda v: self.norm(self.linear(v)) * double, x, use_reentrant=self.is_reentrant)


class OfAPartial(Model):
    def forward(self, x):
        return checkpoint(partial(self.normed, power=2), x, use_reentrant=self.is_reentrant)


class OfSegments(Model):
    def forward(self, x):
        return checkpoint_sequential(self.stack, 2, x, use_reentrant=self.is_reentrant)


class DrawsAnew(Model):
    def forward(self, x):
        return checkpoint(self.dropped, x, use_reentrant=self.is_reentrant, preserve_rng_state=False)


class IsGivenAName(Model):
    def forward(self, x):
        return checkpoint(self.normed, x, power=3, use_reentrant=False)


class OfBuffers(Model):
    def forward(self, x):
        def normed(v):
            return nn.functional.batch_norm(
                self.linear(v), self.norm.running_mean, self.norm.running_var, training=True
            )

        return checkpoint(normed, x, use_reentrant=self.is_reentrant)


KINDS = [OfAMethod, OfAClosure, OfAPartial, OfSegments, DrawsAnew, IsGivenAName, OfBuffers]


def compare(module, root, x):
    found, expected = outcome(module, x), outcome(root, x)
    # Layers that are never called are not captured.
    held = {name for name, _ in module.named_buffers()}
    buffers = {name: value for name, value in expected[3].items() if name in held}
    torch.testing.assert_close(found, (*expected[:3], buffers, expected[4]))


def outcome(module, x):
    torch.manual_seed(3)
    module.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    result = module(x)
    if result.requires_grad:
        result.square().sum().backward()
    weights = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    return result.detach(), x.grad, weights, buffers, torch.rand(1)


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("needs_gradient", [True, False], ids=["gradient", "no gradient"])
@pytest.mark.parametrize("is_reentrant", [True, False], ids=["reentrant", "not reentrant"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_again_does_so_in_the_captured_program(kind, is_reentrant, needs_gradient, mode, check):
    if kind is IsGivenAName and is_reentrant:
        pytest.skip("torch takes no arguments by name then")
    root = kind()
    root.is_reentrant = is_reentrant
    before = copy.deepcopy(root)
    x = torch.rand(4, 3, requires_grad=needs_gradient)
    module = fxplug.trace(root, (x,), mode=mode, check=check)

    torch.testing.assert_close(dict(root.named_buffers()), dict(before.named_buffers()))
    for remade in (copy.deepcopy(module), fxplug.trace(copy.deepcopy(module), (x,), mode=mode, check=check)):
        expected = copy.deepcopy(root)
        for batch in (4, 6):
            x = torch.rand(batch, 3, requires_grad=needs_gradient)
            compare(remade, expected, x)
        remade.eval()
        expected.eval()
        compare(remade, expected, x)


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_reentrant_checkpoint_of_what_holds_modules_is_captured(mode):
    class Root(Model):
        def forward(self, x):
            return checkpoint(self.dropped, x, use_reentrant=True)

    root = Root()
    module = fxplug.trace(root, (torch.rand(4, 3),), mode=mode)

    x = torch.rand(6, 3)
    compare(module, root, x)
    assert not module(x).requires_grad  # As in eager, where no input requires a gradient.
    with pytest.raises(GuardError, match=r"not x\.requires_grad"):
        module(x.requires_grad_())


@pytest.mark.parametrize("training", [True, False])
def test_random_numbers_that_are_drawn_anew_are_refused_without_examples(training):
    root = DrawsAnew().train(training)
    if training:
        with pytest.raises(
            TraceError, match=r"dropp?.* draws random numbers.*preserve_rng_state.*\[FXP-T054\]$"
        ):
            fxplug.symbolic_trace(root)
        return
    module = fxplug.symbolic_trace(root)
    x = torch.rand(4, 3)
    compare(module, root, x)
    with pytest.raises(GuardError, match=r"self\.\w+\.training is False"):
        module.train()(x)

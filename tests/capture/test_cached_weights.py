"""Weights that torch computes anew whenever they are read, inside of ``parametrize.cached()`` and around it."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import fxplug

MODES = ["symbolic", "shape", "value"]


class Counting(nn.Module):
    """Gives another weight whenever it is asked."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, weight):
        self.calls.add_(1)
        return weight * self.calls


class Twice(nn.Module):
    def __init__(self, layer, *, reads=False):
        super().__init__()
        self.layer = layer
        self.reads = reads

    def forward(self, x):
        with parametrize.cached():
            y = self.layer(self.layer(x))
            if self.reads:
                y = y + self.layer.weight.sum()
        return y + self.layer(x)


def counting():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Counting())
    return layer


def spectral():
    torch.manual_seed(0)
    return parametrizations.spectral_norm(nn.Linear(3, 3))


def weighted():
    torch.manual_seed(0)
    return parametrizations.weight_norm(nn.Linear(3, 3))


def captured_in(mode, model, x):
    return fxplug.symbolic_trace(model) if mode == "symbolic" else fxplug.trace(model, (x,), mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("make", [counting, spectral, weighted])
def test_weights_are_computed_once_inside_of_cached(mode, make, reads):
    model, x = Twice(make(), reads=reads), torch.randn(2, 3)
    captured = captured_in(mode, copy.deepcopy(model), x)
    for _ in range(3):
        torch.testing.assert_close(captured(x), model(x))
    torch.testing.assert_close(dict(captured.named_buffers()), dict(model.named_buffers()))
    captured.eval(), model.eval()
    torch.testing.assert_close(captured(x), model(x))


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_that_holds_such_a_layer_computes_them_once_as_well(mode):
    class Holder(nn.Bilinear):
        def __init__(self):
            super().__init__(3, 3, 3)
            self.inner = counting()

    Holder.__module__ = "torch.nn.modules.linear"  # Such a class stays a call.
    Holder.forward = lambda self, x: self.inner(x)
    torch.manual_seed(0)
    model, x = Twice(Holder()), torch.randn(2, 3)
    captured = captured_in(mode, copy.deepcopy(model), x)
    for _ in range(2):
        torch.testing.assert_close(captured(x), model(x))


@pytest.mark.parametrize("mode", MODES)
def test_a_trace_inside_of_cached_is_refused(mode):
    model = nn.Sequential(weighted())
    with parametrize.cached(), pytest.raises(fxplug.TraceError) as caught:
        captured_in(mode, model, torch.ones(1, 3))
    assert caught.value.code == "FXP-T050"
    assert str(caught.value).startswith("Cannot trace inside of torch.nn.utils.parametrize.cached(): ")
    plain = nn.Sequential(nn.Linear(3, 3))
    with parametrize.cached():
        captured_in(mode, plain, torch.ones(1, 3))

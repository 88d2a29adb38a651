"""Captures on examples of programs with layers of torch that are made of layers, or return several values."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceWarning
from fxplug.plugins import Config, PluginManager, TraceConfig

X = torch.linspace(-1, 1, 80).reshape(2, 5, 8)


class Net(nn.Module):
    def __init__(self, layer, forward):
        super().__init__()
        self.layer, self.norm = layer, nn.LayerNorm(8)
        type(self).forward = forward


def net_of(make, forward):
    torch.manual_seed(0)
    return type("Net", (Net,), {})(make(), forward).eval()


def of_one(self, x):
    return self.norm(self.layer(self.norm(x)))


def of_two(self, x):
    return self.norm(self.layer(x, self.norm(x)))


def attending(self, x):
    y, _ = self.layer(x, x, self.norm(x), need_weights=False)
    return x + y


def attending_and_weighing(self, x):
    y, weights = self.layer(x, x, x)
    return self.norm(y) * weights.mean()


def of_recurrent(self, x):
    y, hidden = self.layer(x)
    return self.norm(y) + hidden[-1].mean()


def of_lstm(self, x):
    y, (hidden, cell) = self.layer(x)
    return self.norm(y) + (hidden * cell).mean()


def first_of_recurrent(self, x):
    return self.norm(self.layer(x)[0])


def attention():
    return nn.MultiheadAttention(8, 2, batch_first=True)


def encoder_layer(**kwargs):
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **kwargs)


def encoder():
    return nn.TransformerEncoder(encoder_layer(norm_first=True), 2, enable_nested_tensor=False)


def decoder():
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2)


COMPOUNDS = {
    "attention": (attention, attending),
    "attention and its weights": (attention, attending_and_weighing),
    "encoder layer": (encoder_layer, of_one),
    "encoder": (encoder, of_one),
    "decoder": (decoder, of_two),
    "transformer": (lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), of_two),
    "lstm": (lambda: nn.LSTM(8, 8, batch_first=True), of_lstm),
    "lstm of two layers": (lambda: nn.LSTM(8, 4, 2, bidirectional=True), first_of_recurrent),
    "gru": (lambda: nn.GRU(8, 8, batch_first=True), of_recurrent),
    "rnn": (lambda: nn.RNN(8, 8, batch_first=True), of_recurrent),
}


def calls_in(captured):
    # Parts are read where they are unpacked, or, where somebody listens, when they are first used.
    return Counter((node.op, str(node.target), str(node.kwargs)) for node in captured.graph.nodes)


@pytest.mark.parametrize("name", COMPOUNDS)
@pytest.mark.parametrize("check", [True, False])
def test_compounds_of_torch_are_captured_as_by_listening(plainly, name, check, listened_to):
    net = net_of(*COMPOUNDS[name])
    with torch.no_grad():
        captured = fxplug.trace(net, (X,), check=check)
        listened = listened_to(net, X)
        assert plainly[0] is captured
        assert calls_in(captured) == calls_in(listened)
        for x in (X, torch.cat([X, X + 1])):
            torch.testing.assert_close(captured(x), net(x))
    assert "check_length" not in captured.code


class Doubling(nn.TransformerEncoderLayer):
    """What stands inside of an encoder, and has a forward of its own, which nobody looks into there."""

    def __init__(self):
        super().__init__(8, 2, 16, batch_first=True)

    def forward(self, src, src_mask=None, src_key_padding_mask=None, is_causal=False):
        return src * 2


def shifting(x):
    return torch.relu(x - 0.1)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: nn.TransformerEncoder(Doubling(), 2), id="a layer of one's own"),
        pytest.param(lambda: encoder_layer(activation=shifting), id="an activation of one's own"),
    ],
)
def test_code_of_a_program_inside_of_a_compound_is_listened_to(plainly, make):
    net = net_of(make, of_one)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


@pytest.mark.parametrize("name", ["attention", "encoder", "lstm of two layers"])
def test_compounds_that_are_trained_are_listened_to(plainly, name):
    net = net_of(*COMPOUNDS[name]).train()
    before = copy.deepcopy(net.state_dict())
    fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])


class InParts(nn.LSTM):
    """Returns as many values as there are in a batch, and stays a call."""

    def forward(self, x):
        return tuple(x.unbind(0))


def test_values_of_a_layer_of_ones_own_are_no_pair(plainly):
    def forward(self, x):
        y, other = self.layer(x)
        return y + other

    net = net_of(lambda: InParts(8, 8), forward)
    manager = PluginManager(config=Config(trace=TraceConfig(leaf_modules=("*InParts*",))), candidates=())
    captured = fxplug.trace(net, (X,), manager=manager)
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))
    with pytest.raises(fxplug.GuardError):  # The program would not take three.
        captured(torch.cat([X, X[:1]]))


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(5, 5, 1), nn.Conv1d(5, 5, 1)

    def forward(self, x):
        return self.second(self.first(x))


def test_a_layer_with_a_method_of_its_own_is_listened_to(plainly):
    net = TwoLayers().eval()
    net.calls, convolve = [], net.second._conv_forward

    def counted(*args):
        net.calls.append(1)
        return convolve(*args)

    net.second._conv_forward = counted
    with pytest.warns(TraceWarning, match="calls"):
        captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert net.calls == []
    torch.testing.assert_close(captured(X), net(X))

"""Models that are captured with example inputs, whose guards are about those, lower as a whole."""

from __future__ import annotations

import importlib.util
from collections import OrderedDict

import pytest
import torch
from torch import nn

import fxplug
from fxplug.ir import PURE, effects
from fxplug.lower import lower
from fxplug_openvino import OpenVINOBackend

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)


class Heads(nn.Module):
    """Attention that asks for its sizes, as people write it."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Linear(16, 48)

    def forward(self, x):
        batch, length, width = x.shape[0], x.shape[1], x.shape[2]
        query, key, value = (
            self.parts(x).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        )
        weights = (query @ key.transpose(-2, -1) / 2).softmax(-1)
        return (weights @ value).transpose(1, 2).reshape(batch, length, width)


def sequences(*sizes, seed):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        pytest.param(Heads(), 1, id="heads"),
        pytest.param(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2, id="decoder"),
    ],
)
def test_attention_with_guards_lowers_without_a_rest(model, count):
    model.eval()
    inputs = tuple(sequences(2, 5 + number, 16, seed=number) for number in range(count))
    others = tuple(sequences(2, 5 + number, 16, seed=7 + number) for number in range(count))
    lowered = lower(fxplug.trace(model, inputs), OpenVINOBackend(), inputs, name="openvino", strict=True)

    assert len(lowered.report.partitions) == 1
    with torch.no_grad():
        for values in (inputs, others):
            torch.testing.assert_close(lowered.module(*values), model(*values), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(lowered.module(*inputs), lowered.module(*others))


class Recurrent(nn.Module):
    """States of its own, as large as the batch, and a result that is taken apart."""

    def __init__(self, **options):
        super().__init__()
        self.cells = nn.LSTM(8, 6, **options)
        self.count = 2 if options.get("bidirectional") else 1

    def forward(self, x):
        states = torch.zeros(self.count, x.size(0), 6)
        outputs, (last, memory) = self.cells(x, (states, states + 1))
        return outputs.mean(1), last, memory


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"bias": False}])
def test_lstm_layers_lower_as_a_whole(options):
    model = Recurrent(batch_first=True, **options).eval()
    inputs, others = (sequences(3, 5, 8, seed=1),), (sequences(3, 5, 8, seed=2),)
    lowered = lower(fxplug.trace(model, inputs), OpenVINOBackend(), inputs, name="openvino", strict=True)

    with torch.no_grad():
        for values in (inputs, others):
            for found, expected in zip(lowered.module(*values), model(*values), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@fxplug.wrap
def same_in_eval(x):
    return x


class Skips(nn.Module):
    """Adds in place to what a function of a library returned, which may be what it was given."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((4, 1, 1), 0.5))
        self.layer = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        made = same_in_eval(self.scale * self.layer(x))
        made += x
        return made.relu()


def test_additions_in_place_to_new_memory_lower_and_those_to_inputs_do_not():
    inputs, others = (sequences(2, 4, 5, 5, seed=1),), (sequences(2, 4, 5, 5, seed=2),)
    model = Skips().eval()
    effects.register_target(same_in_eval, PURE)
    try:
        module = fxplug.trace(model, inputs)
        lowered = lower(module, OpenVINOBackend(), inputs, name="openvino", strict=True)
    finally:
        effects.unregister_target(same_in_eval)
    with torch.no_grad():
        torch.testing.assert_close(lowered.module(*others), model(*others), rtol=1e-4, atol=1e-5)

    def writes(x):
        y = x.permute(1, 0)
        y += 1
        return y * 2

    module = fxplug.symbolic_trace(writes)
    given, expected = torch.ones(2, 3), torch.ones(2, 3)
    made = lower(module, OpenVINOBackend(), (given.clone(),), name="openvino").module
    assert torch.equal(made(given), writes(expected))
    assert torch.equal(given, expected)


@fxplug.wrap
def in_pairs(x):
    return x, (x + 1, x * 2)


def test_tensors_in_nested_containers_are_not_taken_for_constants():
    def program(x):
        made = in_pairs(x)
        return made[1][0], made[1][1].exp()

    module = fxplug.symbolic_trace(program)
    lowered = lower(module, OpenVINOBackend(), (torch.ones(3),), name="openvino").module
    for found, expected in zip(lowered(torch.zeros(3)), program(torch.zeros(3)), strict=True):
        torch.testing.assert_close(found, expected)


def test_data_dependent_checks_leave_the_rest_to_the_engine():
    class Asks(nn.Module):
        def forward(self, x):
            y = x.exp()
            return y + 1 if y.sum() > 0 else y

    x = torch.ones(3)
    lowered = lower(fxplug.trace(Asks(), (x,)), OpenVINOBackend(), (x,), name="openvino")

    assert [node.target for node in lowered.report.nodes if not node.partition] == ["truth", "check_true"]
    assert [partition.fallback for partition in lowered.report.partitions] == [""]
    torch.testing.assert_close(lowered.module(x * 2), (x * 2).exp() + 1)


class Straight(torch.autograd.Function):
    """Rounding with another gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Segments(nn.Module):
    """Returns what it finds by names, as the models for segmentation of torchvision do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        found = OrderedDict()
        features = Straight.apply(self.layer(x) * 8) / 8
        found["out"] = nn.functional.interpolate(
            features, size=(12, 10), mode="bilinear", align_corners=False
        )
        found["aux"] = features.mean((2, 3))
        return found


@fxplug.wrap
def halves(size, limits):
    for number, limit in enumerate(limits):
        limits[number] = min(size[number], limit)
    return limits


class Windows(nn.Module):
    """Takes its sizes from a list that a function of a library fills, as the models for films do."""

    def forward(self, x):
        y = x.exp()
        height, width = halves([y.shape[2], y.shape[3]], [4, 3])
        return nn.functional.avg_pool2d(y, (height, width))


@pytest.mark.parametrize("model", [Segments(), Windows()], ids=["segments", "windows"])
def test_results_by_names_own_gradients_and_sizes_in_lists_lower_without_a_rest(model):
    inputs, others = (sequences(2, 3, 6, 5, seed=1),), (sequences(2, 3, 6, 5, seed=2),)
    effects.register_target(halves, PURE)
    try:
        module = fxplug.trace(model.eval(), inputs)
        lowered = lower(module, OpenVINOBackend(), inputs, name="openvino", strict=True)
    finally:
        effects.unregister_target(halves)

    assert len(lowered.report.partitions) == 1
    assert lowered.report.partitions[0].fallback == ""
    with torch.no_grad():
        for values in (inputs, others):
            found, expected = lowered.module(*values), model(*values)
            assert type(found) is type(expected)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

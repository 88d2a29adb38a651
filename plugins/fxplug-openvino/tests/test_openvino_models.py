"""Models that are captured with example inputs, whose guards are about those, lower as a whole."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import nn

import fxplug
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
        pytest.param(
            *(Heads(), 1),
            marks=pytest.mark.xfail(
                strict=True, reason="the check of how many parts there are stays in PyTorch"
            ),
            id="heads",
        ),
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

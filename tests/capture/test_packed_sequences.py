"""Sequences of several lengths, which torch packs into a named tuple that looks at what it is made of."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import fxplug


class Reader(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(3, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_packed_sequences_are_captured_on_values(kind):
    torch.manual_seed(0)
    model = Reader(kind).eval()
    captured = fxplug.trace(model, (torch.randn(2, 3, 3), torch.tensor([2, 3])), mode="value")
    for lengths in ([2, 3], [3, 1]):
        x, given = torch.randn(2, 3, 3), torch.tensor(lengths)
        assert torch.equal(captured(x, given), model(x, given))
    assert rnn.PackedSequence in [node.target for node in captured.graph.nodes]

"""The decoder with 70 billion parameters costs what one counts by hand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import fxplug


@pytest.fixture
def large_decoder(monkeypatch):
    # At the end of the path: where fxplug is installed, the installed one is used.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).resolve().parents[2])])
    return importlib.import_module("benchmarks.large_decoder")


def products(costs):
    return sum(
        node.multiply_adds
        for node in costs.nodes
        if node.target in {"Linear", "scaled_dot_product_attention"}
    )


def test_a_small_one_runs_and_is_counted(large_decoder):
    sizes = large_decoder.Sizes(layers=2, width=16, heads=4, key_heads=2, inner=24, words=10)
    torch.manual_seed(0)
    model, words = large_decoder.Decoder(sizes).eval(), torch.arange(5)[None]

    costs = fxplug.cost(model, (words,))

    assert products(costs) == large_decoder.counted_by_hand(sizes, 5)
    assert costs.parameter_bytes == 4 * large_decoder.parameters_by_hand(sizes)
    assert costs.parameter_bytes == 4 * sum(parameter.numel() for parameter in model.parameters())
    torch.testing.assert_close(fxplug.trace(model, (words,))(words), model(words))


def test_the_large_one_on_the_meta_device(large_decoder):
    sizes = large_decoder.Sizes()
    with torch.device("meta"):
        model = large_decoder.Decoder(sizes).to(torch.bfloat16).eval()
        words = torch.zeros(1, 4096, dtype=torch.int64)

    costs = fxplug.cost(model, (words,))

    assert costs.unknown == ()
    assert costs.parameter_bytes == 2 * large_decoder.parameters_by_hand(sizes) == 137_953_296_384
    assert products(costs) == large_decoder.counted_by_hand(sizes, 4096)
    # Three times what is inside of a layer, and what is added to it.
    assert costs.peak_activation_bytes >= 2 * 4096 * (3 * sizes.inner + sizes.width)
    assert costs.peak_activation_bytes < 1.1 * 2 * 4096 * (3 * sizes.inner + sizes.width)

"""What layers do to their own float32 output equals the activation that it stands for."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional

from fxplug_quant import activations
from fxplug_quant.activations import POST_OPERATIONS, selu_in_place

ACTIVATIONS = {
    "none": lambda values: values,
    "relu": functional.relu,
    "selu": functional.selu,
    "gelu": functional.gelu,
    "gelu-tanh": lambda values: functional.gelu(values, approximate="tanh"),
    "sigmoid": functional.sigmoid,
    "silu": functional.silu,
    "tanh": functional.tanh,
}
LARGE = 2**19 + 2**17 + 7
"""More than two chunks of a SELU, and a part of one; so many that several threads share them."""


def test_every_name_is_known_here():
    assert ACTIVATIONS.keys() == POST_OPERATIONS.keys()


@pytest.mark.parametrize("elements", [5, LARGE])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_post_operation_equals_the_activation(name: str, elements: int):
    values = 4 * torch.randn(elements, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        POST_OPERATIONS[name](values.clone()), ACTIVATIONS[name](values), rtol=1e-6, atol=2e-6
    )


class TestSelu:
    @pytest.fixture(autouse=True)
    def fast(self, monkeypatch):
        monkeypatch.setattr(activations, "_HAS_FAST_SIGMOID", True)

    def large(self, special: list[float]) -> torch.Tensor:
        values = torch.linspace(-30, 30, LARGE)
        values[: len(special)] = torch.tensor(special)
        return values

    def test_of_many_values_is_not_torchs(self, monkeypatch):
        monkeypatch.setattr(torch, "selu_", None)
        selu_in_place(self.large([]))

    def test_of_many_values_is_as_exact_as_torchs(self):
        values = self.large([0.0, -0.0, -1e-30, 1e-30, -1e-4, 3e38, -3e38])
        exact = functional.selu(values.double())
        found = (selu_in_place(values.clone()) - exact).abs()
        bound = (functional.selu(values) - exact).abs().max()
        assert (found / exact.abs().clamp_min(1)).max() < 2 * bound

    def test_of_what_is_not_finite_is_torchs(self):
        values = self.large([math.nan, math.inf, -math.inf])
        torch.testing.assert_close(
            selu_in_place(values.clone())[:3], functional.selu(values[:3]), equal_nan=True
        )

    def test_is_in_place(self):
        values = self.large([]).view(-1, 1)
        assert selu_in_place(values) is values
        assert values.min() < -1.7

    def test_takes_what_lies_in_memory_with_gaps(self):
        values = self.large([])[:-1].view(2, -1).t()
        torch.testing.assert_close(
            selu_in_place(values.clone(memory_format=torch.preserve_format)), functional.selu(values)
        )

    def test_keeps_another_dtype(self):
        values = self.large([]).double()
        torch.testing.assert_close(selu_in_place(values.clone()), functional.selu(values))

    def test_leaves_small_values_to_torch(self):
        values = torch.linspace(-3, 3, 100)
        assert torch.equal(selu_in_place(values.clone()), functional.selu(values))

    def test_does_not_depend_on_the_default_dtype(self):
        values = self.large([])
        torch.set_default_dtype(torch.float64)
        try:
            found = selu_in_place(values.clone())
        finally:
            torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(found, functional.selu(values), rtol=1e-6, atol=2e-6)

    def test_may_run_in_and_out_of_inference_mode_and_in_threads(self):
        values = [self.large([float(position)]) for position in range(4)]
        expected = [functional.selu(value) for value in values]
        with torch.inference_mode():
            selu_in_place(self.large([]))
        selu_in_place(self.large([]))
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(selu_in_place, values))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-6)

"""What layers do to their own float32 output equals the activation that it stands for."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fxplug_quant.activations import POST_OPERATIONS

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
LARGE = 2**18 + 7
"""So many that several threads share them."""


def test_every_name_is_known_here():
    assert ACTIVATIONS.keys() == POST_OPERATIONS.keys()


@pytest.mark.parametrize("elements", [5, LARGE])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_post_operation_equals_the_activation(name: str, elements: int):
    values = 4 * torch.randn(elements, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        POST_OPERATIONS[name](values.clone()), ACTIVATIONS[name](values), rtol=1e-6, atol=2e-6
    )

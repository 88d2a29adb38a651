"""What returns its input itself in eager does so when it is expressed in operators; what those lose is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import fxplug
from fxplug.errors import DecompositionError

X = torch.randn(2, 3)


class WritesBehind(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(3, 3), layer

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.linear(x)
        result = self.layer(hidden)
        result += x
        return result, hidden


@pytest.mark.parametrize("to", ["aten", "core-aten"])
@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        (nn.Dropout, 2),
        (nn.Dropout1d, 3),
        (nn.Dropout1d, 2),
        (nn.Dropout2d, 4),
        (nn.Dropout3d, 5),
        (nn.AlphaDropout, 2),
        (nn.FeatureAlphaDropout, 5),
    ],
)
def test_a_dropout_that_is_off_returns_its_input(kind, rank, to):
    root = WritesBehind(kind(0.5)).eval()
    x = torch.randn([3] * rank)
    decomposed = fxplug.decompose(fxplug.symbolic_trace(root), (x,), to=to)

    for found, expected in zip(decomposed(x), root(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_so_does_one_that_drops_nothing_in_training():
    root = WritesBehind(nn.Dropout(0.0)).train()
    decomposed = fxplug.decompose(fxplug.symbolic_trace(root), (X,), to="aten")

    for found, expected in zip(decomposed(X), root(X), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: functional.dropout(x, 0.5, training=False).add_(1),
        lambda x: functional.dropout(input=x, training=False, p=0.5).add_(1),
        lambda x: functional.alpha_dropout(x).add_(1),
        lambda x: torch.dropout(x, 0.5, False).add_(1),
        lambda x: torch.dropout(x, 0.0, train=True).add_(1),
    ],
    ids=["functional", "by name", "alpha", "operator", "nothing dropped"],
)
def test_functions_of_dropout_that_are_off_return_their_input(program):
    decomposed = fxplug.decompose(fxplug.trace(program, (X.clone(),)), (X.clone(),), to="aten")

    ours, eager = X.clone(), X.clone()
    assert torch.equal(decomposed(ours), program(eager))
    assert torch.equal(ours, eager)
    assert not torch.equal(ours, X)


def test_a_dropout_that_is_on_draws():
    decomposed = fxplug.decompose(
        fxplug.symbolic_trace(lambda x: functional.dropout(x, 0.5)), (X,), to="aten"
    )

    torch.manual_seed(3)
    found = decomposed(X)
    torch.manual_seed(3)
    assert torch.equal(found, functional.dropout(X, 0.5))


@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_hooks_on_tensors_are_refused(mode):
    def program(x):
        y = x * 2
        y.register_hook(lambda gradient: gradient * 3)
        return y

    x = torch.ones(3, requires_grad=True)
    captured = fxplug.trace(program, None if mode == "symbolic" else (x,), mode=mode)

    with pytest.raises(DecompositionError, match="hook"):
        fxplug.decompose(captured, (x,), to="aten")

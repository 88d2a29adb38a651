"""Numbers of dimensions that hang on sizes of other values, on which a program hangs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug


class Flattens(nn.Module):
    def forward(self, x, z):
        y = x.flatten(z.size(0))
        return y * 2 if y.dim() == 3 else y * 3


class FlattensByName(nn.Module):
    def forward(self, x, z):
        y = torch.flatten(x, start_dim=z.size(0))
        return y * 2 if y.ndim == 3 else y * 3


class Multiplies(nn.Module):
    def forward(self, x, z):
        y = torch.tensordot(x, x, dims=z.size(0))
        return y * 2 if y.dim() == 4 else y * 3


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("kind", [Flattens, FlattensByName, Multiplies])
def test_another_number_of_dimensions_is_no_other_answer(kind, mode):
    net, x = kind(), torch.ones(2, 2, 2, 2)
    captured = fxplug.trace(net, (x, torch.ones(2)), mode=mode)
    torch.testing.assert_close(captured(x, torch.ones(2)), net(x, torch.ones(2)))
    with pytest.raises(fxplug.GuardError):
        captured(x, torch.ones(1))


def test_numbers_of_dimensions_that_are_said_are_guarded_by_those_of_inputs():
    class Net(nn.Module):
        def forward(self, x):
            y = x.flatten(1)
            return y * 2 if y.dim() == 2 else y

    captured = fxplug.trace(Net(), (torch.ones(2, 3, 4),))
    assert [guard.text for guard in captured.guards] == ["x.dim() == 3"]

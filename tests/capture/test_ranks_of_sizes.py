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


class Picks(nn.Module):
    def forward(self, x, picked):
        y = x[picked]
        return y * 2 if y.dim() == 1 else y * 3


class PicksInTheEnd(nn.Module):
    def forward(self, x, picked):
        rows = x[0], x[picked > 0]
        y = torch.relu(x[picked * picked])
        return y * 2 if y.dim() == 3 else rows[0]


@pytest.mark.parametrize("kind", [Picks, PicksInTheEnd])
def test_an_index_may_be_a_mask_or_none(kind):
    net, x = kind(), torch.arange(4.0).view(2, 2)
    mask, places = torch.tensor([[True, False], [False, True]]), torch.tensor([[0, 1], [1, 0]])
    for given, other in ((mask, places), (places, mask)):
        captured = fxplug.trace(net, (x, given))
        torch.testing.assert_close(captured(x, given), net(x, given))
        try:
            torch.testing.assert_close(captured(x, other), net(x, other))
        except fxplug.GuardError:
            continue


@pytest.mark.parametrize("given", [torch.tensor([1, 0]), torch.tensor([True, False])])
def test_what_is_always_a_mask_or_an_index_is_guarded_by_dimensions_of_inputs(given):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("places", torch.tensor([[0, 1], [1, 1]]))

        def forward(self, x, given):
            y = x[given > 0][:, self.places.view(-1)][..., x.argmax(dim=-1)][: x.size(0)]
            return y * 2 if y.dim() == 2 else y

    captured = fxplug.trace(Net(), (torch.ones(2, 2), given))
    assert [guard.text for guard in captured.guards] == ["x.dim() == 2", "given.dim() == 1"]

"""Layers of torch to whose class somebody has given another ``__call__``."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from torch import nn

from fxplug.errors import TraceError

X = torch.randn(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


usual = nn.Module.__call__


def doubling(self, *args):
    return usual(self, *args) * 2


@wraps(usual)
def doubling_in_disguise(self, *args):
    return usual(self, *args) * 2


@pytest.fixture(params=[doubling, doubling_in_disguise])
def doubled(request, monkeypatch):
    monkeypatch.setattr(nn.Linear, "__call__", request.param, raising=False)


@pytest.mark.usefixtures("doubled")
def test_what_it_does_besides_is_done_once(capture_as):
    net = Net()
    captured = capture_as(net)
    torch.testing.assert_close(captured(X), net(X))
    targets = [str(node.target) for node in captured.graph.nodes]
    assert "first" not in targets
    assert "first.weight" in targets


@pytest.mark.usefixtures("doubled")
def test_a_layer_that_is_traced_itself(capture_unchecked, request):
    layer = nn.Linear(4, 4)
    if "symbolic" in request.node.name:
        with pytest.raises(TraceError, match="has a __call__ of its own") as caught:
            capture_unchecked(layer)
        assert caught.value.code == "FXP-T010"
    else:
        torch.testing.assert_close(capture_unchecked(layer)(X), layer(X))


class Disguised(Net):
    __call__ = doubling_in_disguise


def test_a_root_whose_own_call_bears_the_name_of_torchs(capture_unchecked, request):
    net = Disguised()
    if "symbolic" in request.node.name:
        with pytest.raises(TraceError, match="has a __call__ of its own"):
            capture_unchecked(net)
    else:
        torch.testing.assert_close(capture_unchecked(net)(X), net(X))


def test_others_stay_whole(capture_as):
    targets = [str(node.target) for node in capture_as(Net()).graph.nodes]
    assert "first" in targets

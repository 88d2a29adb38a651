"""Functions of other libraries that stay calls, and are given lists: what they do to these is seen when they run."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

import fxplug

X = torch.linspace(-1, 1, 8).reshape(2, 4)
LIBRARY = "torchvision.models.swin_transformer"
attend = None
"""What the program calls: a function of the library, while a test runs."""


def window(x, weight, sizes, training=True):
    return x * weight * sum(sizes)


def window_that_moves(x, weight, sizes, training=True):
    sizes[0] += 1
    return x * weight * sum(sizes)


class Windows(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.sizes = nn.Parameter(torch.ones(4)), [2, 3]

    def forward(self, x):
        y = attend(x, self.weight, self.sizes, training=self.training)
        return attend(y, self.weight, [1, 1], training=self.training)


@pytest.fixture
def attending(monkeypatch):
    """Has the library keep a function as a call, and the program call it."""

    def keep(function):
        own = types.FunctionType(
            function.__code__, globals(), "shifted_window_attention", function.__defaults__
        )
        own.__module__ = LIBRARY
        library = types.ModuleType(LIBRARY)
        library.shifted_window_attention = own
        monkeypatch.setitem(sys.modules, LIBRARY, library)
        monkeypatch.setitem(globals(), "attend", own)
        fxplug.wrap(own)

    return keep


@pytest.mark.parametrize("check", [True, False])
def test_lists_are_given_as_they_are(plainly, attending, check, listened_to):
    attending(window)
    net = Windows().eval()
    captured = fxplug.trace(net, (X,), check=check)
    assert plainly == [captured]
    listened = listened_to(net, X)
    assert [node.target for node in captured.graph.nodes if node.target is attend] == [attend, attend]
    assert len(captured.graph.nodes) == len(listened.graph.nodes)
    torch.testing.assert_close(captured(X * 2), net(X * 2))


def test_a_function_that_changes_a_list_is_listened_to(plainly, attending):
    attending(window_that_moves)
    net = Windows().eval()
    with pytest.raises(fxplug.TraceError):
        fxplug.trace(net, (X,))
    assert plainly == [None]
    assert net.sizes == [2, 3]

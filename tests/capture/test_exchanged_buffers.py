"""What a program has read of a buffer is what it was, whatever it assigns to the buffer afterwards."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug

X = torch.arange(1.0, 5.0).reshape(2, 2)


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("a", torch.ones(2, 2))
        self.register_buffer("b", torch.zeros(2, 2))
        self.register_buffer("c", torch.full((2, 2), 5.0))

    def parts(self):
        return [getattr(self, name) for name in "abc"]


class ReturnsTheOld(Buffers):
    def forward(self, x):
        old = self.a
        self.a = self.a + 1
        return old


class ReturnsTheOldUnread(Buffers):
    def forward(self, x):
        old = self.a
        self.a = x * 2
        return old


class ReturnsAView(Buffers):
    def forward(self, x):
        old = self.a.view(4)
        self.a = self.a + 1
        return old


class Swaps(Buffers):
    def forward(self, x):
        self.a, self.b = self.b, self.a
        return x + self.a


class Rotates(Buffers):
    def forward(self, x):
        self.a, self.b, self.c = self.b, self.c, self.a
        return self.a + 2 * self.b + 3 * self.c + x


class WritesAndAssigns(Buffers):
    def forward(self, x):
        self.a.add_(1)
        old = self.a
        self.a = old * 2
        return old * x


class KeepsAnAverage(Buffers):
    def forward(self, x):
        y = self.layer(x) @ self.a
        self.a = 0.9 * self.a + 0.1
        return y


class KeepsAState(Buffers):
    def forward(self, x):
        state = torch.tanh(self.layer(x) + self.a * x)
        self.a = state.detach()
        return state


class Counts(Buffers):
    def forward(self, x):
        self.a = self.a + 1
        return self.layer(x) * self.a


PROGRAMS = [
    *(ReturnsTheOld, ReturnsTheOldUnread, ReturnsAView, Swaps, Rotates, WritesAndAssigns),
    *(KeepsAnAverage, KeepsAState, Counts),
]


@pytest.mark.filterwarnings(
    "ignore:While it was traced, forward assigned to the buffer:fxplug.errors.TraceWarning"
)
@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_results_buffers_and_gradients_are_those_of_eager(kind, check, mode):
    root = kind()
    eager = copy.deepcopy(root)
    captured = copy.deepcopy(fxplug.trace(root, (X,), mode=mode, check=check))
    for _ in range(3):
        found, expected = captured(X), eager(X)
        assert torch.equal(found, expected)
        for name, value in zip("abc", eager.parts(), strict=True):
            assert torch.equal(getattr(captured, name, value), value)
        if expected.requires_grad:
            found.sum().backward()
            expected.sum().backward()
            assert torch.equal(captured.layer.weight.grad, eager.layer.weight.grad)


@pytest.mark.parametrize(("kind", "count"), [(Counts, 0), (KeepsAnAverage, 1), (Swaps, 2)])
def test_only_what_is_still_needed_is_copied(kind, count):
    captured = fxplug.trace(kind(), (X,), mode="value")
    assert len(captured.graph.find_nodes(op="call_method", target="clone")) == count

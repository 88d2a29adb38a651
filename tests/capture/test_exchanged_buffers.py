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


# -- a buffer becomes what is assigned to it; a graph can only copy into it


class KeepsTheLast(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 4))

    def forward(self, x):
        result = x + self.last.sum(0)
        self.last = x.detach() * 1
        return result


class Averages(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return x - self.mean


@pytest.fixture(params=["shape", "value"])
def captured_as(request):
    return lambda root: fxplug.trace(root, (torch.ones(2, 4),), mode=request.param)


@pytest.mark.parametrize(
    ("kind", "other", "found"),
    [
        (KeepsTheLast, torch.ones(1, 4), r"float32 of \(1, 4\)"),
        (KeepsTheLast, torch.ones(3, 4), r"float32 of \(3, 4\)"),
        (KeepsTheLast, torch.ones(2, 4).double(), r"float64 of \(2, 4\)"),
        (Averages, torch.ones(2, 4).double(), r"float64 of \(4,\)"),
    ],
)
def test_a_buffer_that_would_become_another_is_an_error(captured_as, kind, other, found):
    module = captured_as(kind())

    with pytest.raises(
        fxplug.GuardError, match=rf"for self\.(last|mean) becoming .* now there is torch\.{found}"
    ):
        module(other)
    assert all((buffer == 0).all() for buffer in module.buffers())


def test_what_fits_in_is_kept_for_any_batch(captured_as):
    root = Averages()
    module, expected = copy.deepcopy(captured_as(root)), copy.deepcopy(root)

    for batch in (2, 5, 1):
        x = torch.rand(batch, 4)
        torch.testing.assert_close(module(x), expected(x))
    torch.testing.assert_close(module.state_dict(), expected.state_dict())


def test_all_buffers_are_checked_before_one_is_written(captured_as):
    class Both(KeepsTheLast):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.mean = self.mean + x.mean(0)
            return super().forward(x)

    module = captured_as(Both())

    with pytest.raises(fxplug.GuardError, match=r"self\.last becoming") as caught:
        module(torch.ones(3, 4))
    assert (module.get_buffer("mean") == 0).all()
    assert caught.value.can_run_again


def test_written_packages_check_it_too(captured_as, tmp_path):
    fxplug.export_python(captured_as(KeepsTheLast()), tmp_path / "last_kept")
    text = (tmp_path / "last_kept" / "model.py").read_text("utf-8")

    assert "check_like(" in text


def test_saved_files_check_it_too(captured_as, tmp_path):
    fxplug.save(captured_as(KeepsTheLast()), tmp_path / "module.fxplug")
    loaded = fxplug.load(tmp_path / "module.fxplug")

    assert torch.equal(loaded(torch.ones(2, 4)), torch.ones(2, 4))
    with pytest.raises(fxplug.GuardError, match=r"self\.last becoming"):
        loaded(torch.ones(1, 4))

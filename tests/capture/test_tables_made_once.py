"""Tables that a program makes at its first call, of the sizes of its inputs, and keeps for the next ones."""

import copy
import itertools

import pytest
import torch
from torch import nn

import fxplug

pytestmark = pytest.mark.filterwarnings("ignore:While :fxplug.errors.TraceWarning")
MODES = ["shape", "value"]


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.cos = self.sin = None

    def forward(self, x):
        rows = x.shape[1]
        if self.cos is None or self.cos.shape[0] < rows:
            steps = torch.outer(torch.arange(rows, device=x.device, dtype=x.dtype), 0.1 ** torch.arange(4))
            self.cos, self.sin = steps.cos(), steps.sin()
        return x * self.cos[:rows] + x.roll(1, -1) * self.sin[:rows]


class InBuffers(Rotary):
    def __init__(self):
        super().__init__()
        del self.cos, self.sin
        self.register_buffer("cos", None, persistent=False)
        self.register_buffer("sin", None, persistent=False)


class Masked(nn.Module):
    mask = None

    def forward(self, x):
        rows = x.shape[1]
        if self.mask is None or self.mask.size(0) != x.shape[1]:
            self.mask = torch.triu(torch.full((rows, rows), float("-inf")), diagonal=1).to(x.device)
        return (x @ x.transpose(1, 2) + self.mask).softmax(-1)


class BySize(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def forward(self, x):
        rows = x.shape[1]
        if rows not in self.tables:
            self.tables[rows] = torch.arange(rows).float()
        return x + self.tables[rows][:, None]


class Asked(nn.Module):
    def forward(self, x):
        if not hasattr(self, "steps"):
            self.steps = torch.arange(x.shape[-1] * x.dim()).float()
        return x.sum() + self.steps


KINDS = [Rotary, InBuffers, Masked, BySize, Asked]


def state(model):
    return {name: value for name, value in vars(model).items() if name != "_buffers"} | dict(model._buffers)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_sizes_of_which_a_table_is_made_are_fixed(kind, mode):
    model = kind()
    before = copy.deepcopy(state(model))
    captured = fxplug.trace(model, (torch.rand(2, 5, 4),), mode=mode)
    assert state(model).keys() == before.keys()
    assert all(state(model)[name] is None for name, value in before.items() if value is None)

    for made in (captured, copy.deepcopy(captured)):
        reference = kind()
        for batch in (2, 3, 2):
            x = torch.rand(batch, 5, 4)
            torch.testing.assert_close(made(x), reference(x))
    if kind is not Asked:
        for rows in (3, 7):  # What the program has made of other sizes may be something else.
            with pytest.raises(fxplug.GuardError):
                captured(torch.rand(2, rows, 4))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_guard_failure", ["recapture", "eager"])
@pytest.mark.parametrize("kind", [Rotary, Masked, BySize])
def test_where_other_calls_run_too_such_programs_are_refused(kind, on_guard_failure, mode):
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(kind(), (torch.rand(2, 5, 4),), mode=mode, on_guard_failure=on_guard_failure)
    assert caught.value.code == "FXP-T055"


class Longest(nn.Module):
    """What it computes hangs on the longest input so far, as the scaled rotary embeddings of some models."""

    def __init__(self):
        super().__init__()
        self.table, self.longest = None, 0

    def forward(self, x):
        rows = x.shape[1]
        if rows > self.longest:
            self.longest = rows
            self.table = torch.arange(rows) / rows
        return x * self.table[:rows, None]


@pytest.mark.parametrize("mode", MODES)
def test_what_hangs_on_the_calls_before_is_captured_for_one_size_alone(mode):
    captured = fxplug.trace(Longest(), (torch.rand(2, 5, 4),), mode=mode)
    reference = Longest()
    for _ in range(2):
        x = torch.rand(3, 5, 4)
        torch.testing.assert_close(captured(x), reference(x))
    for rows in (3, 7):
        with pytest.raises(fxplug.GuardError):
            captured(torch.rand(2, rows, 4))


class Decided(nn.Module):
    """Keeps what its first call has decided."""

    table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.ones(4) if x.shape[0] > 2 else torch.zeros(4)
        return x.sum() * 0 + self.table


@pytest.mark.parametrize("mode", MODES)
def test_what_the_first_call_has_decided_is_guarded(mode):
    captured = fxplug.trace(Decided(), (torch.rand(3, 4),), mode=mode)
    for rows in (3, 9):
        torch.testing.assert_close(captured(torch.rand(rows, 4)), torch.ones(4))
    with pytest.raises(fxplug.GuardError):  # In eager, it hangs on which call comes first.
        captured(torch.rand(1, 4))
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(Decided(), (torch.rand(3, 4),), mode=mode, on_guard_failure="recapture")
    assert caught.value.code == "FXP-T055"


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.zeros(1)

    def forward(self, x):
        self.table = torch.cat([self.table, torch.zeros(x.shape[0])])
        return x.sum() + len(self.table)


class OfValues(nn.Module):
    last = None

    def forward(self, x):
        if self.last is None:
            self.last = x.mean(0)
        return x - self.last


class OfARow(nn.Module):
    """Is not the same in its third call."""

    def __init__(self):
        super().__init__()
        self.made = []

    def forward(self, x):
        if len(self.made) < 2:
            self.made.append(torch.arange(x.shape[0]).float())
        return x.sum() + torch.stack(self.made).sum()


class InAFile(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", None)

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(x.shape[0]).float()
        return x.sum() + self.table


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind", "code"),
    [(Growing, "FXP-T055"), (OfValues, "FXP-T055"), (OfARow, "FXP-T055"), (InAFile, "FXP-T009")],
)
def test_what_is_no_such_table_is_refused(kind, code, mode):
    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(kind(), (torch.rand(3, 2),), mode=mode)
    assert caught.value.code == code


@pytest.mark.parametrize("mode", MODES)
def test_a_second_call_that_asks_more_is_refused(mode):
    class Asking(nn.Module):
        seen = None

        def forward(self, x):
            if self.seen is None:
                self.seen = torch.arange(3)
            elif x.shape[0] > 1:
                return x * 2 + self.seen.sum()
            return x * 2 + torch.arange(3).sum()

    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(Asking(), (torch.rand(3, 2),), mode=mode)
    assert caught.value.code == "FXP-T055"


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_table_of_a_program_that_counts_its_runs_ends(mode):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.runs, self.tables = itertools.count(1), {}

        def forward(self, x):
            y = x * next(self.runs)
            self.tables.setdefault(y.shape[1], torch.ones(4))
            return y + self.tables[y.shape[1]]

    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(Counting(), (torch.ones(2, 4),), mode=mode, check=False)
    assert caught.value.code == "FXP-T055"

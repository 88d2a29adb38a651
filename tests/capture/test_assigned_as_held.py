"""Assignments of what an attribute holds already: ``self.cache = self.cache.to(x)``."""

import copy

import pytest
import torch
from torch import nn

import fxplug

MODES = ["shape", "value"]


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.zeros(2, 8, 4)

    def forward(self, x, start: int):
        count = x.shape[1]
        self.rows = self.rows.to(x)
        self.rows[:, start : start + count] = x
        kept = self.rows[:, : start + count]
        return (x @ kept.transpose(1, 2)).softmax(-1) @ kept


@pytest.mark.parametrize("mode", MODES)
def test_what_an_attribute_holds_may_be_assigned_to_it(mode):
    model = Cache()
    captured = fxplug.trace(copy.deepcopy(model), (torch.rand(2, 3, 4), 0), mode=mode)
    for made in (copy.deepcopy(captured), captured):
        reference, start = copy.deepcopy(model), 0
        for count in (3, 1, 2):
            x = torch.rand(2, count, 4)
            torch.testing.assert_close(made(x, start), reference(x, start))
            start += count
        torch.testing.assert_close(made.rows, reference.rows)
    with pytest.raises(
        fxplug.GuardError, match=r"rows\.to\(x\) is rows"
    ):  # Eager would go on with another tensor.
        captured(torch.rand(2, 1, 4).double(), 6)


@pytest.mark.parametrize("mode", MODES)
def test_what_another_call_has_made_is_refused(mode):
    class Converting(Cache):
        def __init__(self):
            super().__init__()
            self.rows = self.rows.double()

    class Copying(Cache):
        def forward(self, x, start: int):
            self.rows = self.rows.clone()
            return super().forward(x, start)

    for kind in (Converting, Copying):
        with pytest.raises(fxplug.TraceError) as caught:
            fxplug.trace(kind(), (torch.rand(2, 3, 4), 0), mode=mode)
        assert caught.value.code == "FXP-T055"


@pytest.mark.filterwarnings("ignore:While tracing, :fxplug.errors.TraceWarning")
@pytest.mark.parametrize("mode", MODES)
def test_what_need_not_be_guarded_is_not(mode):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.tensor([0.5, 2.0])

        def forward(self, x):
            if self.weights.type() != x.type():
                self.weights = self.weights.type_as(x)
            return x * self.weights.type_as(x)

    captured = fxplug.trace(Weighted(), (torch.rand(3, 2),), mode=mode)
    assert not [guard.text for guard in captured.guards if " is " in guard.text and "type(" not in guard.text]
    x = torch.rand(5, 2)
    torch.testing.assert_close(captured(x), Weighted()(x))


class Rows(nn.Module):
    def __init__(self, kind=list):
        super().__init__()
        self.rows = kind([torch.arange(3.0), torch.ones(3)])

    def forward(self, x):
        self.rows = type(self.rows)([row.to(x) for row in self.rows])
        self.rows[0].add_(1)
        return sum(row * x for row in self.rows)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("mode", MODES)
def test_lists_of_what_an_attribute_holds_may_be_assigned_to_it(mode, kind):
    model = Rows(kind)
    captured = fxplug.trace(copy.deepcopy(model), (torch.rand(3),), mode=mode)
    for made in (copy.deepcopy(captured), captured):
        reference = copy.deepcopy(model)
        for _ in range(3):
            x = torch.rand(3)
            torch.testing.assert_close(made(x), reference(x))
    with pytest.raises(fxplug.GuardError, match=r"\.to\(x\) is "):
        captured(torch.rand(3).double())


class Shorter(Rows):
    def forward(self, x):
        self.rows = [row.to(x) for row in self.rows[:1]]
        return sum(row * x for row in self.rows)


@pytest.mark.filterwarnings("ignore:While :fxplug.errors.TraceWarning")
def test_a_shorter_list_of_what_is_held_is_made_of_nothing_of_the_inputs_but_their_dtype():
    model = Shorter()
    captured = fxplug.trace(model, (torch.rand(3),))
    assert len(model.rows) == 2
    for _ in range(3):
        x = torch.rand(3)
        torch.testing.assert_close(captured(x), model(x))
    with pytest.raises(fxplug.GuardError):
        captured(torch.rand(3).double())
    with pytest.raises(
        fxplug.TraceError
    ) as caught:  # Without values nobody knows that the rows are the same ones.
        fxplug.trace(Shorter(), (torch.rand(3),), mode="shape")
    assert caught.value.code == "FXP-T055"


@pytest.mark.parametrize("mode", MODES)
def test_lists_that_are_changed_once_they_are_assigned_are_refused(mode):
    class ByVariable(Rows):
        def forward(self, x):
            rows = [row.to(x) for row in self.rows]
            self.rows = rows
            rows.append(x)
            return sum(row * x for row in self.rows)

    class ByAttribute(Rows):
        def forward(self, x):
            self.rows = [row.to(x) for row in self.rows]
            self.rows.append(x)
            return sum(row * x for row in self.rows)

    class Swapped(Rows):
        def forward(self, x):
            self.rows = [row.to(x) for row in reversed(self.rows)]
            return self.rows[0] * x

    for kind in (ByVariable, ByAttribute, Swapped):
        model = kind()
        with pytest.raises(fxplug.TraceError) as caught:
            fxplug.trace(model, (torch.rand(3),), mode=mode)
        assert caught.value.code == "FXP-T055"
        assert len(model.rows) == 2

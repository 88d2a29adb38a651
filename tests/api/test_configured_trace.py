"""What is not said to a capture the configuration says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import MismatchError
from fxplug.errors import GuardError, TraceError, TraceWarning
from fxplug.plugins import Config, PluginManager, TraceConfig

ROWS = torch.ones(2, 3)


def manager(**trace):
    return PluginManager(config=Config(trace=TraceConfig(**trace)), candidates=[], environ={})


class Asks(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] > 1 else x


class Marks(nn.Module):
    def forward(self, x):
        self.last = 1
        return x + 1


class Doubts(nn.Module):
    """Asks twice for what nobody knows without data."""

    def forward(self, x):
        if x.sum() > 0:
            x = x + 1
        if x.max() > 5:
            x = x * 2
        return x


def test_the_policy_for_guards_is_that_of_the_configuration_and_an_argument_prevails():
    eager = manager(on_guard_failure="eager")

    assert fxplug.trace(Asks(), (ROWS,), manager=eager)(ROWS[:1]).equal(ROWS[:1])
    for given in (
        fxplug.trace(Asks(), (ROWS,), manager=eager, on_guard_failure="error"),
        fxplug.trace(Asks(), (ROWS,), manager=manager()),
    ):
        with pytest.raises(GuardError):
            given(ROWS[:1])


def test_assignments_are_an_error_where_the_configuration_says_so():
    strict = manager(on_mutation="error")

    for capture in (fxplug.symbolic_trace, fxplug.trace):
        with pytest.raises(TraceError, match="last"):
            capture(Marks(), manager=strict)
        with pytest.warns(TraceWarning):
            capture(Marks(), manager=manager())
    with pytest.warns(TraceWarning):
        fxplug.trace(Marks(), manager=strict, on_mutation="keep")


def test_everything_that_stands_against_a_capture_is_collected_where_the_configuration_says_so():
    with pytest.raises(TraceError) as caught:
        fxplug.trace(Doubts(), manager=manager(on_error="collect"))
    with pytest.raises(TraceError) as first:
        fxplug.trace(Doubts(), manager=manager(on_error="collect"), on_error="raise")

    assert len(caught.value.problems) == 2
    assert first.value.problems == ()


def test_the_check_is_left_out_where_the_configuration_says_so(count_calls):
    class Counts(nn.Module):
        def forward(self, x):
            return x + count_calls()

    with pytest.raises(MismatchError):
        fxplug.trace(Counts(), (ROWS,), manager=manager())
    fxplug.trace(Counts(), (ROWS,), manager=manager(check=False))
    with pytest.raises(MismatchError):
        fxplug.trace(Counts(), (ROWS,), manager=manager(check=False), check=True)


def test_the_mode_of_the_configuration_counts_where_it_can():
    shapes = manager(mode="shape")

    assert fxplug.trace(Asks(), (ROWS,), manager=shapes).guards
    assert not fxplug.trace(nn.Linear(3, 3), manager=shapes).guards
    with pytest.raises(TraceError, match=r"x\.sum"):
        fxplug.trace(Doubts(), (ROWS,), manager=shapes)
    assert fxplug.trace(Doubts(), (ROWS,), manager=shapes, mode="value").guards


@pytest.mark.parametrize("name", ["mode", "on_error", "on_mutation", "on_guard_failure"])
def test_an_argument_that_does_not_exist_is_refused(name):
    with pytest.raises(TraceError, match=f"Cannot trace with {name}='eror'"):
        fxplug.trace(Asks(), (ROWS,), manager=manager(), **{name: "eror"})

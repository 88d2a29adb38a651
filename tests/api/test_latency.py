"""Measuring two callables in turns."""

from __future__ import annotations

import pytest
import torch

from fxplug.api.latency import Latency, measure_latency


def test_both_run_equally_often_and_take_turns_in_going_first():
    calls = []
    latency = measure_latency(
        lambda x: calls.append("before"), lambda x: calls.append("after"), (torch.ones(1),), runs=4
    )

    assert latency.runs == len(latency.after_runs) == 4
    measured = calls[-8:]
    assert measured == ["before", "after", "after", "before"] * 2
    assert calls.count("before") == calls.count("after") > 4  # There is a warm-up.


def test_what_a_call_writes_into_its_inputs_does_not_reach_the_next_one():
    seen = []

    def write(x):
        seen.append(x.item())
        x.add_(1)

    given = torch.zeros(())
    measure_latency(write, write, (given,), runs=2)

    assert set(seen) == {0}
    assert given == 0


def test_progress_is_told_after_every_turn():
    told = []
    measure_latency(len, len, ([],), runs=3, progress=lambda done, total: told.append((done, total)))

    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_number_of_runs_is_bounded_when_nobody_names_it():
    assert 7 <= measure_latency(len, len, ([],)).runs <= 51


def test_figures_are_medians_and_say_how_much_they_vary():
    latency = Latency((4.0, 2.0, 3.0, 100.0, 1.0), (1.0, 1.0, 1.0, 1.0, 1.0))

    assert (latency.before, latency.after, latency.ratio) == (3.0, 1.0, 3.0)
    assert latency.before_spread == pytest.approx(1 / 3)
    assert latency.after_spread == 0
    assert Latency((1.0,), (1.0,)).before_spread == 0

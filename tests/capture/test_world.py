"""What a program asks of the world around it: the time is told of, random numbers of the system are refused."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import time
import uuid
import warnings
from os import urandom as noise
from threading import Thread
from time import perf_counter as now
from uuid import uuid4

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture import TracePolicy, Tracer
from fxplug.errors import GuardError, TraceError, TraceWarning

WAYS = {
    "symbolic": fxplug.symbolic_trace,
    "value": lambda root: fxplug.trace(root, (torch.ones(2),), mode="value", check=False),
    "shape": lambda root: fxplug.trace(root, (torch.ones(2),), mode="shape", check=False),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def times_clock(x):
    return x * time.time()


def times_imported_clock(x):
    return x * now()


def through_a_helper(x):
    return x + seconds()


def seconds():
    return time.monotonic()


class Clocked(nn.Module):
    def forward(self, x):
        return x * time.perf_counter_ns()


class Timer:
    def __enter__(self):
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error):
        self.elapsed = time.perf_counter() - self.start


def timed(x):
    with Timer() as timer:
        y = x + 1
    return y * timer.elapsed


@contextlib.contextmanager
def started():
    yield time.process_time()


def since(x):
    with started() as start:
        return x * start


def asks_by_name(x):
    return x * getattr(time, "thread_time")()  # noqa: B009 - as programs do


def plus_noise(x):
    return x + os.urandom(1)[0]


def plus_imported_noise(x):
    return x + noise(1)[0]


def plus_unique(x):
    return x + uuid4().bytes[0]


def plus_unique_of_module(x):
    return x + uuid.uuid1().node


@ways
@pytest.mark.parametrize(
    ("root", "name"),
    [
        (times_clock, "time.time"),
        (times_imported_clock, "time.perf_counter"),
        (through_a_helper, "time.monotonic"),
        (Clocked(), "time.perf_counter_ns"),
        (timed, "time.perf_counter"),
        (since, "time.process_time"),
        (asks_by_name, "time.thread_time"),
    ],
)
def test_a_program_that_asks_for_the_time_is_told_of(way, root, name):
    with pytest.warns(
        TraceWarning, match=rf"asked for the time \({name} at .*test_world.py:\d+ in "
    ) as heard:
        way(root)
    assert len({str(one.message) for one in heard}) == 1


@ways
@pytest.mark.parametrize(
    ("root", "name"),
    [
        (plus_noise, "os.urandom"),
        (plus_imported_noise, "os.urandom"),
        (plus_unique, "uuid.uuid4"),
        (plus_unique_of_module, "uuid.uuid1"),
    ],
)
def test_random_numbers_of_the_system_are_refused(way, root, name):
    with pytest.raises(TraceError, match=rf"the system \({name}\) at .*test_world.py:\d+ in ") as caught:
        way(root)
    assert caught.value.code == "FXP-T053"


def test_without_a_check_of_its_result_the_warning_is_all_that_tells():
    with pytest.warns(TraceWarning):
        captured = fxplug.symbolic_trace(times_clock)
    assert torch.equal(captured(torch.ones(2)), captured(torch.ones(2)))


def not_asked(x):
    if x is None:
        return time.time()
    return x + 1


def logs(x):
    logging.getLogger("fxplug.tests").warning("a record has a time")
    return x + 1


@ways
@pytest.mark.parametrize("root", [not_asked, logs])
def test_what_is_not_asked_and_what_libraries_ask_for_themselves_is_no_matter(way, root):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        way(root)


def test_a_function_that_stays_a_call_may_ask():
    def stamped(x):
        return x * time.time()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = Tracer(policy=TracePolicy(leaf_functions=lambda: [stamped])).trace(lambda x: stamped(x) + 1)
    assert graph.find_nodes(op="call_function")[0].target is stamped


def test_the_functions_are_as_they_were_and_other_threads_are_not_heard():
    originals = time.time, os.urandom, uuid.uuid4, noise
    found = []

    def with_a_thread(x):
        thread = Thread(target=lambda: found.append((time.time(), os.urandom(1), uuid.uuid4())))
        thread.start()
        thread.join()
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxplug.symbolic_trace(with_a_thread)
    assert len(found) == 1
    assert (time.time, os.urandom, uuid.uuid4, noise) == originals
    assert type(time.time) is type(os.urandom) is type(len)


def test_the_modules_of_others_are_left_alone_meanwhile():
    found = []

    def looks(x):
        of_all = sys.modules["time"]
        found.append((type(of_all.time), pickle.loads(pickle.dumps(of_all.time)) is of_all.time))
        return x * len(str(time.get_clock_info("time"))) if time.time is None else x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxplug.symbolic_trace(looks)
    assert found == [(type(len), True)]


def test_a_module_shows_what_it_has_now(monkeypatch):
    monkeypatch.setattr(os, "answer", 2, raising=False)

    def reads(x):
        return x * os.answer + (0 if os.environ is sys.modules["os"].environ else len(os.urandom(1)))

    assert torch.equal(fxplug.symbolic_trace(reads)(torch.ones(1)), torch.tensor([2.0]))
    monkeypatch.setattr(os, "answer", 3)
    assert torch.equal(fxplug.symbolic_trace(reads)(torch.ones(1)), torch.tensor([3.0]))


# -- modes of torch


def doubles_under_autocast(x):
    return x * 2 if torch.is_autocast_enabled("cpu") else x * 3


def doubles_if_deterministic(x):
    return x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3


def doubles_if_precise(x):
    return x * 2 if torch.get_float32_matmul_precision() == "highest" else x * 3


def doubles_for_bfloat16(x):
    return x * 2 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else x * 3


@contextlib.contextmanager
def setting(change, back):
    change()
    try:
        yield
    finally:
        back()


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize(
    ("root", "context"),
    [
        (doubles_under_autocast, lambda: torch.autocast("cpu")),
        (
            doubles_if_deterministic,
            lambda: setting(
                lambda: torch.use_deterministic_algorithms(True),
                lambda: torch.use_deterministic_algorithms(False),
            ),
        ),
        (
            doubles_if_precise,
            lambda: setting(
                lambda: torch.set_float32_matmul_precision("high"),
                lambda: torch.set_float32_matmul_precision("highest"),
            ),
        ),
        (doubles_for_bfloat16, lambda: torch.autocast("cpu", dtype=torch.float16)),
    ],
    ids=["autocast", "deterministic", "precision", "autocast dtype"],
)
def test_modes_that_a_program_asks_for_are_guarded(root, context, mode):
    x = torch.ones(2)
    captured = fxplug.trace(root, (x,), mode=mode)
    assert torch.equal(captured(x), root(x))
    with context(), pytest.raises(GuardError):
        captured(x)

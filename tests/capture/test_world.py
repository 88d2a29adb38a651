"""What a program asks of the world around it: the time is told of, random numbers of the system are refused."""

from __future__ import annotations

import logging
import os
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
from fxplug.errors import TraceError, TraceWarning

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

"""What a program asks of the world around it: the time is told of, random numbers of the system are refused."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import pickle
import random
import secrets
import sys
import threading
import time
import uuid
import warnings
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from os import urandom as noise
from threading import Thread
from time import perf_counter as now
from uuid import uuid4

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture import TracePolicy, Tracer
from fxplug.capture.world import world_kept_by
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


# -- what is kept elsewhere than under a name


class Holder:
    def __init__(self, clock):
        self.clock = clock
        self.functions = [lambda: time.time() + 0]

    def get(self):
        return self.clock()


class Slotted:
    __slots__ = ("clock",)

    def __init__(self):
        self.clock = time.time


class Keeps(nn.Module):
    """Keeps something, and calls what is found in it."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept


class KeepsClock(Keeps):
    def forward(self, x):
        return x * self.kept()


class KeepsText(Keeps):
    def forward(self, x):
        return x * len(str(self.kept()))


class KeepsMany(Keeps):
    def forward(self, x):
        return x * self.kept["a"]()


class KeepsObject(Keeps):
    def forward(self, x):
        return x * self.kept.clock()


class KeepsObjects(Keeps):
    def forward(self, x):
        return x * self.kept[0].get()


class KeepsFunctions(Keeps):
    def forward(self, x):
        return x * self.kept.functions[0]()


class OfClass(nn.Module):
    clock = staticmethod(time.time)

    def forward(self, x):
        return x * self.clock()


def in_default(x, *, clock=time.time):
    return x * clock()


def through_a_default(x):
    return in_default(x)


def in_positional_default(x, clock=time.time):
    return x * clock()


def through_a_positional_default(x):
    return in_positional_default(x)


def of_module(module, x):
    return x * module.kept()


class HandsItself(Keeps):
    def forward(self, x):
        return of_module(self, x)


def in_closure():
    clock = time.time
    return lambda x: x * clock()


def imports(x):
    import time as clocks

    return x * clocks.time()


def imports_by_name(x):
    return x * __import__("time").time()


def asks_date(x):
    return x * date.today().day


def asks_datetime(x):
    return x * datetime.datetime.now().microsecond


@dataclass
class Stamped:
    at: float = field(default_factory=time.time)


def stamps(x):
    return x * Stamped().at


def asks_local_time(x):
    return x * time.localtime().tm_sec


LISTED = [time.time]


def from_a_list(x):
    return x * LISTED[0]()


@ways
@pytest.mark.parametrize(
    ("root", "name"),
    [
        (KeepsClock(time.time), "time.time"),
        (KeepsClock(partial(time.time)), "time.time"),
        (KeepsClock(lambda: time.time() + 0), "time.time"),
        (KeepsMany({"a": time.perf_counter}), "time.perf_counter"),
        (KeepsObject(Holder(time.time)), "time.time"),
        (KeepsObject(Slotted()), "time.time"),
        (KeepsObjects([Holder(time.time)]), "time.time"),
        (KeepsFunctions(Holder(None)), "time.time"),
        (OfClass(), "time.time"),
        (through_a_default, "time.time"),
        (through_a_positional_default, "time.time"),
        (HandsItself(time.time), "time.time"),
        (in_closure(), "time.time"),
        (imports, "time.time"),
        (imports_by_name, "time.time"),
        (asks_date, "datetime.date.today"),
        (asks_datetime, "datetime.datetime.now"),
        (stamps, "time.time"),
        (asks_local_time, "time.localtime"),
        (from_a_list, "time.time"),
    ],
)
def test_clocks_that_are_kept_elsewhere_are_heard_too(way, root, name):
    with pytest.warns(TraceWarning, match=rf"asked for the time \({name} at "):
        way(root)
    assert sys.getprofile() is None


@ways
@pytest.mark.parametrize(
    "root",
    [
        KeepsClock(lambda: os.urandom(1)[0]),
        KeepsText(uuid.uuid4),
        KeepsClock(random.Random(0).random),
        KeepsClock(random.SystemRandom().random),
        KeepsText(partial(os.urandom, 1)),
        KeepsClock(partial(secrets.randbits, 3)),
    ],
)
def test_so_are_sources_of_random_numbers(way, root):
    kept = root.kept
    before = kept.func if isinstance(kept, partial) else None
    with pytest.raises(TraceError) as caught:
        way(root)
    assert caught.value.code == "FXP-T053"
    assert sys.getprofile() is None
    assert not isinstance(kept, partial) or kept.func is before


def test_a_time_that_is_given_is_not_asked_for():
    def formats(x):
        return x * int(time.strftime("%S", time.gmtime(7))) + len(time.asctime(time.localtime(0)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxplug.symbolic_trace(formats)


def test_calls_are_listened_to_only_where_a_clock_is_kept():
    found = []

    class Looks(Keeps):
        def forward(self, x):
            found.append(sys.getprofile())
            return x + 1 if self.kept else x

    for kept in (None, [len, print], Holder(len), nn.functional, {"a": partial(len)}, logging):
        fxplug.symbolic_trace(Looks(kept))
    assert found == [None] * 6
    fxplug.symbolic_trace(Looks([time.time]))
    assert found[-1] is not None

    def under_a_name(x):
        found.append(sys.getprofile())
        return x + 1 if x is not None else seconds()

    fxplug.trace(under_a_name, (torch.ones(2),), check=False)
    assert found[-1] is None


def test_who_listens_to_calls_already_hears_all_of_them():
    heard = []

    def listen(frame, event, arg):
        if event == "c_call" and arg is time.time:
            heard.append(arg)

    sys.setprofile(listen)
    try:
        with pytest.warns(TraceWarning, match="asked for the time"):
            fxplug.symbolic_trace(KeepsClock(time.time))
        assert sys.getprofile() is listen
    finally:
        sys.setprofile(None)
    assert heard == [time.time]


def test_a_listener_that_the_program_sets_stays():
    def listen(frame, event, arg):
        return None

    class Sets(Keeps):
        def forward(self, x):
            sys.setprofile(listen)
            return x + 1 if self.kept[0] else x

    try:
        fxplug.symbolic_trace(Sets([time.time]))
        assert sys.getprofile() is listen
    finally:
        sys.setprofile(None)


def test_calls_of_others_through_a_partial_are_not_heard():
    shared = partial(time.time)
    found = []

    class Threads(Keeps):
        def forward(self, x):
            thread = Thread(target=lambda: found.append(shared()))
            thread.start()
            thread.join()
            return x + 1 if self.kept.func else x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fxplug.symbolic_trace(Threads(shared))
    assert len(found) == 1
    assert shared.func is time.time


def test_large_containers_and_libraries_are_not_looked_into():
    names = frozenset({"kept", "clock", "time"})
    assert not list(world_kept_by(KeepsObject.forward, KeepsObject([time.time] * 101), names))
    assert list(world_kept_by(KeepsObject.forward, KeepsObject([time.time] * 100), names))
    assert not list(world_kept_by(KeepsObject.forward, KeepsObject(threading.Timer), names | {"__init__"}))
    nested = [[[[time.time]]]]
    assert not list(world_kept_by(KeepsObject.forward, KeepsObject([nested]), names))


@dataclass(frozen=True)
class Settings:
    scale: float = 2.0


SETTINGS = Settings()


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_classes_that_ask_for_types_when_they_are_written_to_need_no_one_who_listens_to_calls(mode):
    listening = []

    def program(x: torch.Tensor):
        listening.append(sys.getprofile())
        scale = SETTINGS.scale if type(x) is torch.Tensor else replace(SETTINGS).scale
        return x * scale

    captured = fxplug.trace(program, None if mode == "symbolic" else (torch.ones(2),), mode=mode)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    assert set(listening) == {None}

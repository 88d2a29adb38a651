# ruff: noqa: PLW0108, S307 - the programs look their functions up when they run
"""Functions that no name in the program leads to are looked at when they are called."""

from __future__ import annotations

import cProfile
import functools
import itertools
import operator
import random
import sys
import weakref
from collections import ChainMap, UserDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError

ONE, TWO = torch.ones(2, 3), torch.full((4, 3), 2.0)
MODES = ["symbolic", "shape", "value"]
THIS = sys.modules[__name__]
COUNTS = {"calls": 0}


def helper_counts(x):
    COUNTS["calls"] += 1
    return x * COUNTS["calls"]


def helper_draws(x):
    return x * random.random()


def helper_asks(x: torch.Tensor):
    return x + 1 if type(x) is torch.Tensor else x * 3


def helper_compares(x):
    return x + 1 if x is x.contiguous() else x * 3


HELPERS = {
    "counts": helper_counts,
    "draws": helper_draws,
    "asks": helper_asks,
    "compares": helper_compares,
}


class Holder:
    def __init__(self, function):
        self.function = function

    def __call__(self, x):
        return self.function(x)


class Named:
    """Has a method for each of them, which its name leads to when the program runs."""


for _name, _function in HELPERS.items():
    setattr(Named, f"run_{_name}", staticmethod(_function))

HOLDERS = {name: Holder(function) for name, function in HELPERS.items()}
BY_REFERENCE = {name: weakref.ref(holder) for name, holder in HOLDERS.items()}
BY_WEAK_VALUE = weakref.WeakValueDictionary(HELPERS)
REGISTRY, CHAIN = UserDict(HELPERS), ChainMap({}, HELPERS)
LARGE = {f"none_{number}": Holder(None) for number in range(150)} | HELPERS
DEEP = {name: [[[[[[[function]]]]]]] for name, function in HELPERS.items()}
OBJECT = Named()


class Registered(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.registry = UserDict(HELPERS)

    def forward(self, x):
        return self.registry[self.name](x)


WAYS = {
    "getattr": lambda name: lambda x: getattr(THIS, f"helper_{name}")(x),
    "globals": lambda name: lambda x: globals()["helper_" + name](x),
    "vars": lambda name: lambda x: vars(THIS)["helper_" + name](x),
    "modules": lambda name: lambda x: getattr(sys.modules[__name__], "helper_" + name)(x),
    "eval": lambda name: lambda x: eval("helper_" + name)(x),
    "methodcaller": lambda name: lambda x: operator.methodcaller("helper_" + name, x)(THIS),
    "object": lambda name: lambda x: getattr(OBJECT, "run_" + name)(x),
    "reference": lambda name: lambda x: BY_REFERENCE[name]()(x),
    "weak values": lambda name: lambda x: BY_WEAK_VALUE[name](x),
    "registry": lambda name: lambda x: REGISTRY[name](x),
    "chain": lambda name: lambda x: CHAIN[name](x),
    "large": lambda name: lambda x: LARGE[name](x),
    "deep": lambda name: lambda x: DEEP[name][0][0][0][0][0][0][0](x),
    "attribute": Registered,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_such_a_function_changes_is_state(way, mode):
    examples = None if mode == "symbolic" else (ONE,)
    COUNTS["calls"] = 0
    with pytest.raises(TraceError, match=r"\[FXP-T055\]$"):
        fxplug.trace(way("counts"), examples, mode=mode)
    assert COUNTS == {"calls": 0}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_such_a_function_draws_is_refused(way, mode):
    examples = None if mode == "symbolic" else (ONE,)
    with pytest.raises(TraceError, match="random"):
        fxplug.trace(way("draws"), examples, mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_such_a_function_asks_is_answered(way, mode):
    def program(x: torch.Tensor):
        return run(x)

    run = way("asks")
    examples = None if mode == "symbolic" else (ONE,)
    captured = fxplug.trace(program, examples, mode=mode, check=False)

    assert torch.equal(captured(TWO), program(TWO))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_such_a_function_compares_is_refused_without_examples(way):
    with pytest.raises(TraceError, match=r"the same object.*\[FXP-T041\]$"):
        fxplug.symbolic_trace(way("compares"))


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_such_a_function_compares_is_guarded_on_examples(way, mode):
    program = way("compares")
    captured = fxplug.trace(program, (ONE,), mode=mode, check=False)

    assert torch.equal(captured(TWO), program(TWO))
    with pytest.raises(fxplug.GuardError):
        captured(torch.ones(3, 2).t())


def test_a_function_that_is_met_where_it_records_something_is_looked_at_from_then_on():
    ready = itertools.repeat(functools.partial(helper_asks))

    def program(x: torch.Tensor):
        return next(ready)(x)

    captured = fxplug.symbolic_trace(program)
    assert torch.equal(captured(TWO), program(TWO))


def test_methods_of_a_tracer_are_no_functions_of_the_program():
    class Counting(fxplug.Tracer):
        made = 0

        def create_proxy(self, *args, **kwargs):
            self.made += 1
            return super().create_proxy(*args, **kwargs)

    tracer = Counting()
    tracer.trace(lambda x: getattr(x, "re" + "lu")() + 1)
    assert tracer.made == len(tracer.graph.nodes) - 1


def test_who_listens_to_calls_still_hears_of_them():
    heard = []

    def listen(frame, event, _):
        heard.append((frame.f_code.co_name, event))

    sys.setprofile(listen)
    try:
        fxplug.symbolic_trace(WAYS["globals"]("asks"))
    except TraceError:
        pass
    finally:
        found = sys.getprofile()
        sys.setprofile(None)
    assert found is listen
    assert ("helper_asks", "call") in heard


class Listener:
    """A profiler that is an object."""

    def __call__(self, frame, event, argument):
        pass


def helper_adds(x, grad):
    return x if grad is None else x + grad


def compares(x):
    return helper_by_name("adds")(x, x.grad)


def helper_by_name(kind):
    return getattr(THIS, f"helper_{kind}")


@pytest.mark.parametrize("mode", MODES)
def test_beside_profilers_functions_are_looked_at_too(mode):
    counts = WAYS["globals"]("counts")
    examples = None if mode == "symbolic" else (ONE,)
    listener = Listener()
    sys.setprofile(listener)
    try:
        with pytest.raises(TraceError, match=r"COUNTS") as caught:
            fxplug.trace(counts, examples, mode=mode)
    finally:
        found = sys.getprofile()
        sys.setprofile(None)
    assert caught.value.code == "FXP-T055"
    assert found is listener
    with cProfile.Profile(), pytest.raises(TraceError, match=r"COUNTS"):
        fxplug.trace(counts, examples, mode=mode)
    assert COUNTS["calls"] == 0


def test_who_listens_still_does_after_a_refusal_of_a_call():
    listener = Listener()
    sys.setprofile(listener)
    try:
        with pytest.raises(TraceError) as caught:
            fxplug.symbolic_trace(compares)
    finally:
        found = sys.getprofile()
        sys.setprofile(None)
    assert caught.value.code == "FXP-T041"
    assert found is listener


def profiles_itself(x):
    former = sys.getprofile()
    sys.setprofile(None)
    try:
        return helper_by_name("counts")(x)
    finally:
        sys.setprofile(former)


def runs_in_a_thread(x):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: helper_by_name("counts")(x)).result()


@pytest.mark.parametrize("program", [profiles_itself, runs_in_a_thread])
def test_functions_of_whose_calls_nobody_is_told_are_refused(program):
    with pytest.raises(TraceError) as caught:
        fxplug.symbolic_trace(program)
    COUNTS["calls"] = 0
    assert caught.value.code == "FXP-T063"

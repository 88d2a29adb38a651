"""Generators of random numbers of a program's own: no number of theirs becomes a constant."""

from __future__ import annotations

import gc
import random
import secrets
import tempfile
import types
import weakref
from collections import deque

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError

X = torch.ones(2, 3)
HELD = random.Random(3)


def made(x):
    return x * random.Random().random()


def seeded_by_the_system(x):
    generator = random.Random(3)
    generator.seed()
    return x * generator.random()


def held(x):
    return x * HELD.choice([1.0, 2.0, 3.0])


def pair(x):
    return x * HELD.gauss(0, 1)


def of_the_system(x):
    return x * random.SystemRandom().random()


def secret(x):
    return x * secrets.randbelow(1000)


def seeded_again(x):
    HELD.seed(5)
    return x


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = random.Random(1)

    def forward(self, x):
        return x * self.generator.uniform(1, 2)


@pytest.mark.parametrize("mode", ["symbolic", "value"])
@pytest.mark.parametrize(
    "program", [made, seeded_by_the_system, held, pair, of_the_system, secret, seeded_again, Module()]
)
def test_draws_are_refused_with_their_line(program, mode):
    state = HELD.getstate()
    with pytest.raises(TraceError, match="test_generators") as refused:
        fxplug.trace(program, (X,), mode=mode)

    assert refused.value.code == "FXP-T053"
    assert HELD.getstate() == state


@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_a_generator_with_a_seed_of_its_own_gives_constants(mode):
    def program(x):
        return x * random.Random(4).random()

    assert torch.equal(fxplug.trace(program, (X,), mode=mode)(X), program(X))


@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_draws_of_pythons_own_libraries_do_not_count(mode):
    def program(x):
        with tempfile.NamedTemporaryFile():
            return x * 2

    assert torch.equal(fxplug.trace(program, (X,), mode=mode)(X), X * 2)


@pytest.mark.parametrize("name", ["random", "getrandbits", "gauss"])
def test_methods_that_others_have_put_there_between_traces_are_heard_and_stay(monkeypatch, name):
    def drawing(x):
        return x * getattr(HELD, name)(*([8] if name == "getrandbits" else []))

    def refused():
        with pytest.raises(TraceError, match="a generator of its own"):
            fxplug.symbolic_trace(drawing)

    theirs = getattr(random.Random, name)

    def ours(self, *args, **kwargs):
        return theirs(self, *args, **kwargs)

    refused()
    with monkeypatch.context() as patched:
        patched.setattr(random.Random, name, ours)
        refused()
        assert vars(random.Random)[name] is ours
    refused()
    assert getattr(random.Random, name) is theirs


@pytest.mark.parametrize("name", ["gauss", "random"])
def test_methods_that_are_replaced_by_what_closes_over_nothing_are_heard_and_not_kept(name):
    def drawing(x):
        return x * getattr(random.Random(), name)()

    def refused():
        with pytest.raises(TraceError, match="a generator of its own"):
            fxplug.symbolic_trace(drawing)

    def replaced(self, *_):
        return 0.25

    former = vars(random.Random).get(name)
    refused()
    setattr(random.Random, name, replaced)
    try:
        refused()
    finally:
        if former is None:
            delattr(random.Random, name)
        else:
            setattr(random.Random, name, former)
    reference = weakref.ref(replaced)
    del replaced
    gc.collect()
    assert reference() is None
    refused()


def test_methods_of_generators_are_as_before():
    before = dict(vars(random.Random))
    fxplug.symbolic_trace(lambda x: x * 2)

    assert dict(vars(random.Random)) == before


def in_a_class(generator):
    kind = type("Generators", (), {"__module__": __name__, "generator": generator})
    return lambda x: x * kind.generator.random()


def in_the_class_of_an_object(generator):
    held = type("Generators", (), {"__module__": __name__, "generator": generator})()
    return lambda x: x * held.generator.random()


class Slots:
    __slots__ = ("generator",)


def in_slots(generator):
    held = Slots()
    held.generator = generator
    return lambda x: x * held.generator.random()


def in_a_method(generator):
    draw = generator.random
    return lambda x: x * draw()


def in_a_deque(generator):
    generators = deque([generator])
    return lambda x: x * generators[0].random()


def in_a_default_that_is_named(generator):
    def draw(*, generator=generator):
        return generator.random()

    return lambda x: x * draw()


def in_a_module(generator):
    settings = types.ModuleType("settings")
    settings.inner = types.ModuleType("settings.inner")
    settings.inner.generator = generator
    body = "lambda x: x * settings.inner.generator.random()"
    return eval(body, {"settings": settings})  # noqa: S307 - a function with globals of its own


class HoldsInItsClass(nn.Module):
    """Not read past the class: a subclass is made for each."""

    def __new__(cls, generator):
        return super().__new__(type("Subclass", (cls,), {"__module__": __name__, "generator": generator}))

    def __init__(self, generator):
        super().__init__()

    def forward(self, x):
        return x * self.generator.random()


@pytest.mark.parametrize(
    "make",
    [
        in_a_class,
        in_the_class_of_an_object,
        in_slots,
        in_a_method,
        in_a_deque,
        in_a_default_that_is_named,
        in_a_module,
        HoldsInItsClass,
    ],
)
def test_generators_of_numpy_are_found_where_programs_keep_them(make):
    numpy = pytest.importorskip("numpy")
    generator = numpy.random.default_rng(3)
    before = generator.bit_generator.state

    with pytest.raises(
        TraceError, match="', which is or holds a generator of NumPy, or seeded it"
    ) as refused:
        fxplug.symbolic_trace(make(generator))

    assert refused.value.code == "FXP-T053"
    assert generator.bit_generator.state == before


def test_a_generator_with_the_state_of_another_one_gives_no_constants():
    def program(x):
        generator = random.Random(1)
        generator.setstate(HELD.getstate())
        return x * generator.random()

    with pytest.raises(TraceError) as refused:
        fxplug.symbolic_trace(program)

    assert refused.value.code == "FXP-T053"


@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_generators_of_numpy(mode):
    numpy = pytest.importorskip("numpy")
    held_here = numpy.random.default_rng(3)
    old = numpy.random.RandomState(3)
    before = held_here.bit_generator.state
    inside = {"generators": [numpy.random.default_rng(1)]}

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = numpy.random.default_rng(2)

        def forward(self, x):
            return x * self.generator.random()

    programs = [
        lambda x: x * numpy.random.default_rng().random(),
        lambda x: x * numpy.random.RandomState().rand(),
        lambda x: x * held_here.random(),
        lambda x: x * old.rand(),
        lambda x: x * inside["generators"][0].random(),
        Holder(),
        lambda x: x * held_here.spawn(1)[0].random(),
    ]
    for program in programs:
        with pytest.raises(TraceError) as refused:
            fxplug.trace(program, (X,), mode=mode)
        assert refused.value.code == "FXP-T053"
    assert held_here.bit_generator.state == before
    for program in (
        lambda x: x * numpy.random.default_rng(3).random(),
        lambda x: x * numpy.random.RandomState(3).rand(),
    ):
        assert torch.equal(fxplug.trace(program, (X,), mode=mode)(X), program(X))


@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_states_of_the_generators_behind_modules_are_put_back(mode):
    numpy = pytest.importorskip("numpy")
    for program, state in (
        (lambda x: x * random.random(), random.getstate),
        (lambda x: x * numpy.random.rand(), lambda: str(numpy.random.get_state())),
    ):
        before = state()
        with pytest.raises(TraceError):
            fxplug.trace(program, (X,), mode=mode)
        assert state() == before

"""Generators of random numbers of a program's own: no number of theirs becomes a constant."""

from __future__ import annotations

import random
import secrets
import tempfile

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError

X = torch.ones(2, 3)
HELD = random.Random(3)


def made(x):
    return x * random.Random().random()


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
@pytest.mark.parametrize("program", [made, held, pair, of_the_system, secret, seeded_again, Module()])
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


def test_methods_of_generators_are_as_before():
    before = dict(vars(random.Random))
    fxplug.symbolic_trace(lambda x: x * 2)

    assert dict(vars(random.Random)) == before


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

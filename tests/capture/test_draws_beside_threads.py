"""Random numbers of Python and NumPy in a process in which other threads run, which may be those that have drawn."""

from __future__ import annotations

import random
import sys
import threading
from random import uniform

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError, TraceWarning

MODES = ("symbolic", "shape", "value")
X = torch.ones(2)

pytestmark = pytest.mark.usefixtures("another_thread")


@pytest.fixture
def another_thread():
    """Runs beside the test, and does nothing."""
    stop = threading.Event()
    other = threading.Thread(target=stop.wait, args=(60,))
    other.start()
    yield
    stop.set()
    other.join()


@pytest.fixture
def with_numpy(monkeypatch):
    """Give the programs below the names of NumPy, which not every environment has."""
    numpy = pytest.importorskip("numpy")
    monkeypatch.setitem(globals(), "np", numpy)
    monkeypatch.setitem(globals(), "numpy_random", numpy.random)
    monkeypatch.setitem(globals(), "standard_normal", numpy.random.standard_normal)
    return numpy


def by_name_of_module(x):
    return x * random.random()


def by_name(x):
    return x * uniform(1, 2)


def in_pairs(x):
    random.gauss(0, 1)  # The second number of a pair is at hand, and draws nothing.
    return x * random.gauss(0, 1)


def chosen(x):
    return x * random.choice([2.0, 3.0])


def seeded(x):
    random.seed(0)
    return x


def imported_inside(x):
    from random import betavariate

    return x * betavariate(1, 2)


class InAnAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.draw = random.uniform

    def forward(self, x):
        return x * self.draw(1, 2)


PROGRAMS = [
    by_name_of_module,
    by_name,
    in_pairs,
    chosen,
    seeded,
    imported_inside,
    InAnAttribute(),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_draws_of_python_is_refused(program, mode):
    before = random.getstate()
    with pytest.raises(TraceError, match=r"random numbers from Python's random module.*\[FXP-T053\]$"):
        fxplug.trace(program, (X,), mode=mode)
    assert random.getstate() == before


def numpy_by_module(x):
    return x * np.random.rand()  # noqa: F821 - lent by a fixture


def numpy_by_inner_module(x):
    return x * numpy_random.normal()  # noqa: F821


def numpy_by_name(x):
    return x * standard_normal()  # noqa: F821


def numpy_seeded(x):
    np.random.seed(3)  # noqa: F821
    return x * 2


def numpy_imported_inside(x):
    from numpy import random as numbers

    return x * numbers.rand()


def numpy_imported_inside_whole(x):
    import numpy as numbers

    return x * numbers.random.rand()


def numpy_function_imported_inside(x):
    from numpy.random import rand

    return x * rand()


def numpy_generator(x):
    return x * np.random.mtrand._rand.rand()  # noqa: F821


class NumpyModuleInAnObject:
    def __init__(self):
        self.source = np.random  # noqa: F821

    def __call__(self, x):
        return x * self.source.rand()


class NumpyInAnAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.draw = np.random.rand  # noqa: F821

    def forward(self, x):
        return x * self.draw()


class NumpyHeld(nn.Module):
    def __init__(self, numpy):
        super().__init__()
        self.generator = numpy.random.default_rng(0)

    def forward(self, x):
        return x * self.generator.normal()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "program",
    [
        numpy_by_module,
        numpy_by_inner_module,
        numpy_by_name,
        numpy_seeded,
        numpy_imported_inside,
        numpy_imported_inside_whole,
        numpy_function_imported_inside,
        numpy_generator,
        NumpyModuleInAnObject,
        NumpyInAnAttribute,
    ],
)
def test_so_is_one_that_draws_of_numpy(with_numpy, program, mode):
    program = program() if isinstance(program, type) else program
    before = with_numpy.random.get_state()
    with pytest.raises(TraceError, match=r"random numbers from numpy\.random.*\[FXP-T053\]$"):
        fxplug.trace(program, (X,), mode=mode)
    assert all(map(with_numpy.array_equal, with_numpy.random.get_state(), before))


@pytest.mark.parametrize("mode", MODES)
def test_so_is_one_that_draws_of_a_generator_of_numpy_that_it_holds(with_numpy, mode):
    with pytest.raises(TraceError, match=r"random numbers from 'generator'.*\[FXP-T053\]$"):
        fxplug.trace(NumpyHeld(with_numpy), (X,), mode=mode)


def asks_for_states(x):
    return x * len(random.getstate()) * len(np.random.get_state())  # noqa: F821


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("with_numpy")
def test_who_asks_only_where_the_numbers_are_draws_none(mode):
    module = fxplug.trace(asks_for_states, (X,), mode=mode)
    assert torch.equal(module(X), asks_for_states(X))


def by_the_table_of_modules(x):
    return x * sys.modules["numpy.random"].rand()


@pytest.mark.usefixtures("with_numpy")
def test_numbers_that_another_thread_may_have_drawn_are_reported():
    with pytest.warns(TraceWarning, match=r"from numpy\.random, by the program or by another thread"):
        fxplug.trace(by_the_table_of_modules, (X,), mode="value", check=False)


class ComparesModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.source = np.random  # noqa: F821

    def forward(self, x):
        if self.source is None or self.source is np.random:  # noqa: F821
            return x + (np is sys.modules["numpy"])  # noqa: F821
        raise ValueError("a bad source")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("with_numpy")
def test_modules_are_what_they_are_to_the_program(mode):
    module = fxplug.trace(ComparesModules(), (X,), mode=mode)
    assert torch.equal(module(X), X + 1)

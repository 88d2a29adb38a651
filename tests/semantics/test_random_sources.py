"""The random states of Python and NumPy: what counts as a change, and that all of it is put back."""

from __future__ import annotations

import random

import pytest

from fxplug.analyze.isolation import forked_random_state
from fxplug.semantics import random_sources
from fxplug.semantics.random_sources import RandomSources


@pytest.fixture(autouse=True)
def _states():
    numpy = pytest.importorskip("numpy")
    python_state, numpy_state, bits = (
        random.getstate(),
        numpy.random.get_state(),
        numpy.random.get_bit_generator(),
    )
    yield
    numpy.random.set_bit_generator(bits)
    numpy.random.set_state(numpy_state)
    random.setstate(python_state)


def draw_pair(name):
    """Draw the first number of a pair, so that the second one is kept beside the generator."""
    numpy = pytest.importorskip("numpy")
    return (lambda: random.gauss(0, 1)) if name == "random" else numpy.random.standard_normal


@pytest.mark.parametrize("name", ["random", "numpy"])
@pytest.mark.parametrize("is_second", [False, True])
def test_a_draw_is_a_change_and_is_undone(name, is_second):
    draw = draw_pair(name)
    random.seed(3)
    pytest.importorskip("numpy").random.seed(3)
    if is_second:
        draw()  # The next draw leaves the twister as it is.
    sources = RandomSources()
    assert sources.changed() == []
    drawn = [draw() for _ in range(1 if is_second else 3)]

    assert sources.changed() == [name]
    sources.restore(sources.changed())
    assert sources.changed() == []
    assert [draw() for _ in drawn] == drawn


@pytest.mark.parametrize("draws_before", [0, 1])
def test_what_numpy_says_of_its_state_is_the_same_after_it_was_put_back(draws_before):
    numpy = pytest.importorskip("numpy")
    numpy.random.seed(1)
    for _ in range(draws_before):
        numpy.random.standard_normal()
    before = numpy.random.get_state()
    sources = RandomSources()
    numpy.random.seed(2)
    sources.restore(sources.changed())
    after = numpy.random.get_state()

    assert before[0] == after[0]
    assert (before[1] == after[1]).all()
    assert before[2:] == after[2:]


def test_another_generator_of_numpy_is_put_back_too():
    numpy = pytest.importorskip("numpy")
    numpy.random.set_bit_generator(numpy.random.PCG64(5))
    sources = RandomSources()
    assert sources.changed() == []
    drawn = numpy.random.rand(3).tolist()

    assert sources.changed() == ["numpy"]
    sources.restore(["numpy"])
    assert numpy.random.rand(3).tolist() == drawn


def test_a_generator_that_takes_the_place_of_the_global_one_is_a_change_and_is_undone():
    numpy = pytest.importorskip("numpy")
    former = numpy.random.get_bit_generator()
    sources = RandomSources()
    drawn = numpy.random.rand(3).tolist()
    sources.restore(sources.changed())
    numpy.random.set_bit_generator(numpy.random.PCG64(5))
    numpy.random.rand()

    assert sources.changed() == ["numpy"]
    sources.restore(["numpy"])
    assert numpy.random.get_bit_generator() is former
    assert sources.changed() == []
    assert numpy.random.rand(3).tolist() == drawn


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda _: None, []),
        (lambda generator: generator.rand(), ["numpy"]),
        (lambda generator: generator.rand(312), ["numpy"]),  # The place in the twister is what it was.
        (lambda generator: generator.seed(1), ["numpy"]),
    ],
)
@pytest.mark.parametrize("is_asked", [False, True])
def test_draws_from_what_the_first_draw_has_loaded_are_seen(use, expected, is_asked, monkeypatch):
    numpy = pytest.importorskip("numpy", minversion="1.25")
    if is_asked:
        monkeypatch.setattr(random_sources, "_offset_of_second", lambda *_: None)
    loaded = [None]
    monkeypatch.setattr(random_sources, "_global_generator", lambda: loaded[0])
    sources = RandomSources()
    assert sources.changed() == []
    loaded[0] = numpy.random.RandomState()
    use(loaded[0])

    assert sources.changed() == expected
    sources.restore(expected)
    is_seeded = loaded[0]._bit_generator.seed_seq is None
    assert sources.changed() == (expected if is_seeded else [])


def test_states_that_lie_elsewhere_in_memory_are_asked_for(monkeypatch):
    numpy = pytest.importorskip("numpy")
    monkeypatch.setattr(random_sources, "_ADDRESS", None)
    monkeypatch.setattr(random_sources, "_offset_of_second", lambda *_: None)
    sources = RandomSources()
    assert sources.changed() == []
    drawn = random.random(), numpy.random.standard_normal(), random.gauss(0, 1)

    assert sources.changed() == ["random", "numpy"]
    sources.restore(sources.changed())
    assert (random.random(), numpy.random.standard_normal(), random.gauss(0, 1)) == drawn


def test_a_state_that_did_not_change_is_not_set(monkeypatch):
    set_again = []
    monkeypatch.setattr(random_sources, "_restore_python", set_again.append)
    monkeypatch.setattr(random_sources, "_restore_numpy", lambda *given: set_again.append(given))
    with forked_random_state():
        pass

    assert set_again == []

"""Plain values that a partition was compiled for: others are refused, however they compare."""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest
import torch

from fxplug.lower import InputProfile, Profile

np = pytest.importorskip("numpy")  # It is in the environment named capture.

NAN = float("nan")
Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - as people write it


class Mode(enum.IntEnum):
    FAST = 1


@dataclasses.dataclass
class Options:
    scale: object


@dataclasses.dataclass(eq=False)
class Named:
    """Is equal to itself alone."""

    name: str


class Loud:
    """Cannot be compared."""

    def __eq__(self, other):
        raise RuntimeError("compare me not")

    __hash__ = None

    def __repr__(self):
        return "Loud()"


class Silent(Loud):
    """Cannot be shown either."""

    def __repr__(self):
        raise RuntimeError("show me not")


class Sized:
    """Says what it is equal to by more than a truth value."""

    def __eq__(self, other):
        return "yes"

    __hash__ = None


def problem(expected, value):
    return InputProfile.of(expected).problem_with(value)


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (NAN, float("nan")),
        (complex(1, NAN), complex(1, float("nan"))),
        (-0.0, -0.0),
        ([1, (2.0, "a"), None], [1, (2.0, "a"), None]),
        ({"a": [NAN]}, {"a": [float("nan")]}),
        ({1, 2.5, NAN}, {float("nan"), 2.5, 1}),
        (slice(0, None, 2), slice(0, None, 2)),
        (torch.float32, torch.float32),
        (torch.Size([2, 3]), torch.Size([2, 3])),
        (Pair(1, 2), Pair(1, 2)),
        (Mode.FAST, Mode.FAST),
        (Options([1.0]), Options([1.0])),
        (np.float32(2), np.float32(2)),
        (np.float64("nan"), np.float64("nan")),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan])),
        (np.array([None, "a"], dtype=object), np.array([None, "a"], dtype=object)),
        (np.array([[1], None], dtype=object), np.array([[1], None], dtype=object)),
        (Options(torch.tensor([1.0, NAN])), Options(torch.tensor([1.0, NAN]))),
        (Options(torch.tensor(2j).conj()), Options(torch.tensor(complex(0.0, -2.0)))),
        ([np.int64(3)], [np.int64(3)]),
    ],
    ids=repr,
)
def test_the_same_value_is_accepted(expected, value):
    assert problem(expected, value) == ""


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (1, True),
        (True, 1),
        (1, 1.0),
        (1, Mode.FAST),
        (0.0, -0.0),
        (0.0, NAN),
        (complex(0, 0.0), complex(0, -0.0)),
        ([1, 2], [True, 2]),
        ([1, 2], (1, 2)),
        ([1, 2], [1, 2, 3]),
        ((1, 2), Pair(1, 2)),
        ({"a": 1}, {"a": 1.0}),
        ({1: "a"}, {True: "a"}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        ({1, 2}, {True, 2}),
        ({1, 2}, {1, 2, 3}),
        (frozenset({1}), frozenset({1.0})),
        (slice(0, 1), slice(False, 1)),
        (Options(1), Options(True)),
        (Named("a"), Named("a")),
        (np.float32(2), np.float64(2)),
        (np.int64(2), 2),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([0.0]), np.array([-0.0])),
        (np.array([1, 2]), np.array([[1, 2]])),
        (np.array([1], dtype=object), np.array([True], dtype=object)),
        (Options(torch.ones(2)), Options(torch.zeros(2))),
        (Options(torch.ones(2)), Options(torch.ones(2, 1))),
        (Options(torch.ones(2)), Options(torch.ones(2, dtype=torch.int32))),
        (Options(torch.tensor(0.0)), Options(torch.tensor(-0.0))),
        (None, torch.ones(2)),
        (Sized(), Sized()),
        (Loud(), Loud()),
        ([Loud()], [Loud()]),
    ],
    ids=repr,
)
def test_another_value_is_refused_and_nothing_raises(expected, value):
    assert "when it was compiled" in problem(expected, value)


def test_one_object_is_itself_though_it_cannot_be_compared():
    thing = Loud()

    assert problem([thing], [thing]) == ""


def test_what_holds_itself_is_no_endless_comparison():
    one, other = [1], [1]
    one.append(one)
    other.append(other)
    entry = InputProfile(value=one)

    assert "when it was compiled" in entry.problem_with(other)
    assert entry.problem_with(one) == ""


def test_a_value_that_its_owner_changes_is_another_one():
    numbers, words, rows = [1, [2]], {"a": [1]}, np.array([1.0, 2.0])
    profile = Profile.of((numbers, words, rows))
    assert profile.problem_with((numbers, words, rows)) == ""

    numbers[1].append(3)
    assert profile.problem_with((numbers, words, rows)).startswith(
        "input 0 is [1, [2, 3]], and was [1, [2]] when"
    )
    numbers[1].pop()
    words["a"][0] = 2
    assert profile.problem_with((numbers, words, rows)).startswith(
        "input 1 is {'a': [2]}, and was {'a': [1]} when"
    )
    words["a"][0] = 1
    rows[0] = 7
    assert profile.problem_with((numbers, words, rows)).startswith("input 2 is ")


class Numbers(list):
    """A list of a class of its own."""


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (Options(1), lambda value: setattr(value, "scale", 2)),
        ([Options([1])], lambda value: value[0].scale.append(2)),
        (Pair([1], 2), lambda value: value.left.append(2)),
        (Numbers([1]), lambda value: value.append(2)),
        (defaultdict(int, {1: 1}), lambda value: value[2]),
        (deque([1]), lambda value: value.append(2)),
        (bytearray(b"a"), lambda value: value.append(2)),
        (np.array([[1], None], dtype=object), lambda value: value[0].append(2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_that_are_compared_by_what_they_hold_are_kept_as_they_were(value, change):
    profile = InputProfile.of(value)
    assert profile.problem_with(value) == ""

    change(value)

    assert "was" in profile.problem_with(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (deque([1]), deque([1.0])),
        (deque([1], 2), deque([1], 3)),
        (defaultdict(int, {1: 1}), defaultdict(list, {1: 1})),
    ],
    ids=str,
)
def test_what_pythons_containers_call_equal_is_looked_into(one, other):
    assert InputProfile.of(one).problem_with(other)
    assert not InputProfile.of(one).problem_with(copy.deepcopy(one))


def test_what_has_no_copy_that_counts_as_the_same_is_itself():
    value = Options(object())

    assert InputProfile.of(value).problem_with(value) == ""


def test_keys_of_tensors_are_told_apart_by_their_kind():
    entry = InputProfile.of({1: torch.ones(2)})

    assert entry.problem_with({1: torch.zeros(2)}) == ""
    assert "has no part 1" in entry.problem_with({True: torch.zeros(2)})
    assert "has no part 1" in entry.problem_with({1.0: torch.zeros(2)})


def test_messages_name_what_is_given_and_what_was():
    assert problem(3, 4) == "is 4, and was 3 when it was compiled"
    text = problem(Options(1), type("Options", (), {"__repr__": lambda self: repr(Options(1))})())
    assert text == (
        f"is Options(scale=1) ({__name__}.Options), and was Options(scale=1) ({__name__}.Options) when it was compiled"
    )
    assert problem(1, Silent()).startswith(f"is a {__name__}.Silent that cannot be shown, and was 1")
    assert len(problem("a" * 5000, "b" * 5000)) < 500

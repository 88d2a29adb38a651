"""What a program asks of the class of an input that is no tensor: a captured one never answers for another class."""

from __future__ import annotations

import collections
import copy
import enum
from typing import NamedTuple

import pytest
import torch

import fxplug

np = pytest.importorskip("numpy")
X = torch.ones(3)


class OwnInt(int):
    pass


class OwnTuple(tuple):
    __slots__ = ()


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    only: int


VALUES = {
    "int": 1,
    "bool": True,
    "float": 1.0,
    "float of NumPy": np.float64(1),
    "own int": OwnInt(1),
    "member": Level.LOW,
    "text": "a",
    "tuple": (1,),
    "list": [1],
    "own tuple": OwnTuple((1,)),
    "named tuple": Pair(1),
    "size": torch.Size([1]),
    "range": range(1, 2),
    "dict": {"a": 1},
    "ordered dict": collections.OrderedDict(a=1),
    "tuple of a tuple": ((1,),),
    "tuple of a size": (torch.Size([1]),),
    "tensor": torch.ones(1),
}
KINDS = (int, bool, float, np.float64, OwnInt, Level, tuple, list, OwnTuple, Pair, torch.Size, range, dict)


def asks_isinstance(kind):
    return lambda x, value: x * 2 if isinstance(value, kind) else x * 3


def asks_type(kind):
    return lambda x, value: x * 2 if type(value) is kind else x * 3


def asks_inside(kind):
    return lambda x, value: x * 2 if isinstance(value, tuple) and isinstance(value[0], kind) else x * 3


@pytest.mark.parametrize("question", [asks_isinstance, asks_type, asks_inside])
@pytest.mark.parametrize("name", VALUES)
def test_a_captured_program_answers_for_no_other_class(question, name):
    for kind in KINDS:
        program = question(kind)
        captured = fxplug.trace(program, (X, copy.copy(VALUES[name])), check=False)
        torch.testing.assert_close(captured(X, VALUES[name]), program(X, VALUES[name]))
        for other, value in VALUES.items():
            try:
                found = captured(X, value)
            except fxplug.GuardError:
                continue
            assert torch.equal(found, program(X, value)), (kind, other)


def test_it_is_said_that_a_size_was_a_tuple():
    captured = fxplug.trace(asks_type(tuple), (X, (1,)))
    with pytest.raises(fxplug.GuardError, match="it is a Size, and was traced as a tuple"):
        captured(X, torch.Size([1]))


def returns(x, value):
    return x, value


def makes_a_text(x, value):
    return x * len(f"{value}")


def compares(x, value):
    return x * 2 if value == (1,) else x * 3


def compares_the_other_way(x, value):
    return x * 2 if value != (1,) else x * 3


def are_alike(one, other):
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == 2:
        return torch.equal(one[0], other[0]) and type(one[1]) is type(other[1]) and bool(one[1] == other[1])
    return torch.equal(one, other)


@pytest.mark.parametrize("program", [returns, makes_a_text, compares, compares_the_other_way])
@pytest.mark.parametrize("name", [name for name in VALUES if name != "tensor"])
def test_nobody_has_to_ask(program, name):
    captured = fxplug.trace(program, (X, copy.copy(VALUES[name])), check=False)
    assert are_alike(captured(X, VALUES[name]), program(X, VALUES[name]))
    for other, value in VALUES.items():
        try:
            found = captured(X, value)
        except (fxplug.GuardError, fxplug.GraphError):
            continue
        assert are_alike(found, program(X, value)), other


@pytest.mark.parametrize("default", [torch.Size((3, 4)), np.float64(2)])
def test_a_default_may_be_left_out(default):
    def program(x, value=default):
        return x * 2 if type(value) is type(default) else x * 3

    captured = fxplug.trace(program, (X,))
    torch.testing.assert_close(captured(X), X * 2)


@pytest.mark.parametrize("way", ["copy", "deepcopy", "file"])
def test_sizes_are_told_from_tuples_later_too(way, tmp_path):
    captured = fxplug.trace(asks_type(tuple), (X, (1,)))
    if way == "file":
        fxplug.save(captured, tmp_path / "asking.fxp")
        captured = fxplug.load(tmp_path / "asking.fxp")
    else:
        captured = getattr(copy, way)(captured)
    torch.testing.assert_close(captured(X, (1,)), X * 2)
    with pytest.raises((fxplug.GuardError, fxplug.GraphError), match="was traced as a tuple"):
        captured(X, torch.Size([1]))

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


def test_a_size_is_a_tuple_to_who_does_not_ask():
    captured = fxplug.trace(lambda x, sizes: x.reshape(sizes), (X, (3, 1)))
    assert captured(X, torch.Size([3, 1])).shape == (3, 1)
    assert fxplug.trace(lambda x, sizes: x.reshape(sizes), (X, torch.Size([3, 1])))(X, (3, 1)).shape == (3, 1)


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

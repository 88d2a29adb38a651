"""Which class an input has decides where a program dispatches by it, or tries what only some classes can."""

from __future__ import annotations

import functools
import operator

import pytest
import torch

import fxplug
from fxplug.errors import GuardError

X = torch.ones(2)


@functools.singledispatch
def scaled(value, x):
    raise NotImplementedError


@scaled.register
def _(value: int, x):
    return x + value


@scaled.register
def _(value: float, x):
    return x * value


class Moves:
    @functools.singledispatchmethod
    def moved(self, value, x):
        return x

    @moved.register
    def _(self, value: int, x):
        return x + value


MOVES = Moves()


def with_a_length(x, value):
    try:
        return x * len(value)
    except TypeError:
        return x * value


def with_parts(x, value):
    try:
        parts = list(value)
    except TypeError:
        parts = [value]
    return x * len(parts)


def whole(x, value):
    try:
        number = operator.index(value)
    except Exception:
        number = 7
    return x * number


PROGRAMS = {
    "a function that dispatches": (lambda x, value: scaled(value, x), 2, 3, 2.5),
    "the other way": (lambda x, value: scaled(value, x), 2.5, 3.5, 2),
    "a method that dispatches": (lambda x, value: MOVES.moved(value, x), 2, 3, 2.5),
    "a length": (with_a_length, 3.0, 4.0, torch.ones(2)),
    "parts": (with_parts, 3.0, 4.0, (1.0, 2.0)),
    "an index": (whole, 2.5, 3.5, 2),
}


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_class_of_the_input_is_guarded(name, check, mode):
    program, example, alike, other = PROGRAMS[name]
    captured = fxplug.trace(program, (X, example), mode=mode, check=check)
    assert torch.equal(captured(X, alike), program(X, alike))
    with pytest.raises(GuardError):
        captured(X, other)

"""Functions that a program calls through objects with slots, and through containers of other kinds than lists."""

from collections import deque
from types import MappingProxyType

import pytest
import torch

import fxplug

X = torch.ones(2, 3)


class Held:
    __slots__ = ("function",)

    def __init__(self, function):
        self.function = function

    def __call__(self, value):
        return self.function(value)


@Held
def by_class(value):
    return 2 if type(value) is int else 5


@Held
def by_none(value):
    return 2 if value is None else 5


@Held
def untouched(value):
    return 3


class Unset:
    __slots__ = ("function", "other")

    def __init__(self, function):
        self.other = Held(function)

    def asks(self, value):
        return self.other.function(value)


INSIDE = Unset(lambda value: 2 if type(value) is int else 5)

PROGRAMS = {
    "call": lambda x: x * untouched(x.shape[0]) * by_class(x.shape[0]),
    "method": lambda x: x * INSIDE.asks(x.shape[0]),
    "length": lambda x: x * by_class(len(x)),
}


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_questions_in_them_are_answered_on_examples(program, mode):
    captured = fxplug.trace(program, (X,), mode=mode, check=False)
    torch.testing.assert_close(captured(X), program(X), rtol=0, atol=0)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_questions_in_them_have_no_wrong_answer_without(program):
    try:
        captured = fxplug.symbolic_trace(program)
    except fxplug.TraceError:
        return
    torch.testing.assert_close(captured(X), program(X), rtol=0, atol=0)


def test_what_is_asked_of_a_default_in_them_is_guarded():
    def program(x, mask=None):
        return x * by_none(mask)

    captured = fxplug.symbolic_trace(program)
    torch.testing.assert_close(captured(X), program(X), rtol=0, atol=0)
    with pytest.raises(fxplug.GuardError, match="mask is None"):
        captured(X, X)


def asks(value):
    return 2 if value is None else 5


QUEUE, TABLE, SET = deque([asks]), MappingProxyType({"asks": asks}), {asks}


@pytest.mark.parametrize(
    "found",
    [lambda: QUEUE[0], lambda: TABLE["asks"], lambda: next(iter(SET))],
    ids=["deque", "proxy of a dict", "set"],
)
def test_functions_in_containers_are_found(found):
    def program(x, mask=None):
        return x * found()(mask)

    captured = fxplug.symbolic_trace(program)
    torch.testing.assert_close(captured(X), program(X), rtol=0, atol=0)
    with pytest.raises(fxplug.GuardError, match="mask is None"):
        captured(X, X)

"""State that a program changes by methods which no code names is refused, and put back."""

from __future__ import annotations

import contextvars
import functools

import pytest
import torch

import fxplug
from fxplug.errors import TraceError

ONE = torch.ones(2, 3)


class CountsMissing(dict):
    count = 0

    def __missing__(self, key):
        CountsMissing.count += 1
        return CountsMissing.count


TABLE = CountsMissing()


def by_a_missing_key(x):
    return x * TABLE["none"]


class CountsNames(type):
    count = 0

    def __getattr__(cls, name: str):
        CountsNames.count += 1
        return CountsNames.count


class Named(metaclass=CountsNames):
    pass


def by_a_name_of_a_class(x):
    return x * Named.anything


class CountsLoops(type):
    made: list[int] = []  # noqa: RUF012 - one for all, which is what is tested

    def __iter__(cls):
        cls.made.append(1)
        return iter(cls.made)


class Looped(metaclass=CountsLoops):
    pass


def by_a_loop_over_a_class(x):
    return x * sum(Looped)


VARIABLE: contextvars.ContextVar[list[int]] = contextvars.ContextVar("variable", default=[])  # noqa: B039 - the same


def by_a_list_in_a_variable(x):
    VARIABLE.get().append(1)
    return x * len(VARIABLE.get())


BYTES = bytearray(b"\0")
VIEW = memoryview(BYTES)


def by_a_view_of_bytes(x):
    VIEW[0] += 1
    return x * VIEW[0]


@functools.singledispatch
def chosen(_):
    return 1


def by_a_function_that_is_registered(x):
    factor = chosen(x.shape[0])
    chosen.register(int, lambda _: 5)
    return x * factor


STATE = {
    by_a_missing_key: lambda: CountsMissing.count,
    by_a_name_of_a_class: lambda: CountsNames.count,
    by_a_loop_over_a_class: lambda: len(CountsLoops.made),
    by_a_list_in_a_variable: lambda: len(VARIABLE.get()),
    by_a_view_of_bytes: lambda: BYTES[0],
    by_a_function_that_is_registered: lambda: len(chosen.registry) - 1,
}


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("program", STATE, ids=lambda program: program.__name__)
def test_what_such_methods_change_is_refused_and_put_back(program, mode, check):
    examples = None if mode == "symbolic" else (ONE,)
    before = STATE[program]()
    with pytest.raises(TraceError, match=r"\[FXP-T055\]$"):
        fxplug.trace(program, examples, mode=mode, check=check)
    assert STATE[program]() == before

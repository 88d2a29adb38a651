"""What a program asks of its inputs is guarded, by whatever name it asks, and in functions that no name leads to."""

from __future__ import annotations

import sys

import pytest
import torch

import fxplug

X = torch.ones(2, 3)
THIS = sys.modules[__name__]
is_kind, is_called = isinstance, callable
TABLE = {"called": callable}


def by_a_global(x, y):
    return x + 1 if is_kind(y, torch.Tensor) else x - 1


def whether_it_can_be_called(x, y):
    return x + 1 if is_called(y) else x - 1


def by_a_default(x, y, asks=isinstance):
    return x + 1 if asks(y, torch.Tensor) else x - 1


def by_a_table(x, y):
    return x + 1 if TABLE["called"](y) else x - 1


def closes_over(asks):
    def by_a_closure(x, y):
        return x + 1 if asks(y, torch.Tensor) else x - 1

    return by_a_closure


def helper_asks(x, y):
    return x + 1 if isinstance(y, torch.Tensor) else x - 1


def by_no_name(x, y):
    return getattr(THIS, "_".join(["helper", "asks"]))(x, y)


PROGRAMS = [
    by_a_global,
    whether_it_can_be_called,
    by_a_default,
    by_a_table,
    closes_over(isinstance),
    by_no_name,
]


@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_class_of_an_input_is_guarded_where_it_is_asked_for(program, mode):
    captured = fxplug.trace(program, (X, X * 2), mode=mode, check=False)
    assert torch.equal(captured(X * 3, X * 4), program(X * 3, X * 4))
    with pytest.raises(fxplug.GuardError, match="type"):
        captured(X, torch.relu)

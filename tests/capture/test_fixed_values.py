"""What counts as the value that an input was fixed to, and as the structure that was traced."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch

import fxplug
from fxplug.capture import PH
from fxplug.errors import GraphError
from fxplug.execute import Interpreter

Pair = namedtuple("Pair", ["x", "y"])  # noqa: PYI024


def fixed(value):
    return fxplug.symbolic_trace(lambda x, d: x, {"d": value})


@pytest.mark.parametrize(
    ("value", "other"),
    [(1, True), (0, False), (True, 1), (False, 0), (1.0, True), (0.0, -0.0), (-0.0, 0.0), (0.0, False)],
    ids=repr,
)
def test_values_that_are_equal_and_not_the_same_are_refused(value, other):
    module = fixed(value)

    assert module(1, value) == 1
    for run in (module, Interpreter(module).run):
        with pytest.raises(AssertionError, match=f"d was fixed to {value!r} when"):
            run(1, other)


@pytest.mark.parametrize(("value", "other"), [(2.0, 2), (2, 2.0), (0.0, 0), (1, 1.0)], ids=repr)
def test_numbers_that_are_equal_are_the_same(value, other):
    assert fixed(value)(1, other) == 1


@pytest.mark.parametrize("value", [True, 0.0, 1], ids=repr)
def test_tracing_it_again_keeps_the_check(value):
    again = fxplug.symbolic_trace(fixed(value))

    assert again(1, value) == 1
    with pytest.raises(AssertionError, match="d was fixed to"):
        again(1, 2)


# -- structures


def size_of(x, d):
    return x.expand(d["size"] if isinstance(d, dict) else d)


@pytest.mark.parametrize("inside", [False, True])
def test_a_size_is_a_tuple(inside):
    wrap = (lambda size: {"size": size}) if inside else (lambda size: size)
    module = fxplug.symbolic_trace(size_of, {"d": wrap((2, 1))})

    for run in (module, Interpreter(module).run):
        assert run(torch.ones(1), wrap(torch.Size([2, 1]))).shape == (2, 1)
        with pytest.raises(AssertionError, match="fixed to 1"):
            run(torch.ones(1), wrap(torch.Size([2, 3])))
        with pytest.raises(GraphError, match="FXP-G020"):
            run(torch.ones(1), wrap(torch.Size([2, 1, 1])))


def test_a_size_that_is_one_input_stays_a_size():
    module = fxplug.symbolic_trace(lambda d: (d[0].numel(), d[1][1]), {"d": [PH, Pair(PH, PH)]})

    assert module([torch.Size([2, 3]), Pair(1, 2)]) == (6, 2)


def test_given_structures_are_not_changed():
    module = fxplug.symbolic_trace(size_of, {"d": {"size": (2, 1)}})
    given = {"size": torch.Size([2, 1])}
    module(torch.ones(1), given)

    assert type(given["size"]) is torch.Size


def differences(d):
    first, second = d["inner"].values()
    return first - second


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_another_order_of_keys_is_refused(kind):
    module = fxplug.symbolic_trace(differences, {"d": {"inner": kind(a=PH, b=PH)}})

    assert module({"inner": kind(a=5, b=3)}) == 2
    with pytest.raises(
        GraphError, match=r"keys stand in the order \['b', 'a'\].*traced as \['a', 'b'\].*FXP-G020"
    ):
        module({"inner": kind(b=3, a=5)})

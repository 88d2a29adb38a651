"""Sizes that meet numbers of NumPy: what comes out is one of those, and is guarded to be what it was."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import fxplug
from fxplug.errors import GuardError

numpy = pytest.importorskip("numpy")
FOUR, HALF = numpy.lcm.reduce([2, 4]), numpy.float64(0.5)


def whole_chunks(x):
    return x if x.shape[1] % FOUR != 0 else -x


def chunks(x):
    return x.reshape(x.shape[0], x.shape[1] // FOUR, -1)


def half(x):
    return x[:, : int(x.shape[1] * HALF)]


def at_least(x):
    return x.exp() if x.shape[1] >= FOUR else x


@pytest.mark.parametrize("options", [{}, {"check": False}, {"mode": "shape"}])
@pytest.mark.parametrize(
    ("program", "also", "not_for", "guard"),
    [
        (whole_chunks, 12, 9, r"\(x.shape\[1\] % 4\) == 0"),
        (chunks, 8, 12, r"\(x.shape\[1\] // 4\) == 2"),
        (half, 8, 12, r"\(x.shape\[1\] \* 0.5\) == 4.0"),
        (at_least, 5, 3, r"x.shape\[1\] >= 4"),
    ],
)
def test_a_number_that_numpy_gives_is_guarded(program, also, not_for, guard, options):
    captured = fxplug.trace(program, (torch.rand(2, 8),), **options)

    for one in (captured, copy.deepcopy(captured), pickle.loads(pickle.dumps(captured))):
        for shape in ((2, 8), (3, also)):
            x = torch.rand(shape)
            assert torch.equal(one(x), program(x))
        with pytest.raises(GuardError, match=guard):
            one(torch.rand(2, not_for))


def test_numbers_of_fewer_bits_are_refused():
    with pytest.raises(fxplug.TraceError, match=r"gives a numpy.int8.*FXP-T062"):
        fxplug.trace(lambda x: x * (x.shape[1] * numpy.int8(10)), (torch.rand(2, 8),))

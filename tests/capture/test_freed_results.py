"""A capture on examples holds no results that the program itself has let go of."""

from __future__ import annotations

import weakref

import pytest
import torch

import fxplug
from fxplug import TraceError
from fxplug.capture.examples.known import KnownTensors

HELD: list[torch.Tensor] = []


class Other(torch.Tensor):
    """Torch does not tell of a tensor that becomes one of these."""


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_results_are_freed_as_the_program_goes(mode):
    alive: list[int] = []

    def program(x):
        results: list[weakref.ref[torch.Tensor]] = []
        for _ in range(5):
            x = x.exp()
            results.append(weakref.ref(x))
        alive.append(sum(result() is not None for result in results))
        return x

    captured = fxplug.trace(program, (torch.zeros(3),), mode=mode, check=False)

    assert set(alive) == {1}
    x = torch.randn(3)
    torch.testing.assert_close(captured(x), program(x))


def test_many_short_lived_results_are_not_taken_for_one_another():
    def program(x):
        for step in range(200):
            x = (x + step).sin() * (x - step).cos() + torch.stack([x, -x]).sum(0)
        return x

    captured = fxplug.trace(program, (torch.zeros(3),), mode="value")

    x = torch.randn(3)
    assert torch.equal(captured(x), program(x))
    assert len(captured.graph.nodes) == 200 * 9 + 2


def test_another_class_of_a_result_that_is_gone_is_no_constant():
    def program(x):
        HELD.append((x * 2).as_subclass(Other).as_subclass(torch.Tensor))
        return HELD[-1] + 1

    try:
        # Elsewhere, the view keeps what it is a view of.
        with torch.inference_mode(), pytest.raises(TraceError, match="FXP-T061"):
            fxplug.trace(program, (torch.zeros(3),), mode="value", check=False)
    finally:
        HELD.clear()


def test_a_result_that_is_gone_is_forgotten_with_its_id():
    known, result = KnownTensors(), torch.ones(2)
    key = id(result)
    known.add_result(result, None, "a node")
    assert known[key][1] == "a node"
    assert [tensor is result for tensor, _ in known.living()] == [True]

    del result

    assert key not in known  # Another tensor may get this id.
    assert not list(known.living())


def test_what_has_got_the_id_of_a_result_that_is_gone_stays_known():
    known, result = KnownTensors(), torch.ones(2)
    key = id(result)
    known.add_result(result, None, "a node")
    watch, _ = known[key]  # As somebody does who goes through them.
    known[key] = (torch.ones(3), "another")

    del result

    assert watch() is None
    assert known[key][1] == "another"

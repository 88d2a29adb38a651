"""Regions are captured alike, whatever other threads do, and refused where nothing is heard of them."""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest
import torch

import fxplug
from fxplug.capture import constants
from fxplug.errors import TraceError


def test_entering_a_context_is_no_draw_when_another_thread_draws_meanwhile(monkeypatch):
    states = iter(range(1000))

    class DrawnByOthers:
        """A generator whose state is another one whenever somebody looks."""

        def get_state(self):
            return torch.tensor(next(states))

        def set_state(self, state):
            return None

    def program(x):
        with torch.no_grad():
            y = torch.relu(x)
            with torch.enable_grad():
                return torch.tanh(y)

    monkeypatch.setattr(constants.torch, "default_generator", DrawnByOthers())

    graph = fxplug.symbolic_trace(program).graph

    assert [node.target for node in graph.nodes if node.op == "call_function"] == [torch.relu, torch.tanh]


def fixed(x):
    with torch.no_grad():
        return x * 2


def in_an_empty_context(x):
    return contextvars.Context().run(fixed, x)


def in_a_pool(x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fixed, x).result()


def in_a_thread(x):
    found = []

    def run():
        try:
            found.append(fixed(x))
        except TraceError:
            found.append(x)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("program", [in_an_empty_context, in_a_pool, in_a_thread])
def test_what_is_not_heard_of_is_refused(program):
    with pytest.raises(TraceError, match=r"in fixed \(.*: it runs in another thread, .*\[FXP-T063\]$"):
        fxplug.symbolic_trace(program)


def test_layer_that_is_called_elsewhere_is_refused():
    class Calls(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self.layer, x).result()

    with pytest.raises(TraceError, match=r"in forward \(.*: it runs in another thread, .*\[FXP-T063\]$"):
        fxplug.symbolic_trace(Calls())


def test_thread_below_a_region_is_refused():
    """A thread starts with gradients, whatever holds where it is started."""

    def program(x):
        with torch.no_grad(), ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: x * 2).result()

    with pytest.raises(TraceError, match=r"it runs in another thread, .*\[FXP-T063\]$"):
        fxplug.symbolic_trace(program)


def test_operations_in_a_thread_are_captured():
    def program(x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: x * 2).result()

    given = torch.ones(3)
    assert torch.equal(fxplug.symbolic_trace(program)(given), program(given))


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_copied_context_is_heard_of(mode):
    def program(x):
        return contextvars.copy_context().run(fixed, x)

    given = torch.ones(3, requires_grad=True)
    captured = fxplug.trace(program, (given,), mode=mode)

    assert torch.equal(captured(given), program(given))
    assert not captured(given).requires_grad

"""Regions are captured alike, whatever other threads do with torch's random numbers."""

from __future__ import annotations

import torch

import fxplug
from fxplug.capture import constants


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

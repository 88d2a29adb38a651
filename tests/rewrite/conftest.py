"""What the tests of rewriting share."""

from __future__ import annotations

import pytest

from fxplug.capture import Tracer
from fxplug.execute import GraphModule


def _capture(root):
    tracer = Tracer()
    graph = tracer.trace(root)
    return GraphModule(tracer.root, graph, getattr(root, "__name__", type(root).__name__))


@pytest.fixture
def capture():
    """(root) -> the captured module."""
    return _capture


@pytest.fixture
def calls():
    """(module) -> opcode and name of the target of every call and read, in order."""

    def names(module):
        return [
            node.target if isinstance(node.target, str) else node.target.__name__
            for node in module.graph.nodes
            if node.op not in {"placeholder", "output"}
        ]

    return names

"""What the tests of execution share."""

from __future__ import annotations

import pytest

from fxplug.capture import Tracer
from fxplug.execute import GraphModule


def _capture(root):
    tracer = Tracer()
    graph = tracer.trace(root)
    return GraphModule(tracer.root, graph, type(root).__name__)


@pytest.fixture
def capture():
    """(root) -> the captured module."""
    return _capture

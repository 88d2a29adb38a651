"""What the tests of passes share."""

from __future__ import annotations

import pytest

from fxplug.capture import Tracer
from fxplug.execute import GraphModule


def _capture(root, tracer=None):
    tracer = tracer if tracer is not None else Tracer()
    graph = tracer.trace(root)
    return GraphModule(tracer.root, graph, type(root).__name__)


@pytest.fixture
def capture():
    """(root, tracer) -> the captured module."""
    return _capture

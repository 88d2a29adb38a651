"""What the tests of capture share."""

from __future__ import annotations

import pytest
from torch import nn

from fxplug.capture import Tracer
from fxplug.execute import GraphModule


def _capture(root, concrete_args=None, tracer=None):
    tracer = tracer if tracer is not None else Tracer()
    graph = tracer.trace(root, concrete_args)
    graph.lint()
    return GraphModule(tracer.root, graph, type(root).__name__)


@pytest.fixture
def capture():
    """(root, concrete_args, tracer) -> the captured module."""
    return _capture


@pytest.fixture
def pristine_module_class():
    """Fails the test if a trace leaves anything behind in torch.nn.Module."""
    call, read = nn.Module.__call__, nn.Module.__getattr__
    yield
    left = nn.Module.__call__ is not call or nn.Module.__getattr__ is not read
    nn.Module.__call__, nn.Module.__getattr__ = call, read
    assert not left

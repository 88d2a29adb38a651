"""What the tests of capture share."""

from __future__ import annotations

from functools import partial

import pytest
from torch import nn

import fxplug
from fxplug.capture import Tracer
from fxplug.execute import GraphModule
from fxplug.plugins import Config, PluginManager, TraceConfig


def _capture(root, concrete_args=None, tracer=None):
    tracer = tracer if tracer is not None else Tracer()
    graph = tracer.trace(root, concrete_args)
    graph.lint()
    return GraphModule(tracer.root, graph, type(root).__name__)


@pytest.fixture
def capture():
    """(root, concrete_args, tracer) -> the captured module."""
    return _capture


_UNCHECKED = {
    "symbolic": {"mode": "symbolic"},
    "shape": {"mode": "shape", "check": False},
    "value": {"mode": "value", "check": False},
}
_WAYS = {**_UNCHECKED, "shape, checked": {"mode": "shape"}, "value, checked": {"mode": "value"}}


def _capture_as(request):
    return partial(fxplug.trace, example_inputs=(request.module.X,), **_WAYS[request.param])


@pytest.fixture(params=_WAYS)
def capture_as(request):
    """(root) -> the captured module: in each mode, with and without the check. The example is the X of the file."""
    return _capture_as(request)


@pytest.fixture(params=_UNCHECKED)
def capture_unchecked(request):
    """The same without the check."""
    return _capture_as(request)


@pytest.fixture
def with_whole_layers():
    """Lets traces keep the modules called ``layer`` as calls."""
    config = Config(trace=TraceConfig(leaf_modules=("layer",)))
    return PluginManager(config=config, candidates=[], environ={})


def _module_class():
    functions = [vars(nn.Module)[name] for name in ("__call__", "__getattr__", "__setattr__")]
    return [(function, getattr(function, "__code__", None), dict(vars(function))) for function in functions]


@pytest.fixture
def pristine_module_class():
    """Fails the test if a trace leaves anything behind in torch.nn.Module; its value tells whether it is as before."""
    before = _module_class()
    yield lambda: _module_class() == before
    left = _module_class() != before
    for name, (function, code, _) in zip(("__call__", "__getattr__", "__setattr__"), before, strict=True):
        if vars(nn.Module)[name] is not function:
            setattr(nn.Module, name, function)
        function.__code__ = code
    assert not left

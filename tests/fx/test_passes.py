"""What stands below fxplug.fx.passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fxplug.capture import Tracer
from fxplug.errors import PluginError
from fxplug.execute import GraphModule
from fxplug.fx.passes.graph_drawer import FxGraphDrawer
from fxplug.fx.passes.shape_prop import ShapeProp

X = torch.linspace(-2, 2, 6).reshape(2, 3)


@pytest.fixture
def module():
    torch.manual_seed(0)
    root = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    tracer = Tracer()
    graph = tracer.trace(root)
    return GraphModule(tracer.root, graph)


def shapes(module):
    return [tuple(node.meta["tensor_meta"].shape) for node in module.graph.nodes]


def test_shapes_are_noted_on_the_nodes_of_the_module(module):
    result = ShapeProp(module).propagate(X)

    assert shapes(module) == [(2, 3), (2, 4), (2, 4), (2, 4), (2, 4)]
    assert not isinstance(result, FakeTensor)


def test_nothing_is_computed_in_a_fake_mode(module):
    statistics = module.get_submodule("1").running_mean
    before = statistics.clone()

    result = ShapeProp(module, FakeTensorMode()).propagate(X)

    assert isinstance(result, FakeTensor)
    assert shapes(module) == [(2, 3), (2, 4), (2, 4), (2, 4), (2, 4)]
    assert torch.equal(statistics, before)
    assert not any(isinstance(value, FakeTensor) for value in (*module.parameters(), *module.buffers()))


def test_the_mode_of_fake_inputs_is_taken(module):
    mode = FakeTensorMode()

    result = ShapeProp(module).propagate(mode.from_tensor(X))

    assert isinstance(result, FakeTensor)
    assert result.fake_mode is mode
    assert shapes(module)[1] == (2, 4)


def test_who_asks_for_a_picture_is_told_who_draws(module):
    with pytest.raises(PluginError) as caught:
        FxGraphDrawer(module, "model", ignore_getattr=True)

    assert str(caught.value) == (
        "Cannot draw 'model': fxplug itself draws nothing, plugins do. pip install fxplug-viz, then call "
        "fxplug_viz.draw(graph_module, 'model.svg'), or fxplug_viz.GraphDrawer(graph_module, 'model'), which has the "
        "methods of this class. [FXP-H005]"
    )

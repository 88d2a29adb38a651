"""When a fused convolution calls oneDNN: where that gains something, not where putting images into order costs more."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.execute import fused
from fxplug.passes import OneDnnFuse, PassContext

pytestmark = pytest.mark.skipif(bool(fused.onednn_fault()), reason="oneDNN cannot be used here")


def block(before, channels, size=3, **settings):
    layer = nn.Conv2d(before, channels, size, padding=size // 2, **settings)
    return nn.Sequential(layer, nn.ReLU())


MODELS = {
    # Calling oneDNN takes longer than what is to be computed.
    "a tiny chain": (lambda: nn.Sequential(block(3, 8), block(8, 8), block(8, 8)), (1, 3, 16, 16), 0),
    "the same with a large batch": (
        lambda: nn.Sequential(block(3, 8), block(8, 8), block(8, 8)),
        (512, 3, 16, 16),
        3,
    ),
    # Image and value would be put into the order with channels last and back, for one call.
    "one layer alone": (lambda: block(32, 32), (1, 32, 32, 32), 0),
    "one layer with channels last": (lambda: block(32, 32), (1, 32, 32, 32), 1),
    "a chain": (lambda: nn.Sequential(block(32, 32), block(32, 32)), (1, 32, 32, 32), 2),
    # A plain call puts the weight into order, which takes longer than to do so with the image.
    "one layer with a large weight": (lambda: block(256, 256), (1, 256, 7, 7), 1),
    "squeezed to one pixel": (lambda: block(512, 64, 1), (1, 512, 1, 1), 0),
    "groups count, with channels last": (lambda: block(64, 64, groups=64), (1, 64, 32, 32), 0),
}


@pytest.mark.parametrize("name", MODELS)
def test_onednn_is_called_where_it_gains_something(name, monkeypatch):
    make, shape, expected = MODELS[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(shape)
    if "channels last" in name:
        x = x.contiguous(memory_format=torch.channels_last)
    module = fxplug.symbolic_trace(model)
    assert OneDnnFuse().run(module, PassContext()).modified
    called = []
    apply = fused.FusedLayer.apply_onednn
    monkeypatch.setattr(
        fused.FusedLayer, "apply_onednn", lambda self, *args: called.append(1) or apply(self, *args)
    )
    with torch.no_grad():
        value, wanted = module(x), model(x)

    assert len(called) == expected
    torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-5)
    assert value.stride() == wanted.stride()


def test_images_of_one_dimension_have_one_order():
    model = nn.Sequential(nn.Conv1d(64, 64, 3), nn.ReLU()).eval()
    x = torch.randn(4, 64, 512)
    module = fxplug.symbolic_trace(model)
    OneDnnFuse().run(module, PassContext())

    assert module.get_submodule("0")._takes(x.detach(), None) is not torch.is_grad_enabled()
    with torch.no_grad():
        assert module.get_submodule("0")._takes(x, None)
        torch.testing.assert_close(module(x), model(x), rtol=1e-5, atol=1e-5)

"""What TorchScript compiles: fused layers as the calls that they stand for, and what a program relies on."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GraphError
from fxplug.execute.fused import FusedConv1d, FusedConv2d, FusedConv3d, FusedLinear

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")


def image(*sizes):
    return torch.linspace(-1, 1, torch.Size(sizes).numel()).reshape(sizes)


LAYERS = {
    "conv1d": (FusedConv1d, nn.Conv1d(3, 4, 3, padding=1), image(2, 3, 8)),
    "conv2d": (FusedConv2d, nn.Conv2d(3, 4, 3, padding="same", bias=False), image(2, 3, 8, 8)),
    "conv3d": (FusedConv3d, nn.Conv3d(3, 4, 3, stride=2), image(2, 3, 5, 5, 5)),
    "linear": (FusedLinear, nn.Linear(3, 4), image(2, 3)),
}
ENDINGS = [
    ("", ()),
    ("relu", ()),
    ("gelu", ()),
    ("gelu_tanh", ()),
    ("leaky_relu", (0.25,)),
    ("hardtanh", (-0.5, 0.5)),
]


@pytest.mark.parametrize(("activation", "numbers"), ENDINGS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_fused_layer_is_scripted_as_the_calls_that_it_stands_for(name, activation, numbers):
    kind, layer, x = LAYERS[name]
    fused = kind(layer, activation, numbers).eval()

    scripted = torch.jit.script(fused)

    torch.testing.assert_close(scripted(x), fused(x))
    assert scripted.state_dict().keys() == fused.state_dict().keys()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_fused_sum_is_scripted(in_place):
    kind, layer, x = LAYERS["conv2d"]
    fused = kind(layer, "relu", add=True, in_place=in_place, layout="contiguous").eval()
    x = x.contiguous(memory_format=torch.channels_last)
    other = image(2, 4, 8, 8)

    result = torch.jit.script(fused)(x, other)

    torch.testing.assert_close(result, fused(x, other))
    assert result.is_contiguous()


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))])

    def forward(self, x):
        return self.blocks[0](x).relu()


def test_scripting_leaves_an_optimised_module_as_it_is():
    x = image(2, 3, 16, 16)
    model = Deep().eval()
    module = fxplug.optimize(model, (x,), measure=False).module
    kinds = [type(part) for part in module.modules()]
    assert FusedConv2d in kinds or fxplug.execute.fused.onednn_fault()

    scripted = torch.jit.script(module)

    torch.testing.assert_close(scripted(x), model(x), rtol=1e-4, atol=1e-4)
    assert [type(part) for part in module.modules()] == kinds
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(x), module(x))


# -- guards


def doubled(x):
    return x * 2 if x.shape[0] > 1 else x


def test_a_module_with_guards_on_its_inputs_is_not_scripted_without_them():
    captured = fxplug.trace(doubled, (torch.ones(2, 3),))

    with pytest.raises(GraphError, match=r"Cannot script 'doubled': it relies on .* x\.shape\[0\] > 1"):
        torch.jit.script(captured)
    with pytest.raises(GraphError, match="Cannot script 'doubled'"):
        torch.jit.script(nn.Sequential(captured))

    ignoring = fxplug.trace(doubled, (torch.ones(2, 3),), on_guard_failure="ignore")
    torch.testing.assert_close(torch.jit.script(ignoring)(torch.ones(4, 3)), torch.full((4, 3), 2.0))


class AsksForModes(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3)])

    def forward(self, x):
        if self.blocks[0].training:
            x = x + 1
        return self.blocks[0](x if self.training else x * 2)


def test_what_is_scripted_checks_the_modes_that_it_was_captured_in():
    model, x = AsksForModes().eval(), image(2, 3)

    scripted = torch.jit.script(fxplug.symbolic_trace(model))

    torch.testing.assert_close(scripted(x), model(x))
    with pytest.raises(torch.jit.Error, match=r"was captured for self\.training is False"):
        copy.deepcopy(scripted).train()(x)


class AsksForKinds(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) if self.layer.weight.dtype == torch.float32 else x


def test_what_asks_for_more_than_modes_is_not_scripted():
    captured = fxplug.trace(AsksForKinds(), (image(2, 3),))

    with pytest.raises(GraphError, match=r"relies on layer\.weight\.dtype == torch\.float32"):
        torch.jit.script(captured)

"""What computes without data, inside of a region of autocast that goes on after it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze import propagate_shapes

INPUT = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()


WAYS = {
    "shape": lambda net: fxplug.trace(net, (INPUT,), mode="shape", check=False),
    "shape, checked": lambda net: fxplug.trace(net, (INPUT,), mode="shape"),
    "value": lambda net: fxplug.trace(net, (INPUT,), mode="value"),
    "propagate": lambda net: propagate_shapes(fxplug.trace(net), INPUT),
    "propagate, open": lambda net: propagate_shapes(fxplug.trace(net), INPUT, dynamic={0: {0: "batch"}}),
    "decompose": lambda net: fxplug.decompose(fxplug.trace(net), (INPUT,), to="aten"),
    "decompose, open": lambda net: fxplug.decompose(
        fxplug.trace(net), (INPUT,), to="aten", dynamic={0: {0: "batch"}}
    ),
    "cost": lambda net: fxplug.cost(net, (INPUT,)),
    "optimize": lambda net: fxplug.optimize(net, (INPUT,)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("ran_before", [False, True], ids=["first", "after a run"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_model_runs_on_its_weights_afterwards(way, ran_before):
    """Autocast keeps what it makes of weights until its region ends: weights without data, of a capture."""
    net = model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = copy.deepcopy(net)(INPUT)
        if ran_before:
            net(INPUT)

        way(net)

        found = net(INPUT)
        assert type(found) is torch.Tensor
        assert torch.equal(found, expected)

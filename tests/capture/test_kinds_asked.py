"""How much of a graph is looked at for the kind of one value."""

from __future__ import annotations

import torch
from torch import nn

from fxplug.capture import Tracer
from fxplug.capture.kinds import kind_of_node
from fxplug.semantics.kinds import TENSOR


class Deep(nn.Module):
    """Many calls before the one whose kind is asked for."""

    def __init__(self, last) -> None:
        super().__init__()
        self.before = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])
        self.last = last

    def forward(self, x):
        return torch.relu(self.last(self.before(x + 1)).transpose(0, 1))


def kinds_of(last):
    net = Deep(last)
    graph = Tracer().trace(net)
    asked, known = graph.output_node().args[0], {}
    return kind_of_node(asked, net, known), known


def test_what_a_layer_is_given_is_not_looked_at():
    kind, known = kinds_of(nn.Linear(4, 4))
    assert kind == TENSOR
    assert [node.name for node in known] == ["last", "transpose", "relu"]


def test_what_nn_identity_is_given_is():
    kind, known = kinds_of(nn.Identity())
    assert kind == TENSOR
    assert [node.name for node in known] == ["before_19", "last", "transpose", "relu"]

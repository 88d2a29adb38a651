"""How many dimensions values have that a plain program computes, told without a run."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxplug
from fxplug.api.plain_ranks import Ranks

IMAGE, ROWS = torch.randn(2, 4, 6, 6), torch.randn(3, 4)


class Recording(fxplug.Interpreter):
    """Keeps the values of all nodes."""

    def run_node(self, node):
        value = super().run_node(node)
        if isinstance(value, torch.Tensor):
            self.ranks[node] = value.dim()
        return value


def told_and_found(root, *inputs):
    """Return what is told of each tensor, and what it is; None is told where it is not known."""
    captured = fxplug.symbolic_trace(root)
    recording = Recording(captured)
    recording.ranks = {}
    recording.run(*inputs)
    nodes = list(captured.graph.nodes)
    ranks = Ranks(captured, dict(zip(nodes, inputs, strict=False)))
    return [
        (node.name, ranks.of(node), found) for node, found in recording.ranks.items() if node.op != "output"
    ]


LAYERS = [
    *(
        nn.Conv2d(4, 4, 3),
        nn.ConvTranspose2d(4, 4, 3),
        nn.BatchNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(6),
    ),
    *(
        nn.InstanceNorm2d(4),
        nn.LocalResponseNorm(2),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
    ),
    *(nn.AdaptiveMaxPool2d(2), nn.LPPool2d(2, 2), nn.ReLU(), nn.Softmax(dim=1), nn.GLU(dim=1), nn.PReLU()),
    *(
        nn.Hardswish(),
        nn.Threshold(0.1, 0.0),
        nn.Softmax2d(),
        nn.Dropout(),
        nn.Dropout2d(),
        nn.AlphaDropout(),
    ),
    *(nn.Identity(), nn.Linear(6, 3), nn.CrossMapLRN2d(2)),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_layers_leave_as_many(layer):
    told = told_and_found(nn.Sequential(layer.eval()), IMAGE)
    assert [(rank, found) for _, rank, found in told] == [(4, 4), (4, 4)]


def computes(x):
    y = F.relu(F.conv2d(x, torch.ones(4, 4, 1, 1)))
    y = F.batch_norm(y, torch.zeros(4), torch.ones(4)).contiguous().relu().softmax(1)
    left, right = y.chunk(2, 1), y.split(2, 1)
    y = torch.cat([left[0], right[1]], 1)
    y = y * y.mean((2, 3), keepdim=True).sigmoid() + 1
    y += x
    return y[:, :2, 1:]


class Attends(nn.Module):
    """As transformers for pictures do it."""

    def __init__(self):
        super().__init__()
        self.attention, self.first = (
            nn.MultiheadAttention(4, 2, batch_first=True),
            nn.Parameter(torch.ones(1, 1, 4)),
        )

    def forward(self, x):
        batch = x.shape[0]
        y = x.reshape(batch, 4, 36).permute(0, 2, 1)
        y = torch.cat([self.first.expand(batch, -1, -1), y], 1)
        attended, weights = self.attention(y, y, y)
        z = torch.transpose(attended.float() + y, 1, 2).view((batch, 4, -1))
        return z.masked_fill(z > 0, 0.0).reshape(z.shape), weights


def test_sizes_that_are_given_say_how_many():
    told = told_and_found(Attends().eval(), IMAGE)
    assert all(rank in {found, None} for _, rank, found in told)
    named = {name: rank for name, rank, _ in told}
    ranks = [
        named[name] for name in ("reshape", "permute", "expand", "cat", "getitem_1", "view", "masked_fill")
    ]
    assert ranks == [3] * 7
    assert (
        named["reshape_1"] is named["getitem_2"] is None
    )  # One value holds all sizes; weights may be fewer.


def broadcasts(x, row):
    return torch.mul(x, row) + row.add(2.0) - 1


def test_functions_and_methods_that_leave_as_many():
    told = told_and_found(computes, IMAGE)
    assert all(rank == found for _, rank, found in told if rank is not None)
    assert told[-1][1:] == (4, 4)


def test_the_larger_of_two_says_how_many():
    told = told_and_found(broadcasts, IMAGE, torch.randn(6))
    assert [rank for _, rank, _ in told] == [found for *_, found in told]


def changes(x):
    y = x.mean((2, 3))
    y = x.flatten(1) + y.sum()
    y = x[0] + x[:, 0] + x[None].squeeze(0) + x[..., 0] + x.unbind()[0]
    return torch.stack([x, x]).sum(0, keepdim=False) + x.permute(0, 2, 3, 1).reshape(-1)[0]


def test_of_what_may_change_it_nothing_is_told():
    told = told_and_found(changes, torch.randn(4, 4, 4, 4))
    assert all(rank in {found, None} for _, rank, found in told)
    named = {name: rank for name, rank, _ in told}
    assert named["mean"] is named["flatten"] is named["stack"] is named["getitem"] is None


class Indices(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(2, return_indices=True)

    def forward(self, x):
        return self.pool(x)[0]


class Own(nn.ReLU):
    def forward(self, x):
        return x.flatten()


def test_of_layers_that_return_more_and_of_others_nothing_is_told():
    assert told_and_found(Indices(), IMAGE)[-1][1] is None
    assert told_and_found(nn.Sequential(nn.Flatten()), IMAGE)[-1][1] is None
    captured = fxplug.symbolic_trace(nn.Sequential(nn.ReLU()))
    captured.get_submodule("0").__class__ = Own
    nodes = list(captured.graph.nodes)
    assert Ranks(captured, {nodes[0]: IMAGE}).of(nodes[1]) is None


def test_a_long_chain_is_followed():
    captured = fxplug.symbolic_trace(nn.Sequential(*(nn.ReLU() for _ in range(3000))))
    nodes = list(captured.graph.nodes)
    assert Ranks(captured, {nodes[0]: ROWS}).of(nodes[-2]) == 2


# -- in programs


@pytest.fixture
def plainly(monkeypatch):
    """What the captures of a test have become without being listened to: None for those that had to be."""
    from fxplug.api import capturing

    found, capture = [], capturing.capture_plainly
    monkeypatch.setattr(capturing, "capture_plainly", lambda *args: found.append(capture(*args)) or found[-1])
    return found


def adds_by_name(self, x, y):
    h = torch.add(x, other=y)
    return h * 2 if h.ndim == 2 else h + 1


def multiplies_by_name(self, x, y):
    h = x.mul(other=y)
    return h * 2 if h.dim() == 2 and x.shape[0] == 3 else h + 1


def multiplies_with_a_vector(self, x, y):
    h = F.linear(y, x)
    return h * 2 if h.ndim == 2 else h + 1


def calls_a_layer_with_a_vector(self, x, y):
    h = self.layer(y)
    return h * 2 if h.ndim == 2 else h + x[0]


def computes_with_both(self, x, y):
    h = torch.add(x, y).relu()
    return h * 2 if h.ndim == 2 else h + 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)
        self.layer.weight = nn.Parameter(torch.randn(3))


ASKING = [
    *(
        adds_by_name,
        calls_a_layer_with_a_vector,
        computes_with_both,
        multiplies_by_name,
        multiplies_with_a_vector,
    ),
]


@pytest.mark.parametrize("forward", ASKING)
def test_programs_go_the_way_that_they_go_themselves(forward):
    net, given = type("Net", (Net,), {"forward": forward})().eval(), (torch.randn(3), torch.randn(2, 3))
    torch.testing.assert_close(fxplug.trace(net, given, check=False)(*given), net(*given))


def test_what_was_told_wrongly_is_found_out_where_the_program_runs(plainly, monkeypatch):
    net, given = (
        type("Net", (Net,), {"forward": computes_with_both})().eval(),
        (torch.randn(3), torch.randn(2, 3)),
    )
    assert fxplug.trace(net, given, check=False) is plainly[0]
    monkeypatch.setattr(Ranks, "of", lambda self, node: 1)
    again = fxplug.trace(net, given, check=False)
    torch.testing.assert_close(again(*given), net(*given))
    assert plainly[1] is again  # Traced once more, and told nothing.
    assert again.code == plainly[0].code

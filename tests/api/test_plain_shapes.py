"""Plain programs of which it is known without a run what they compute: they are traced, and nobody runs them."""

from __future__ import annotations

import math
import operator
from collections import OrderedDict
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fxplug
from fxplug.api import plain_answers, plain_capture
from fxplug.api.plain_run import Checks
from fxplug.api.plain_shapes import _undropped, shapes_of
from fxplug.plugins import Config, PluginManager, TraceConfig
from fxplug.semantics.shapes.abstract import UnknownShapeError, abstract

WHOLE = PluginManager(candidates=())
THROUGH = PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))), candidates=())


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.act(self.norm(self.conv(x)))
        out += x
        return self.act(out)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(Block(), Block())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = self.pool(self.blocks(self.stem(x)))
        return self.fc(torch.flatten(x, 1))


class Attends(nn.Module):
    """Attention as people write it, with a mask that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.register_buffer("mask", torch.ones(1, 1, 32, 32).tril())

    def forward(self, x):
        batch, length, width = x.size()
        q, k, v = self.qkv(x).split(16, dim=2)
        q, k, v = (one.view(batch, length, 4, width // 4).transpose(1, 2) for one in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        found = functional.softmax(scores, dim=-1) @ v
        return self.out(found.transpose(1, 2).contiguous().view(batch, length, width))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(32, 16)
        self.norm, self.attention = nn.LayerNorm(16), Attends()
        self.head = nn.Linear(16, 20, bias=False)

    def forward(self, indices):
        places = torch.arange(indices.size(1), device=indices.device)
        x = self.words(indices) + self.places(places)
        return self.head(x + self.attention(self.norm(x)))


class Sees(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, 16))
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        torch._assert(x.ndim == 4, "no images")
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1)
        attended, _ = self.attention(x, x, x, need_weights=False)
        return (x + attended)[:, 0]


class Shuffles(nn.Module):
    """Asks for sizes of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        first, second = self.conv(x).chunk(2, dim=1)
        x = torch.cat((first, self.conv(x).mean(1, keepdim=True) + second), dim=1)
        if x.size(2) > 100:
            return x
        batch, channels, height, width = x.size()
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        return x.view(batch, -1, height, width)


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x):
        found = OrderedDict(out=self.conv(x))
        return functional.interpolate(found["out"], size=x.shape[-2:], mode="bilinear", align_corners=False)


class Reads(nn.Module):
    """Reads words one after the other, and begins with states of its own."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.cells = kind(16, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.first = nn.Parameter(torch.rand(4, 1, 6))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        start = self.first.expand(-1, x.shape[0], -1).contiguous()
        found, after = self.cells(x, (start, start) if isinstance(self.cells, nn.LSTM) else start)
        found, _ = self.cells(found.repeat(1, 1, 2)[:, :, :16], after)
        return self.head(found).softmax(-1) * found.mean()


class Translates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), 2)

    def forward(self, x):
        return self.decoder(x[:, :3], self.encoder(x)).flatten(1)


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        attended, _ = self.attention(x, x, x, key_padding_mask=x[:, :, 0] > 0.9, need_weights=False)
        return attended + x


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(16, 16), nn.Parameter(torch.zeros(16))

    def forward(self, x):
        count = x.shape[0]
        count *= 2
        count += 1
        return self.layer(x) * count + self.bias


IMAGE = torch.rand(2, 3, 16, 16)
WORDS = torch.rand(2, 5, 16)
PROGRAMS = [
    pytest.param(Reads(nn.LSTM), WORDS, id="cells"),
    pytest.param(Reads(nn.GRU), WORDS, id="gates"),
    pytest.param(Translates(), WORDS, id="transformers"),
    pytest.param(Masks(), WORDS, id="attention with a mask"),
    pytest.param(Counts(), WORDS, id="numbers"),
    pytest.param(Convolutional(), IMAGE, id="convolutions"),
    pytest.param(Attends(), torch.rand(2, 5, 16), id="attention"),
    pytest.param(Language(), torch.randint(0, 20, (2, 6)), id="language"),
    pytest.param(Sees(), IMAGE, id="attention of torch"),
    pytest.param(Shuffles(), torch.rand(2, 4, 8, 8), id="sizes"),
    pytest.param(Segments(), IMAGE, id="interpolation"),
]


@pytest.fixture
def runs(monkeypatch):
    """What was run, whole or to answer a question."""
    found = []
    run, begun = plain_capture.run_plainly, plain_answers.BegunRun

    def noted(*args):
        found.append("whole")
        return run(*args)

    class Noted(begun):
        def value_of(self, node):
            found.append(node.name)
            return super().value_of(node)

    monkeypatch.setattr(plain_capture, "run_plainly", noted)
    monkeypatch.setattr(plain_answers, "BegunRun", Noted)
    return found


def said(captured):
    guards = captured.guards
    return captured.code, [str(node) for node in captured.graph.nodes], [str(guard) for guard in guards or ()]


_WITHOUT_STEPS = {"attention of torch", "language", "cells", "gates", "transformers", "attention with a mask"}
BOTH = [
    pytest.param(net, given, manager, id=f"{level.id}-{program.id}")
    for level in (pytest.param(WHOLE, id="layers"), pytest.param(THROUGH, id="functions"))
    for program in PROGRAMS
    for (net, given), manager in [(program.values, level.values[0])]
    # What attention and lookups do inside is not known.
    if manager is WHOLE or program.id not in _WITHOUT_STEPS
]


@pytest.mark.parametrize(("net", "given", "manager"), BOTH)
def test_what_is_known_is_not_run(net, given, manager, runs, plainly):
    net.eval()
    fxplug.trace(net, (given,), check=False, manager=manager)  # Layers are learned, which runs them.
    del runs[:], plainly[:]
    state = torch.get_rng_state()
    captured = fxplug.trace(net, (given,), check=False, manager=manager)
    assert plainly == [captured]
    assert runs == []
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(captured(given), net(given))


@pytest.mark.parametrize(("net", "given", "manager"), BOTH)
def test_the_same_is_captured_as_by_a_run(net, given, manager, runs, monkeypatch):
    net.eval()
    known = fxplug.trace(net, (given,), check=False, manager=manager)
    del runs[:]
    monkeypatch.setattr(plain_answers, "shapes_of", lambda *_: None)
    run = fxplug.trace(net, (given,), check=False, manager=manager)
    assert runs
    assert said(known) == said(run)


@pytest.mark.parametrize(
    ("net", "given", "error", "message"),
    [
        (Convolutional(), torch.rand(2, 4, 16, 16), RuntimeError, "to have 3 channels"),
        (Convolutional(), torch.rand(2, 3, 1, 1), RuntimeError, "Output size is too small"),
        (Convolutional(), torch.rand(2, 3, 16, 16, dtype=torch.float64), RuntimeError, "type"),
        (Attends(), torch.rand(2, 5, 15), RuntimeError, "cannot be multiplied"),
        (Attends(), torch.rand(2, 33, 16), RuntimeError, "must match"),
        (Language(), torch.full((2, 6), 20), IndexError, "out of range"),
        (Language(), torch.zeros((2, 33), dtype=torch.int64), IndexError, "out of range"),
        (Sees(), torch.rand(3, 16, 16), AssertionError, "no images"),
        (Shuffles(), torch.rand(2, 5, 8, 8), RuntimeError, "to have 4 channels"),
    ],
    ids=count(),
)
def test_an_error_of_the_program_comes_through(net, given, error, message):
    with pytest.raises(error, match=message):
        fxplug.trace(net.eval(), (given,), check=False, manager=WHOLE)


def test_an_input_is_put_back_that_is_written_to(runs):
    given = torch.randn(2, 3, 8, 8)
    before = given.clone()
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 4, 3))
    captured = fxplug.trace(net, (given,), check=False, manager=WHOLE)
    assert runs == ["whole"]
    assert torch.equal(given, before)
    torch.testing.assert_close(captured(before.clone()), net(before.clone()))


class Counts(nn.Module):
    """Writes to an input by what it computes into it."""

    def __init__(self, *, adds: bool) -> None:
        super().__init__()
        self.words, self.adds = nn.Embedding(9, 3), adds

    def forward(self, indices):
        if self.adds:
            torch.add(indices, 1, out=indices)
        else:
            torch.arange(2, out=indices)
        return self.words(indices)


@pytest.mark.parametrize("adds", [True, False])
def test_integers_are_put_back_that_are_written_to(adds):
    net, given = Counts(adds=adds), torch.tensor([3, 4])
    captured = fxplug.trace(net, (given,), check=False, manager=WHOLE)
    assert given.tolist() == [3, 4]
    mine, theirs = given.clone(), given.clone()
    torch.testing.assert_close(captured(mine), net(theirs))
    assert mine.tolist() == theirs.tolist()


def traced(function):
    tracer = fxplug.Tracer()
    return tracer.trace(function), tracer.root


def test_what_was_told_and_is_not_so_is_found():
    graph, root = traced(lambda x: (x * 2).size(0))
    x = torch.rand(3, 2)
    made, read = graph.output_node().args[0].args[0], graph.output_node().args[0]

    def are_as_told(checks):
        return shapes_of(root, (x,), graph._sentinel, ()).are_as_told(graph.output_node(), checks)

    assert are_as_told(Checks(root, (x,), set(), {read: 3}))
    assert not are_as_told(Checks(root, (x,), set(), {read: 4}))
    assert not are_as_told(Checks(root, (x,), set(), {read: 3.0}))
    for rank in (2, 3):
        checks = Checks(root, (x,), set(), {})
        checks.ranks[made] = rank
        assert are_as_told(checks) is (rank == 2)
    checks = Checks(root, (x,), set(), {})
    checks.tensors.add(read)
    assert not are_as_told(checks)


def test_a_part_that_is_none_is_told_from_others():
    root, x = nn.Module(), torch.rand(2, 3, 4)
    root.attention = nn.MultiheadAttention(4, 2).eval()
    graph = fxplug.Graph()
    given = graph.placeholder("x")
    called = graph.call_module("attention", (given, given, given), {"need_weights": False})
    graph.output(graph.call_function(operator.getitem, (called, 1)))
    for refuses_none in (True, False):
        checks = Checks(root, (x,), set(), {})
        checks.refuses_none = refuses_none
        found = shapes_of(root, (x,), graph._sentinel, ()).are_as_told(graph.output_node(), checks)
        assert found is not refuses_none


def test_nothing_is_told_under_transforms_and_hooks_of_saved_tensors():
    found = []

    def ask(x):
        found.append(shapes_of(nn.Module(), (torch.rand(2),), None, ()))
        return x

    torch.func.vmap(ask, randomness="same")(torch.rand(2))
    with torch.autograd.graph.saved_tensors_hooks(ask, ask):
        ask(None)
    assert found == [None, None]
    ask(None)
    assert found[-1] is not None


@pytest.mark.parametrize(
    "args", [(0.5, "row", True), (2.0, "row", False), (0.5, "column", False), (1, "row", False)]
)
def test_what_may_drop_is_not_known(args):
    x = abstract(torch.rand(2), torch.float32)
    assert _undropped(x, 0.5, "row", False) is x
    with pytest.raises(UnknownShapeError):
        _undropped(x, *args)


def test_a_write_to_a_weight_is_listened_to(runs, plainly):
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3))

        def forward(self, x):
            scale = self.scale.view(3)
            scale *= 2
            return x * scale

    net, x = Scales(), torch.rand(3)
    captured = fxplug.trace(net, (x,), check=False, manager=WHOLE)
    assert plainly == [None]
    assert net.scale.tolist() == [1, 1, 1]
    assert captured(x).tolist() == (x * 2).tolist()


def test_weights_of_another_dtype_raise_the_error_of_the_program(runs):
    net = Convolutional().eval()
    net.fc.double()
    with pytest.raises(RuntimeError, match="dtype"):
        fxplug.trace(net, (IMAGE,), check=False, manager=WHOLE)
    assert runs == ["whole"]


class Hears(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.flatten:
            raise RuntimeError("refused by a mode")
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "addmm" in str(func):
            raise RuntimeError("refused by a mode")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Hears, Dispatches])
def test_modes_may_raise_errors_of_their_own(mode):
    with pytest.raises(RuntimeError, match="refused by a mode"), mode():
        fxplug.trace(Convolutional().eval(), (IMAGE,), check=False, manager=WHOLE)


def test_with_autocast_values_may_be_of_other_dtypes(runs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fxplug.trace(Convolutional().eval(), (IMAGE,), check=False, manager=WHOLE)
    assert runs


def test_deterministic_functions_may_raise(runs):
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        fxplug.trace(Convolutional().eval(), (IMAGE,), check=False, manager=WHOLE)
    finally:
        torch.use_deterministic_algorithms(before)
    assert runs == ["whole"]


def test_what_is_too_large_is_run(runs, monkeypatch):
    monkeypatch.setattr("fxplug.api.plain_shapes._MOST_ELEMENTS", 100)
    fxplug.trace(Convolutional().eval(), (IMAGE,), check=False, manager=WHOLE)
    assert runs == ["whole"]


def test_what_is_in_values_is_answered_by_a_run(runs):
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            x = self.layer(x)
            return x * 2 if (x < 100).all() else x

    net, x = Asks(), torch.rand(2, 4)
    captured = fxplug.trace(net, (x,), check=False, manager=WHOLE)
    assert runs
    torch.testing.assert_close(captured(x), net(x))
    with pytest.raises(fxplug.GuardError):
        captured(x + 1e6 * torch.sign(net.layer.weight[0]))


class AsksForNone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x, weights = self.attention(x, x, x, need_weights=False)
        return x * 2 if weights is None else x


def test_a_part_that_is_none_is_not_taken_for_a_value():
    net, x = AsksForNone().eval(), torch.rand(2, 3, 8)
    captured = fxplug.trace(net, (x,), check=False, manager=WHOLE)
    torch.testing.assert_close(captured(x), net(x))


class AsksForTheClass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        weight = functional.dropout(self.weight, 0.5, training=False)
        return x if type(weight) is torch.Tensor else x * 3


def test_a_weight_that_is_handed_on_is_no_plain_tensor():
    x = torch.rand(4)
    captured = fxplug.trace(AsksForTheClass(), (x,), check=False, manager=WHOLE)
    torch.testing.assert_close(captured(x), x * 3)


def test_methods_that_somebody_has_exchanged_are_not_torch_s(monkeypatch):
    class Net(nn.Module):
        def forward(self, x):
            return x.exp().sum()

    def refuses(*args, **kwargs):
        raise RuntimeError("refused")

    for home, name, net in [
        (torch.Tensor, "exp", Net()),
        (torch.Tensor, "sum", Net()),
        (functional, "relu", nn.Sequential(nn.ReLU())),
    ]:
        with monkeypatch.context() as patched:
            patched.setattr(home, name, refuses)
            with pytest.raises(RuntimeError, match="refused"):
                fxplug.trace(net, (torch.rand(3),), check=False, manager=WHOLE)


def asks_for_dim(x):
    return x.dim()


def asks_for_ndim(x):
    return x.ndim


@pytest.mark.parametrize("asks", [asks_for_dim, asks_for_ndim])
def test_what_was_told_otherwise_is_traced_again(asks, monkeypatch):
    """A shape function that was wrong would be found out by the check in the graph, and here by what is told beside."""
    net, x = Shuffles(), torch.rand(2, 4, 8, 8)
    monkeypatch.setattr(plain_answers.Ranks, "of", lambda *_: 7)

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x):
            x = self.net(x)
            return x * 2 if asks(x) == 7 else x

    whole = Asks()
    captured = fxplug.trace(whole, (x,), check=False, manager=WHOLE)
    torch.testing.assert_close(captured(x), whole(x))

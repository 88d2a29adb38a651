"""Models as people write them, captured on examples without being listened to."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxplug
from fxplug.errors import GuardError, TraceError
from fxplug.ir import effects, writes

WORDS = torch.tensor([[1, 4, 2, 0, 3, 1], [0, 2, 2, 4, 1, 3]])
X = torch.linspace(-2, 2, 48).reshape(2, 6, 4)
PICTURE = torch.linspace(-1, 1, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)


@dataclass
class Config:
    width: int = 4
    longest: int = 8
    layers: int = 2


class Looked:
    """Answers whoever looks for what it does not have."""

    width = 4

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 8


class Answering:
    """Answers with code of its own."""

    layers, width = 2, 4

    @property
    def longest(self):
        return 8


class Guarded:
    """Has what it says in its table, and answers otherwise."""

    def __init__(self):
        self.layers, self.longest, self.width = 2, 3, 4

    def __getattribute__(self, name):
        return 8 if name == "longest" else object.__getattribute__(self, name)


class Described:
    """Has one thing in its table, and another in its class, which comes first."""

    layers, width = 2, 4
    longest = property(lambda self: 8)

    def __init__(self):
        self.__dict__["longest"] = 3


class Scaled(nn.Module):
    """Norms by the sizes of its weight, as many write it."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.linspace(1, 2, width)), None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Language(nn.Module):
    """A language model that reads its configuration, and keeps its layers in a dict."""

    def __init__(self, config=None):
        super().__init__()
        torch.manual_seed(0)
        self.config = Config() if config is None else config
        width = self.config.width
        self.parts = nn.ModuleDict(
            {
                "words": nn.Embedding(5, width),
                "places": nn.Embedding(8, width),
                "layers": nn.ModuleList(nn.Linear(width, width) for _ in range(2)),
                "norm": Scaled(width),
            }
        )
        self.head = nn.Linear(width, 5, bias=False)

    def forward(self, words, targets=None):
        _, length = words.size()
        if length > self.config.longest:
            raise ValueError(f"{length} words are more than {self.config.longest}")
        places = torch.arange(0, length, dtype=torch.long, device=words.device)
        x = self.parts.words(words) + self.parts.places(places)
        for layer in self.parts.layers:
            x = x + layer(x).tanh()
        x = self.parts.norm(x)
        if targets is not None:
            return self.head(x), F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
        return self.head(x[:, [-1], :]), None


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.cells = nn.Embedding(5, 4), kind(4, 4, batch_first=True)

    def forward(self, words):
        outputs, last = self.cells(self.words(words))
        if isinstance(last, tuple):
            last = last[0]
        return outputs.mean(dim=1) + last[-1]


class Steps(nn.Module):
    """Goes through the steps of its input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x):
        state = torch.zeros(x.size(0), 4, device=x.device)
        states = []
        for step in range(x.size(1)):
            state = self.cell(x[:, step], state)
            states.append(state)
        return torch.stack(states, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.activation, self.further = nn.Linear(4, 4), F.gelu, torch.tanh
        self.inner = nn.Sequential()
        self.inner.add_module("first", nn.Linear(4, 4))
        self.inner.add_module("second", nn.ReLU())
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.config = Config()

    def forward(self, x):
        return self.layer(x)


def net_of(forward):
    return type("Net", (Net,), {"forward": forward})()


def functions_that_it_holds(self, x):
    return self.further(self.activation(self.layer(x)))


def layers_inside_of_a_layer(self, x):
    x = self.inner.first(x)
    return self.inner.second(x)


def as_many_chunks_as_layers(self, x):
    parts = x.chunk(len(self.layers), dim=-1)
    found = []
    for index, layer in enumerate(self.layers):
        part = layer(parts[index])
        found.append(part)
    return torch.cat([*found, parts[0]], -1).to(x.dtype)


def parts_in_a_comprehension(self, x):
    query, key = (part.transpose(-1, -2) for part in self.layer(x).chunk(2, -1))
    return query * key


def parts_of_a_split(self, x):
    return [part.tanh() for part in self.layer(x).split(2, -1)]


def numbers_in_a_row(self, x):
    steps = torch.arange(4, dtype=torch.float32) * 0.1 + torch.linspace(0, 1, 4)
    return x * steps + torch.full((4,), 2.0) + torch.zeros(4).cos() + torch.eye(4)[0]


def a_part_of_what_is_computed(self, x):
    y = self.layer(x).flatten(1)
    for number in range(y.shape[1] // 12):
        y = y * number + 1
    return y


def sizes_in_a_row(self, x):
    shape = self.layer(x).relu().flatten(2).shape
    return x.reshape(*x.shape[:-1], -1, 2), x.new_zeros(*(size * 2 for size in x.size()[1:])), [*shape]


def layers_in_a_comprehension(self, x):
    found = [layer(x[..., :2]) * number for number, layer in enumerate(self.layers)]
    for layer, other in zip(self.layers, self.layers, strict=True):
        found.append(other(layer(x[..., 2:])).float())
    return torch.cat(found, -1).to(x.dtype)


def tuples_of_layers(self, x):
    return self.layer(x)[:, [0, -1]]


class Filter(nn.Conv2d):
    """A layer of torch with other parameters."""

    def __init__(self, channels):
        super().__init__(channels, channels, 3, padding=1, bias=False)


class Rectified(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).relu()


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.filters = nn.Sequential(Filter(4), Rectified(4, 4, 3))

    def forward(self, x):
        return self.filters(x)


def recorded(captured):
    return Counter((node.op, str(node.target)) for node in captured.graph.nodes)


@pytest.mark.parametrize(
    ("make", "given", "other"),
    [
        pytest.param(Language, WORDS, WORDS[:, :4], id="language"),
        pytest.param(lambda: Recurrent(nn.LSTM), WORDS, WORDS[:, :4], id="lstm"),
        pytest.param(lambda: Recurrent(nn.GRU), WORDS, WORDS[:, :4], id="gru"),
        pytest.param(Steps, X, X[:1] * 2, id="steps"),
        pytest.param(Pictures, PICTURE, PICTURE[:1] * 2, id="pictures"),
        *(
            pytest.param(lambda forward=forward: net_of(forward), X, X[:1] * 2, id=forward.__name__)
            for forward in (
                *(functions_that_it_holds, layers_inside_of_a_layer, parts_in_a_comprehension),
                *(parts_of_a_split, numbers_in_a_row, a_part_of_what_is_computed),
                *(layers_in_a_comprehension, tuples_of_layers),
            )
        ),
        *(
            pytest.param(make, given, given[:1], id=f"{make().__class__.__name__} alone")
            for make, given in (
                (lambda: nn.Linear(4, 3), X),
                (lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), PICTURE),
                (lambda: nn.BatchNorm2d(4), PICTURE),
                (lambda: nn.Embedding(5, 4), WORDS),
                (nn.GELU, X),
            )
        ),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_models_are_captured_as_where_they_are_listened_to(plainly, make, given, other, check, listened_to):
    net = make().eval()
    with torch.no_grad():
        captured = fxplug.trace(net, (given,), check=check)
        assert plainly == [captured]
        assert recorded(captured) == recorded(listened_to(net, given, check=check))
        for inputs in (given, other):
            torch.testing.assert_close(captured(inputs), net(inputs))


def test_parts_that_are_taken_by_numbers_need_no_check(plainly):
    net = net_of(as_many_chunks_as_layers).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X[:1] * 2), net(X[:1] * 2))


def test_sizes_may_be_gone_through(plainly):
    net = net_of(sizes_in_a_row).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert [guard.text for guard in captured.guards] == ["x.dim() == 3"]
    torch.testing.assert_close(captured(X[:1, :5] * 2), net(X[:1, :5] * 2))
    with pytest.raises(GuardError, match=r"x\.dim\(\) == 3"):
        captured(X[0])


def test_a_decoder_layer_may_be_the_whole_program(plainly, listened_to):
    net = nn.TransformerDecoderLayer(4, 2, 8, activation="gelu", batch_first=True).eval()
    captured = fxplug.trace(net, (X, X + 1))
    assert plainly == [captured]
    assert captured.code == listened_to(net, X, X + 1).code
    torch.testing.assert_close(captured(X * 2, X), net(X * 2, X))


def test_what_a_loop_goes_up_to_is_guarded(plainly):
    captured = fxplug.trace(Steps().eval(), (X,))
    with pytest.raises(GuardError, match=r"x\.size\(1\) == 6"):
        captured(X[:, :5])
    computed = fxplug.trace(net_of(a_part_of_what_is_computed).eval(), (X,))
    assert plainly == [captured, computed]
    with pytest.raises(GuardError, match="== 2"):
        computed(X[:, :3])


def test_how_many_parts_there_are_is_checked(plainly):
    captured = fxplug.trace(net_of(parts_of_a_split).eval(), (X,))
    assert plainly == [captured]
    captured.layer = nn.Linear(4, 6)
    with pytest.raises(GuardError, match=r"len\("):
        captured(X)


def test_fewer_chunks_than_asked_for_are_as_many_as_there_are(plainly, listened_to):
    def three(self, x):
        return [part.tanh() for part in x.chunk(3, dim=-1)]

    net = net_of(three).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    assert len(captured(X)) == 2
    assert captured.code == listened_to(net, X).code


def test_rows_of_a_tensor_are_no_parts(plainly, listened_to):
    def rows(self, x):
        return [row.tanh() for row in self.layer(x)]

    net = net_of(rows).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    assert captured.code == listened_to(net, X).code
    torch.testing.assert_close(captured(X * 2), net(X * 2))


# -- functions

LAYER = nn.Linear(4, 4)
WEIGHT = torch.linspace(1, 2, 4)


def halved(x):
    return x.tanh() / 2


def unit(x, other=None, *, flag=False):
    y = torch.relu(x) if other is None else halved(x) + other
    return y.sum(-1) if flag else y / (y.norm(dim=-1, keepdim=True) + 1e-6)


def attends(x, other):
    if x.shape[-1] > 8:
        raise ValueError(f"{x.shape[-1]} are too many")
    return (x @ other.mT).softmax(-1) @ other


def doubles(x):
    x.mul_(2)
    return x + torch.arange(4)


@pytest.mark.parametrize(
    ("function", "inputs", "named"),
    [
        pytest.param(unit, (X,), {}, id="one input"),
        pytest.param(unit, (X, X + 1), {}, id="two inputs"),
        pytest.param(unit, (X,), {"other": X + 1}, id="by name"),
        pytest.param(attends, (X, X + 1), {}, id="question"),
        pytest.param(doubles, (X,), {}, id="write"),
        pytest.param(lambda x: x.T @ x, (X[0],), {}, id="lambda"),
    ],
)
def test_functions_may_be_programs(plainly, function, inputs, named, listened_to):
    given = [value.clone() for value in inputs]
    captured = fxplug.trace(function, given, example_kwargs=named)
    assert plainly == [captured]
    assert all(map(torch.equal, given, inputs))
    listened = listened_to(function, *given, example_kwargs=named)
    # Listening tells of a write where its result is used, and of all that a method of torch is given.
    assert len(captured.graph.nodes) == len(listened.graph.nodes)
    for factor in (1, 2):
        expected, found = [value * factor for value in inputs], [value * factor for value in inputs]
        torch.testing.assert_close(captured(*found, **named), function(*expected, **named))
        assert all(map(torch.equal, found, expected))


def closing():
    shift = torch.ones(4)
    return lambda x: x + shift


@functools.wraps(unit)
def wrapped(x):
    return unit(x)


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: LAYER(x) + 1, id="a module"),
        pytest.param(lambda x: x + WEIGHT, id="a tensor"),
        pytest.param(closing(), id="a closure"),
        pytest.param(wrapped, id="wrapped"),
        pytest.param(functools.partial(unit, flag=True), id="partial"),
        pytest.param(LAYER.forward, id="a method"),
        pytest.param(lambda *x: x[0] * 2, id="starred"),
    ],
)
def test_functions_that_lead_elsewhere_are_listened_to(plainly, function):
    with torch.no_grad():
        captured = fxplug.trace(function, (X,))
        assert plainly == [None]
        torch.testing.assert_close(captured(X * 2), function(X * 2))


# -- what is not as it looks


class Converts(nn.Module):
    """Has layers that it finds in a list."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])


def to_double(self, x):
    layers = [layer for layer in self.layers]  # noqa: C416 - nobody hears of what becomes of these
    return layers[0].double()(x.double()).float()


def to_what_it_is(self, x):
    layers = [layer for layer in self.layers]  # noqa: C416
    return layers[0].float()(x)


@pytest.mark.parametrize("forward", [to_double, to_what_it_is])
def test_layers_that_are_converted_are_as_before(plainly, forward):
    net, x = type("Converts", (Converts,), {"forward": forward})().eval(), X[0]
    expected = net(x)
    net.float()
    net.layers[0].weight.grad = torch.ones(4, 4)
    former = {name: (value.dtype, value.data_ptr()) for name, value in net.state_dict().items()}
    captured = fxplug.trace(net, (x,), check=False)
    assert plainly == [None]
    assert former == {name: (value.dtype, value.data_ptr()) for name, value in net.state_dict().items()}
    assert net.layers[0].weight.grad.dtype is torch.float32
    torch.testing.assert_close(captured(x), expected)


@pytest.mark.parametrize("affine", [True, False])
def test_buffers_that_are_converted_are_as_before(plainly, affine):
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.BatchNorm1d(4, affine=affine)])

        def forward(self, x):
            for layer, other in zip(self.layers, self.layers, strict=True):
                layer.double()
                other.float()
            return x

    net = Halves().eval()
    former = {name: (value.dtype, id(value)) for name, value in net.named_buffers()}
    with pytest.raises(TraceError, match="running_mean"):
        fxplug.trace(net, (X[0],))
    assert plainly == [None]
    assert former == {name: (value.dtype, id(value)) for name, value in net.named_buffers()}


def test_a_number_that_hangs_on_elements_is_listened_to(plainly):
    def up_to_an_element(self, x):
        for number in range(int(x.sum() * 0) + 2):
            x = x + number
        return x

    net = net_of(up_to_an_element).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


def test_a_lookup_that_writes_to_its_weights_is_listened_to(plainly):
    net = nn.Sequential(nn.Embedding(5, 4, max_norm=0.5)).eval()
    fxplug.trace(net, (WORDS,))
    assert plainly == [None]


def test_effects_that_somebody_has_said_of_lookups_are_heard(plainly):
    effects.register_target(nn.Embedding, writes("state"))
    try:
        fxplug.trace(nn.Sequential(nn.Embedding(5, 4)).eval(), (WORDS,))
    finally:
        effects.unregister_target(nn.Embedding)
    assert plainly == [None]


@pytest.mark.parametrize(
    "config", [Looked(), Answering(), Guarded(), Described()], ids=lambda config: type(config).__name__
)
def test_configurations_with_code_of_their_own_are_listened_to(plainly, config):
    net = Language(config).eval()
    captured = fxplug.trace(net, (WORDS,))
    assert plainly == [None]
    torch.testing.assert_close(captured(WORDS), net(WORDS))


def test_a_function_of_the_program_that_a_module_holds_is_listened_to(plainly):
    calls = []

    def counted(x):
        calls.append(1)
        return x.tanh()

    net = net_of(functions_that_it_holds).eval()
    net.activation = counted
    fxplug.trace(net, (X,))
    assert plainly == [None]
    assert calls


class Choosing(nn.Module):
    """Holds a function under the name of a property, which Python asks first."""

    def __init__(self):
        super().__init__()
        self.__dict__["activation"] = F.relu

    @property
    def activation(self):
        return F.gelu if self.training else F.relu

    def forward(self, x):
        return self.activation(x)


def test_a_property_comes_before_the_function_that_it_hides(plainly):
    net = Choosing().eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    with pytest.raises(GuardError, match="training"):
        captured.train()(X)
    torch.testing.assert_close(captured.eval()(X), net(X))


def test_a_layer_that_somebody_has_exchanged_is_listened_to(plainly, monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: F.linear(x, self.weight) - 1)
    net = nn.Linear(4, 3).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


def test_a_method_of_torch_that_somebody_has_exchanged_is_listened_to(plainly, monkeypatch):
    def forwarded(self, inputs, weight, bias):
        return F.conv2d(inputs, weight * 2, bias, padding=1)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", forwarded)
    net = nn.Sequential(Filter(4)).eval()
    captured = fxplug.trace(net, (PICTURE,))
    assert plainly == [None]
    torch.testing.assert_close(captured(PICTURE), net(PICTURE))


def test_another_layer_in_a_module_is_looked_at(plainly):
    class Holding(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            self.inner.step(x)
            return x + 1

    class Stepping(nn.Module):
        def __init__(self, step):
            super().__init__()
            self.step = step

        def forward(self, x):
            return x

    alike = nn.Sequential(*(Holding(Stepping(nn.Linear(4, 4))) for _ in range(2))).eval()
    assert [fxplug.trace(alike, (X,))] == plainly
    plainly.clear()
    seen = []
    net = nn.Sequential(Holding(Stepping(nn.Linear(4, 4))), Holding(Stepping(seen.append))).eval()
    with pytest.raises(TraceError, match="step"):
        fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert not seen

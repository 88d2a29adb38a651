"""Captures on examples of programs that handle their modules as values: in pairs, slices, lists, and as arguments."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceWarning

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Named(nn.Module):
    """Has texts of its own, which hang on what it holds."""

    def __init__(self, size=4):
        super().__init__()
        self.size, self.inner = size, nn.Linear(size, size)

    def forward(self, x):
        return self.inner(x)

    def extra_repr(self):
        return f"size={self.size}"

    def __repr__(self):
        return self.__class__.__name__ + "(size=" + str(self.size) + f", {self.size:.2f})"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})
        self.pair = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.layer, self.named = nn.Linear(4, 4), Named()


def net_of(forward, **more):
    return type("Net", (Net,), {"forward": forward, **more})().eval()


def in_pairs(self, x):
    for layer, norm in zip(self.layers, self.norms, strict=True):
        x = norm(layer(x))
    return x


def numbered_pairs(self, x):
    found = []
    for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
        found.append(norm(layer(x)) * number)
    return torch.cat(found, 1)


def slices(self, x):
    for layer in self.layers[1:]:
        x = layer(x)
    return self.layers[-1](x) + self.pair[0](x)


def in_a_comprehension(self, x):
    return torch.stack([layer(x) for layer in self.layers])


def by_numbers_in_a_comprehension(self, x):
    return torch.cat([self.layers[i](x) * self.layers[i + 1](x) for i in range(2)], 1)


def as_a_sum(self, x):
    return sum((layer(x) for layer in self.layers), x)


def backwards(self, x):
    for layer in reversed(self.layers):
        x = layer(x)
    return x


def the_last_one(self, x):
    last = None
    for layer in self.layers:
        last = layer
    return last(x)


def one_of_two(self, x):
    layer = self.layer if x.shape[0] == 2 else self.pair
    return layer(x)


def in_a_list(self, x):
    steps = [self.layer, *self.layers]
    steps.append(self.pair)
    steps.extend(self.norms)
    for step in steps:
        x = step(x)
    return x


def in_a_dict(self, x):
    found = {name: head(x) for name, head in self.heads.items()}
    return found["a"] * self.heads["b"](x)


def values_that_are_numbered(self, x):
    for number, head in enumerate(self.heads.values()):
        x = head(x) + number
    return x


def applied(layer, x):
    return layer(x) + 1


def as_an_argument(self, x):
    return applied(self.layer, x) + applied(self.pair, x)


def applied_to(net, x):
    return net.layer(x)


def itself_as_an_argument(self, x):
    return applied_to(self, x) * 2


def how_many(self, x):
    return x * len(self.layers) if self.layers else x


def in_a_text(self, x):
    if f"{self.named}" == "":
        raise ValueError(f"bad {self.named}")
    return self.named(x)


@pytest.mark.parametrize(
    "forward",
    [
        *(in_pairs, numbered_pairs, slices, in_a_comprehension, by_numbers_in_a_comprehension, as_a_sum),
        *(backwards, the_last_one, one_of_two, in_a_list, in_a_dict, values_that_are_numbered),
        *(as_an_argument, itself_as_an_argument, how_many),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_modules_may_be_values(plainly, forward, check, listened_to):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,), check=check)
    assert plainly == [captured]
    assert captured.code == listened_to(net, X).code
    torch.testing.assert_close(captured(X * 2), net(X * 2))


def test_a_text_of_a_module_may_be_made_by_itself(plainly):
    net = net_of(in_a_text)
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X * 2), net(X * 2))


class Numbered(nn.Sequential):
    """Goes through itself, and hands itself on."""

    def forward(self, x):
        for number, layer in enumerate(self):
            x = layer(x) * (number + 1)
        return x


def test_a_container_may_go_through_itself(plainly, listened_to):
    net = Numbered(nn.Linear(4, 4), nn.Tanh()).eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert captured.code == listened_to(net, X).code
    torch.testing.assert_close(captured(X * 2), net(X * 2))


# -- what is listened to


def adds_a_layer(self, x):
    layers = self.layers
    layers.append(self.layer)
    return layers[-1](x)


def adds_layers_in_place(self, x):
    layers = self.layers
    layers += [self.layer]
    return layers[-1](x)


def exchanges_a_layer(self, x):
    layers = self.layers
    layers[0] = self.layer
    return layers[0](x)


def takes_a_layer(self, x):
    heads = self.heads
    return heads.pop("b")(x)


def clears_layers(self, x):
    heads = self.heads
    y = heads["a"](x)
    heads.clear()
    return y


def fills_layers(self, x):
    heads = self.heads
    heads.update({"c": self.layer})
    return heads["c"](x)


def trains_a_layer(self, x):
    layer = self.layer
    layer.train()
    return layer(x)


def converts_a_layer(self, x):
    layer = self.layer
    return layer.to(torch.float64)(x.double())


def halves(self, x):
    layer = self.layer
    return layer(x).double()


def reads_of_a_layer(self, x):
    layer = self.layer
    return x @ layer.weight


def reads_a_flag_of_a_layer(self, x):
    layer = self.layer
    return layer(x) if not layer.training else x


def calls_a_method_of_a_layer(self, x):
    layer = self.named
    return layer.forward(x)


def calls_a_slice(self, x):
    return self.pair[:1](x)


def returns_a_layer(self, x):
    return x + 1, self.layer


@pytest.mark.parametrize(
    "forward",
    [
        *(adds_a_layer, adds_layers_in_place, exchanges_a_layer, takes_a_layer, clears_layers, fills_layers),
        *(trains_a_layer, converts_a_layer, halves, reads_of_a_layer, reads_a_flag_of_a_layer),
        *(calls_a_method_of_a_layer, calls_a_slice),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_what_is_not_heard_of_is_listened_to(plainly, forward, check):
    net = net_of(forward)
    before = [(path, module, module.training) for path, module in net.named_modules()]
    held = [(name, value.dtype, value.clone()) for name, value in net.state_dict().items()]
    captured = error = None
    try:
        captured = fxplug.trace(net, (X,), check=check)
    except fxplug.TraceError as found:
        error = found
    assert plainly == [None]
    assert [(path, module, module.training) for path, module in net.named_modules()] == before
    for (name, dtype, value), (key, now) in zip(held, net.state_dict().items(), strict=True):
        assert (name, dtype) == (key, now.dtype)
        assert torch.equal(value, now)
    if error is None:
        torch.testing.assert_close(captured(X * 2), net_of(forward)(X * 2))


class Shaped(nn.Linear):
    """Has attributes under names that tensors have, too."""

    shape = (1, 1)

    def forward(self, x):
        return super().forward(x)


def reads_a_shape(self, x):
    layer = self.named
    return x * layer.shape[0]


@pytest.mark.parametrize("is_held", [True, False])
def test_what_modules_have_under_names_of_tensors_is_listened_to(plainly, is_held):
    net = net_of(reads_a_shape)
    net.named = Shaped(4, 4)
    if is_held:
        net.named.shape = (3, 3)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


class Counting(nn.Module):
    """Makes a text, and counts how often."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        return x + 1

    def extra_repr(self):
        self.count += 1
        return str(self.count)


class Recalling(Counting):
    extra_repr = nn.Module.extra_repr

    def __repr__(self):
        self.count += 1
        return "Recalling"


class Reading(Counting):
    extra_repr = nn.Module.extra_repr

    def __repr__(self):
        return "Reading(" + self.told() + ")"

    def told(self):
        self.count += 1
        return str(self.count)


class Trained(nn.Module):
    """Says whether it is trained."""

    def forward(self, x):
        return x + 1

    def extra_repr(self):
        return f"{self.training}"


class SaidToBeTrained(Trained):
    extra_repr = nn.Module.extra_repr

    def __repr__(self):
        return "Trained" + str(self.training)


@pytest.mark.parametrize("kind", [Trained, SaidToBeTrained])
def test_a_text_that_says_whether_a_module_is_trained_is_listened_to(plainly, kind):
    net = net_of(in_a_text)
    net.named = kind()
    captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


@pytest.mark.parametrize("kind", [Counting, Recalling, Reading])
def test_a_text_that_does_something_else_is_listened_to(plainly, kind):
    net = net_of(in_a_text)
    net.named = kind()
    with pytest.warns(TraceWarning, match=r"named\.count"):
        captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))

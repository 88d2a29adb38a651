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


def converts_what_a_layer_gives(self, x):
    layer = self.layer
    return layer(x).double()


def how_many(self, x):
    return x * len(self.layers) if self.layers else x


def by_class(self, x):
    for layer in self.pair:
        x = layer(x) if isinstance(layer, nn.Linear) else x - 1
    return x if isinstance(x, nn.Linear) else x + 1


def in_a_text(self, x):
    if f"{self.named}" == "":
        raise ValueError(f"bad {self.named}")
    return self.named(x)


@pytest.mark.parametrize(
    "forward",
    [
        *(in_pairs, numbered_pairs, slices, in_a_comprehension, by_numbers_in_a_comprehension, as_a_sum),
        *(backwards, the_last_one, one_of_two, in_a_list, in_a_dict, values_that_are_numbered),
        *(as_an_argument, converts_what_a_layer_gives, itself_as_an_argument, how_many, by_class),
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


def test_a_module_may_be_returned(plainly, listened_to):
    def returns_a_layer(self, x):
        return x + 1, self.layer

    net = net_of(returns_a_layer)
    captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [captured]
    assert captured.code == listened_to(net, X, check=False).code
    assert isinstance(captured(X)[1], nn.Linear)


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


# -- methods of modules that a module holds


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.bias, self.factor = nn.Linear(4, 4), nn.Parameter(torch.ones(4)), 2
        self.steps = [1, 2]

    def forward(self, x):
        return self.layer(x)

    def embedded(self, x):
        return self.layer(x) * self.factor + self.shift().view(1, 4)

    def shift(self):
        return self.bias * 2

    def embedded_in_training(self, x):
        return self.layer(x) if self.training else x

    def embedded_in_rows(self, x):
        return torch.stack([self.layer(row) for row in x if not self.training])

    def counted(self, x):
        self.factor += 1
        return x * self.factor

    def kept(self, x):
        self.steps.append(3)
        return x * len(self.steps)

    @staticmethod
    def shifted(x):
        return x + 1

    @property
    def fraction(self):
        return 0.5

    def halved(self, x):
        return x * self.fraction


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)

    def embedded(self, x):
        return self.inner.embedded(x) - 1


class Delegating(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer, self.scale = Inner(), Outer(), nn.Parameter(torch.full((4,), 2.0))
        self.layer = nn.Linear(4, 4)


def delegating(forward):
    return type("Delegating", (Delegating,), {"forward": forward})().eval()


def embeds(self, x):
    return self.inner.embedded(x) * self.scale.abs()


def embeds_deeper(self, x):
    y = self.outer.embedded(x) if self.inner.embedded(x).shape[1] == 4 else x
    return y + self.inner.shift()


def halves_by_a_property(self, x):
    return self.inner.halved(x)


def calls_forward(self, x):
    return self.inner.forward(x)


@pytest.mark.parametrize("forward", [embeds, embeds_deeper, halves_by_a_property])
@pytest.mark.parametrize("check", [True, False])
def test_methods_of_modules_may_be_called(plainly, forward, check, listened_to):
    net = delegating(forward)
    captured = fxplug.trace(net, (X,), check=check)
    assert plainly == [captured]
    assert captured.code == listened_to(net, X).code
    torch.testing.assert_close(captured(X * 2), net(X * 2))


NOISE = []


class Noisy(nn.Module):
    def __init__(self, is_noisy):
        super().__init__()
        self.is_noisy = is_noisy

    def forward(self, x):
        return x

    def heard(self, x):
        if self.is_noisy:
            NOISE.append(1)
        return x + 1


class Hearing(nn.Module):
    def __init__(self, is_noisy):
        super().__init__()
        self.inner = Noisy(is_noisy)

    def forward(self, x):
        return self.inner.heard(x)


@pytest.mark.filterwarnings("ignore::fxplug.errors.TraceWarning")
def test_methods_of_modules_are_looked_at_for_each_of_them(plainly):
    quiet = nn.Sequential(Hearing(False), Hearing(False)).eval()
    captured = fxplug.trace(quiet, (X,), check=False)
    assert plainly == [captured]
    noisy = nn.Sequential(Hearing(False), Hearing(True)).eval()
    fxplug.trace(noisy, (X,), check=False)
    assert plainly == [captured, None]
    assert NOISE == []


class Sized:
    """Counts how often it is measured."""

    def __init__(self):
        self.count = 0

    def __len__(self):
        self.count += 1
        return self.count


class Measured(nn.Module):
    def __init__(self, sized):
        super().__init__()
        self.sized = sized

    def forward(self, x):
        return x

    def measured(self, x):
        return x * len(self.sized)


class Measuring(nn.Module):
    def __init__(self, sized):
        super().__init__()
        self.inner = Measured(sized)

    def forward(self, x):
        return self.inner.measured(x)


def test_what_methods_read_of_modules_is_looked_at_for_each_of_them(plainly):
    net = nn.Sequential(Measuring([1, 2]), Measuring(Sized())).eval()
    with pytest.raises(fxplug.TraceError, match="FXP-T055"):
        fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert net[1].inner.sized.count == 0


def test_a_method_that_a_module_has_for_itself_is_listened_to(plainly):
    def shifts_by_itself(self, x):
        return x * self.inner.shift()

    net = delegating(shifts_by_itself)
    inner = net.inner
    object.__setattr__(inner, "shift", lambda: (inner.steps.append(1), inner.bias)[len(inner.steps) and 1])
    with pytest.raises(fxplug.TraceError, match="FXP-T055"):
        fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert inner.steps == [1, 2]


def depends_on_training(self, x):
    return self.inner.embedded_in_training(x)


def depends_on_training_inside(self, x):
    return self.inner.embedded_in_rows(x)


def counts(self, x):
    return self.inner.counted(x)


def keeps(self, x):
    return self.inner.kept(x)


def shifts(self, x):
    return self.inner.shifted(x)


def calls_forward_of_a_layer(self, x):
    return self.layer.forward(x)


def calls_what_is_held(self, x):
    return self.inner.own(x)


@pytest.mark.parametrize(
    "forward",
    [
        *(depends_on_training, depends_on_training_inside, shifts),
        *(calls_forward, calls_forward_of_a_layer, calls_what_is_held),
    ],
)
def test_other_methods_of_modules_are_listened_to(plainly, forward):
    net = delegating(forward)
    object.__setattr__(net.inner, "own", lambda x: x * 3)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X * 2), delegating_like(net, forward)(X * 2))


@pytest.mark.parametrize("forward", [counts, keeps])
def test_methods_of_modules_that_keep_something_are_refused(plainly, forward):
    net = delegating(forward)
    with pytest.raises(fxplug.TraceError, match="FXP-T055"):
        fxplug.trace(net, (X,))
    assert plainly == [None]
    assert (net.inner.factor, net.inner.steps) == (2, [1, 2])


def delegating_like(net, forward):
    other = delegating(forward)
    other.load_state_dict(net.state_dict())
    object.__setattr__(other.inner, "own", lambda x: x * 3)
    return other


def test_a_method_that_reads_whether_it_is_trained_is_guarded(plainly):
    net = delegating(depends_on_training)
    captured = fxplug.trace(net, (X,))
    captured.train()
    with pytest.raises(fxplug.GuardError):
        captured(X)


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


def takes_a_layer_of_a_list(self, x):
    layers = self.layers
    return layers.pop(0)(x)


def puts_layers_in(self, x):
    layers = self.layers
    layers.insert(0, self.layer)
    layers.extend([self.layer])
    return layers[0](x)


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


@pytest.mark.parametrize(
    "forward",
    [
        *(adds_a_layer, adds_layers_in_place, exchanges_a_layer, takes_a_layer, clears_layers, fills_layers),
        *(takes_a_layer_of_a_list, puts_layers_in),
        *(trains_a_layer, converts_a_layer, reads_of_a_layer, reads_a_flag_of_a_layer),
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


class Shaped(nn.Module):
    """Has something under a name that tensors have, too."""

    shape = (1, 1)

    def forward(self, x):
        return x + 1


class ShapedItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.shape = (3, 3)

    def forward(self, x):
        return x + 1


def reads_a_shape(self, x):
    layer = self.named
    return x * layer.shape[0]


@pytest.mark.parametrize("kind", [Shaped, ShapedItself])
def test_what_modules_have_under_names_of_tensors_is_listened_to(plainly, kind):
    net = net_of(reads_a_shape)
    net.named = kind()
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


class Filling(nn.Module):
    """Makes a text by methods that fill a list, or are told to a module in it."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), [1, 2]

    def forward(self, x):
        return self.layer(x) * len(self.calls)

    def extra_repr(self):
        self.calls.append(1)
        return "a"


class FillingByName(Filling):
    extra_repr = nn.Module.extra_repr

    def _get_name(self):
        self.calls.pop()
        return "Filling"


class Told(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = [1, 2]

    def forward(self, x):
        return x * len(self.calls)

    def told(self):
        self.calls.append(1)


class Telling(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Told()

    @property
    def calls(self):
        return self.inner.calls

    def forward(self, x):
        return self.inner(x)

    def extra_repr(self):
        inner = self.inner
        inner.told()
        return "a"


def of_its_own(kind):
    net = kind()
    if kind is Told:
        net.extra_repr = lambda: str(net.calls.append(1))
    return net


def in_the_text_of_an_error(self, x):
    torch._assert(x.ndim == 2, f"bad {self.named}")
    return self.named(x)


@pytest.mark.parametrize("kind", [Filling, FillingByName, Telling, Told])
@pytest.mark.parametrize("forward", [in_a_text, in_the_text_of_an_error])
def test_a_text_that_fills_something_is_refused(plainly, kind, forward):
    net = net_of(forward)
    net.named = of_its_own(kind)
    with pytest.raises(fxplug.TraceError, match="FXP-T055"):
        fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert net.named.calls == [1, 2]


class Counted(nn.Module):
    """Has a text for itself, which grows."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.extra_repr = self.more

    def forward(self, x):
        return x + 1

    def more(self):
        vars(self)["count"] += 1
        return "y" * self.count


def measures_a_text(self, x):
    return self.named(x) * len(f"{self.named}")


def test_a_text_that_a_module_has_for_itself_is_listened_to(plainly):
    net = net_of(measures_a_text)
    net.named = Counted()
    with pytest.raises(fxplug.TraceError, match="FXP-T055"):
        fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert net.named.count == 0


class Sliced(nn.ModuleList):
    """Changes its modules where a slice is made of it, or where one goes."""

    def __init__(self, modules):
        super().__init__(modules)
        for module in self:
            module.tags.append(1)

    def forward(self, x):
        return x


class Leaving(nn.ModuleList):
    def forward(self, x):
        return x

    def __del__(self):
        for module in self._modules.values():
            module.tags.append(1)


class Tagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.tags = []

    def forward(self, x):
        return x + 1


@pytest.mark.filterwarnings("ignore::fxplug.errors.TraceWarning")
@pytest.mark.parametrize("kind", [Sliced, Leaving])
def test_slices_of_containers_of_ones_own_are_listened_to(plainly, kind):
    net = net_of(slices)
    net.layers = kind([Tagged() for _ in range(3)])
    before = [list(module.tags) for module in net.layers]
    captured = fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert [module.tags for module in net.layers] == before
    torch.testing.assert_close(captured(X), net(X))


class FindingOthers(nn.Sequential):
    """Is asked for its modules by torch, and finds others each time."""

    def __init__(self, *modules):
        super().__init__(*modules)
        self.count = [0]

    def _get_item_by_idx(self, iterator, idx):
        self.count[0] += 1
        return super()._get_item_by_idx(iterator, self.count[0] % 2)


class CountingPlaces(nn.ModuleList):
    def __init__(self, modules):
        super().__init__(modules)
        self.count = [0]

    def forward(self, x):
        return x

    def _get_abs_string_index(self, idx):
        self.count[0] += 1
        return super()._get_abs_string_index(self.count[0] % 2)


class ExtendedOtherwise(nn.ModuleList):
    def __init__(self, modules):
        self.count = [0]
        super().__init__(modules)

    def forward(self, x):
        return x

    def extend(self, modules):
        self.count[0] += 1
        return super().extend(list(modules)[:: 1 if self.count[0] % 2 else -1])


class OtherKeys(nn.ModuleDict):
    def __init__(self, modules):
        super().__init__(modules)
        self.count = [0]

    def forward(self, x):
        return x

    def keys(self):
        self.count[0] += 1
        return ["a" if self.count[0] % 2 else "b"]


def takes_one(self, x):
    layer = self.held[0]
    return layer(x)


def takes_some(self, x):
    for layer in self.held[1:]:
        x = layer(x)
    return x


def takes_all_by_name(self, x):
    for layer in dict(self.held).values():
        x = layer(x)
    return x


@pytest.mark.parametrize(
    ("forward", "make"),
    [
        (takes_one, lambda: FindingOthers(nn.Linear(4, 4), nn.ReLU())),
        (takes_one, lambda: CountingPlaces([nn.Linear(4, 4), nn.ReLU()])),
        (takes_all_by_name, lambda: OtherKeys({"a": nn.Linear(4, 4), "b": nn.ReLU()})),
    ],
    ids=["others", "places", "keys"],
)
def test_containers_that_find_modules_otherwise_are_refused(plainly, forward, make):
    net = net_of(forward)
    net.held = make()
    before = list(net.held.count)
    with pytest.raises(fxplug.TraceError, match="FXP-T055"):
        fxplug.trace(net, (X,), check=False)
    assert plainly == [None]
    assert net.held.count == before


def test_containers_that_are_filled_otherwise_are_listened_to(plainly):
    net = net_of(takes_some)
    net.held = ExtendedOtherwise([nn.ReLU(), nn.Linear(4, 4), nn.ReLU()])
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


class Written:
    """Counts how often it is written down."""

    def __init__(self):
        self.count = 0

    def __format__(self, how):
        self.count += 1
        return "z" * self.count


def test_what_a_layer_holds_may_be_no_object_where_its_text_is_made(plainly):
    net = net_of(measures_a_text)
    net.named = nn.Linear(4, 4)
    net.named.in_features = Written()
    with pytest.raises(fxplug.TraceError, match="FXP-T055"):
        fxplug.trace(net, (X,), check=False)
    assert plainly == [None]


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

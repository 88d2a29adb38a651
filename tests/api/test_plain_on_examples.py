"""Programs that are plain where they run on examples: with functions, loops and containers of their own."""

from __future__ import annotations

import copy
import enum
import warnings
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxplug
from fxplug.api import plain_answers, plain_capture
from fxplug.capture.plain_code import reads_of, reads_of_function
from fxplug.errors import TraceWarning

X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


class Way(str, enum.Enum):
    FAR = "far"
    NEAR = "near"


class Strange(enum.Enum):
    """One whose members are equal to everything."""

    ONE = 1

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


class Rows(nn.Sequential):
    def forward(self, x):
        found = [x]
        for layer in self:
            found.append(layer(found[-1]))
        return found


class Named(nn.ModuleDict):
    def forward(self, x):
        for name, layer in self.items():
            x = layer(x) + len(name)
        return x


class Children(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.rows = Rows(nn.Linear(4, 4), nn.ReLU())
        self.named = Named({"one": nn.Linear(4, 4), "three": nn.Tanh()})
        self.inner = Children()
        self.pairs = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))
        self.scale = nn.Parameter(torch.linspace(1, 2, 4))
        self.register_buffer("missing", None)
        self.dims, self.names, self.count, self.way = [0, 2, 1], {"a": 2}, 2, Way.NEAR
        self.strange = Strange.ONE

    def forward(self, x):
        return self.layer(x)


def net_of(forward):
    net = type("Net", (Net,), {"forward": forward})()
    return net.eval().requires_grad_(False)


def scaled(x, scale=None, *, twice=False):
    if scale is not None:
        x = x * scale
    return x + x if twice else x


def both(x, other):
    return scaled(x, 2.0) + scaled(other, twice=True)


def pads(sizes, step):
    return tuple((step - size % step) % step for size in sizes)


def calls_functions(self, x):
    return both(self.layer(x), x)


def goes_through_numbers(self, x):
    found = []
    for index in range(self.count):
        found.append(self.norm(x) + index)  # noqa: PERF401 - on purpose
    return torch.stack(found).sum(dim=0)


def goes_through_pairs(self, x):
    total = x
    left, right = x.chunk(2, dim=-1)
    for index, (part, weight) in enumerate(zip((left, right), (2.0, 3.0), strict=True)):
        total = total + part.mean() * weight + index
    return total


def goes_through_layers_with_their_places(self, x):
    for index, layer in enumerate(self.layers):
        x = layer(x) if index != 1 else layer(torch.relu(x))
    return x


def calls_layers_with_what_is_computed(self, x):
    for layer in self.layers:
        x = layer(torch.cat([x[..., :2], x[..., 2:] * 2], dim=-1))
    return x


def calls_layers_by_places(self, x):
    return (
        self.layers[0](self.layers[-1](x + 1)) + self.layers[self.count - 1](x)
        if False
        else self.layers[1](x)
    )


def calls_layers_in_a_loop_by_places(self, x):
    for index in range(self.count):
        x = self.layers[index](x)
    return x


def calls_containers_of_its_own(self, x):
    first, second, third = self.rows(x)
    return self.inner(first) + self.named(second + third)


def fills_containers(self, x):
    found = OrderedDict()
    for index, part in enumerate([x, self.layer(x)]):
        found[f"part {index}"] = part
    found["last"] = [value * 2 for value in found.values()][-1]
    return found


def comprehends(self, x):
    scale = x.mean()
    parts = [part * scale for part in (x, x + 1) if part is not None]
    named = {str(index): part for index, part in enumerate(parts)}
    return sum(part for part in named.values()) + len(pads((3, 5), 2))


def compares_with_none(self, x):
    y = None if self.count == 2 else x
    z = self.layer(x)
    if y is None and z is not None:
        y = x if self.missing is None else self.missing
    return y + z


def asks_for_classes(self, x):
    parts = [x] if isinstance(x, torch.Tensor) else x
    y = self.norm(parts[0])
    return y if isinstance(y, (tuple, list)) else y * 2


def asks_for_a_class_of_numbers(self, x):
    return x + 1 if isinstance(x.size(0), int) else x


def asks_for_dtypes(self, x):
    y = self.layer(x)
    if y.dtype == x.dtype and y.device == self.layer.weight.device:
        y = y.to(self.norm.weight.dtype)
    return (
        y * torch.ones(4, dtype=torch.float32).shape[0]
        if False
        else y + (1 if y.dtype.is_floating_point else 0)
    )


def reads_layers(self, x):
    return F.linear(x, self.layer.weight, self.layer.bias) * self.layer.in_features + self.norm.weight


def reads_constants(self, x):
    for dim in self.dims[:1]:
        x = x.sum(dim, keepdim=True) if self.way == Way.NEAR else x
    return x.permute(self.dims) * self.names["a"] if "a" in self.names else x


def asks_for_sizes_of_results(self, x):
    for _ in range(2):
        x = x + self.norm(x)
        x = x * 2 if x.size(1) > 2 else x
    return x


PLAIN = [
    *(calls_functions, goes_through_numbers, goes_through_pairs, goes_through_layers_with_their_places),
    *(calls_layers_with_what_is_computed, calls_layers_by_places, calls_layers_in_a_loop_by_places),
    *(calls_containers_of_its_own, fills_containers, comprehends, compares_with_none, asks_for_classes),
    *(asks_for_a_class_of_numbers, asks_for_dtypes, reads_layers, reads_constants, asks_for_sizes_of_results),
]


def answers(model, x):
    """Return what a model answers, and None where it fails."""
    try:
        return model(x)
    except (fxplug.GuardError, RuntimeError):
        return None


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("forward", PLAIN)
def test_what_is_plain_is_captured_as_it_is_where_it_is_listened_to(plainly, forward, check, listened_to):
    net, given = net_of(forward), X.clone()
    state, dims, names = copy.deepcopy(net.state_dict()), [*net.dims], dict(net.names)
    captured = fxplug.trace(net, (given,), check=check)
    assert plainly == [captured]
    other = listened_to(net, given, check=check)
    captured.graph.lint()
    assert torch.equal(given, X)
    assert (net.dims, net.names) == (dims, names)
    torch.testing.assert_close(net.state_dict(), state, rtol=0, atol=0)
    assert {str(guard) for guard in other.guards} - {str(guard) for guard in captured.guards} <= {
        "x is not None",
        "type(x) is torch.Tensor",
    }
    for x in (X, torch.randn(5, 2, 4), torch.randn(1, 3, 4), X.double()):
        found, listened = answers(captured, x), answers(other, x)
        assert (found is None) == (listened is None)
        if found is not None:
            torch.testing.assert_close(found, net(x))
    assert answers(captured, X) is not None


REFUSED = {asks_for_classes: "FXP-T040", asks_for_dtypes: "FXP-T001", asks_for_sizes_of_results: "FXP-T001"}
"""What no trace without examples can answer."""


@pytest.mark.parametrize("forward", [forward for forward in PLAIN if forward not in REFUSED])
def test_without_examples_all_is_traced_as_before(forward):
    net = net_of(forward)
    torch.testing.assert_close(fxplug.symbolic_trace(net)(X), net(X))


@pytest.mark.parametrize(("forward", "code"), REFUSED.items())
def test_without_examples_nothing_is_told(forward, code):
    with pytest.raises(fxplug.TraceError) as raised:
        fxplug.symbolic_trace(net_of(forward))
    assert raised.value.code == code


def test_functions_and_methods_are_read_apart():
    def function(x):
        return x.relu().shape

    as_method, as_function = reads_of(function.__code__), reads_of_function(function.__code__)
    assert as_method is not None
    assert as_function is not None
    assert (as_method.called, as_method.methods) == ({"relu"}, frozenset())
    assert (as_function.called, as_function.methods) == (frozenset(), {"relu"})


# -- what is not


CALLS = []
SETTINGS = {"scale": 2.0}


def notes(x):
    CALLS.append(1)
    return x


def reads_settings(x):
    return x * SETTINGS["scale"]


def fills(x, into=[]):  # noqa: B006 - on purpose
    into.append(1)
    return x * len(into)


def around(function):
    def called(x):
        return function(x) + 1

    return called


wrapped = around(torch.relu)


def calls_what_changes_globals(self, x):
    return notes(self.layer(x))


def calls_what_reads_globals(self, x):
    return reads_settings(self.layer(x))


def calls_what_has_a_list_for_a_default(self, x):
    return fills(self.layer(x))


def calls_a_closure(self, x):
    return wrapped(x)


def compares_layers(self, x):
    for layer in self.layers:
        x = layer(x) if layer is not self.layers else x
    return x


def compares_values(self, x):
    y = x.contiguous()
    return x + 1 if y is x else x


def compares_with_what_is_equal_to_all(self, x):
    return x if self.strange == Strange.ONE else x + 1


def compares_with_true(self, x):
    same = x.size(0) == 2
    return x + 1 if same is True else x


def calls_parts_of_layers(self, x):
    for pair in self.pairs:
        x = pair[0](x)
    return x


def asks_what_attention_returns(self, x):
    weights = self.layer.weight, self.layer.bias
    packed, bias = torch.cat([self.layer.weight] * 3), torch.cat([self.layer.bias] * 3)
    both = F.multi_head_attention_forward(
        x, x, x, 4, 2, packed, bias, None, None, False, 0.0, *weights, training=False, need_weights=False
    )
    found = both[1]
    return both[0] if found is None else both[0] * 2


def counted(x):
    return x * 2


counted.scaled = scaled


def calls_an_attribute_of_a_function(self, x):
    function = counted
    return function(x)


def asks_for_what_is_none(self, x):
    y = self.layer(x)
    return y if y.grad is None else y.grad


def asks_for_a_value(self, x):
    return x + 1 if int(x.sum()) > 0 else x


@pytest.mark.parametrize(
    "forward",
    [
        *(calls_a_closure, calls_what_reads_globals, compares_layers, asks_for_what_is_none),
        *(compares_values, compares_with_what_is_equal_to_all),
        *(compares_with_true, calls_parts_of_layers, asks_what_attention_returns),
        calls_an_attribute_of_a_function,
        asks_for_a_value,
    ],
)
def test_other_programs_are_listened_to(plainly, forward, listened_to):
    net = net_of(forward)
    captured = fxplug.trace(net, (X,))
    assert plainly == [None]
    torch.testing.assert_close(captured(X), net(X))


def test_functions_that_keep_something_are_listened_to_and_said(plainly):
    CALLS.clear()
    with pytest.warns(TraceWarning, match="changes what is in the global 'CALLS'"):
        fxplug.trace(net_of(calls_what_changes_globals), (X,))
    with pytest.raises(fxplug.TraceError, match="default"):
        fxplug.trace(net_of(calls_what_has_a_list_for_a_default), (X,))
    assert plainly == [None, None]
    assert (CALLS, fills.__defaults__) == ([], ([],))


def fills_its_list(self, x):
    self.dims.append(3)
    return x * len(self.dims)


def adds_to_its_list(self, x):
    dims = self.dims
    dims += [3]
    return x * len(dims)


def sets_in_its_dict(self, x):
    names = self.names
    names["a"] = names["a"] + 1
    return x * names["a"]


def sorts_its_list_and_fails(self, x):
    dims = self.dims
    dims.sort()
    return x.view(7, 7)


@pytest.mark.parametrize(
    "forward", [adds_to_its_list, fills_its_list, sets_in_its_dict, sorts_its_list_and_fails]
)
def test_containers_of_constants_that_a_program_changes_are_put_back(plainly, forward):
    net = net_of(forward)
    with pytest.raises((fxplug.TraceError, RuntimeError)):
        fxplug.trace(net, (X,))
    assert plainly == [None]
    assert (net.dims, net.names) == ([0, 2, 1], {"a": 2})


def test_modules_of_one_class_with_other_containers_are_looked_at_each(plainly):
    class Part(nn.Module):
        def __init__(self, dims):
            super().__init__()
            self.dims = dims

        def forward(self, x):
            return x.permute(self.dims)

    class Changing(Part):
        def forward(self, x):
            dims = self.dims
            dims.reverse()
            return x.permute(dims)

    net = nn.Sequential(Part((0, 2, 1)), Part([1, 0, 2]))
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X), net(X))
    with pytest.raises(fxplug.TraceError):
        fxplug.trace(nn.Sequential(Part((0, 2, 1)), Changing([1, 0, 2])), (X,))


# -- what is told without a run


def tells_a_smaller_operand(self, x):
    y = x.mean(dim=1, keepdim=True) * x
    return y + 1 if y.size(1) == 3 else y


def tells_a_class_that_is_a_tuple(self, x):
    y = torch.max(x, dim=1)
    return y[0] if isinstance(y, tuple) else y


def tells_a_dtype_of_two(self, x):
    y = torch.add(x, x.double())
    return y.float() if y.dtype == torch.float64 else y


@pytest.mark.parametrize(
    "forward", [tells_a_class_that_is_a_tuple, tells_a_dtype_of_two, tells_a_smaller_operand]
)
def test_what_is_told_wrongly_is_found_out_by_the_run(forward):
    net, given = net_of(forward), X.clone()
    captured = fxplug.trace(net, (given,), check=False)
    assert torch.equal(given, X)
    for x in (X, torch.randn(4, 3, 4), torch.randn(2, 1, 4)):
        found = answers(captured, x)
        if found is not None:
            torch.testing.assert_close(found, net(x))
    assert answers(captured, X) is not None


class Stretching(nn.Module):
    def forward(self, small, x):
        y = small * x
        return y + 1 if y.size(0) == 2 else y


@pytest.mark.parametrize(
    ("net", "inputs"),
    [(net_of(tells_a_dtype_of_two), (X,)), (Stretching(), (X[:1].clone(), X))],
)
def test_a_program_told_wrongly_is_traced_once_more(plainly, monkeypatch, net, inputs):
    told = []
    made = plain_capture.PlainAnswers
    monkeypatch.setattr(
        plain_capture, "PlainAnswers", lambda *args, tells: told.append(tells) or made(*args, tells=tells)
    )
    captured = fxplug.trace(net, inputs, check=False)
    assert plainly == [captured]
    assert told == [True, False]
    torch.testing.assert_close(captured(*inputs), net(*inputs))


# -- inputs


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask=None, *, flag=True, other=None):
        y = self.layer(x)
        if mask is not None:
            y = y * mask
        return y if flag else y + 1


def test_inputs_that_are_left_out_are_what_they_are_by_default(plainly, listened_to):
    net = Optional().eval()
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert [node.name for node in captured.graph.nodes][:4] == ["x", "mask", "flag", "other"]
    other = listened_to(net, X)
    assert {"mask is None", "flag is True", "other is None"} <= {str(guard) for guard in captured.guards}
    assert {str(guard) for guard in other.guards} == {str(guard) for guard in captured.guards}
    torch.testing.assert_close(captured(X), net(X))
    torch.testing.assert_close(captured(X, None, flag=True), net(X))
    for args, kwargs in (((X, torch.ones(4)), {}), ((X,), {"flag": False}), ((X,), {"other": X})):
        with pytest.raises(fxplug.GuardError):
            captured(*args, **kwargs)


def test_an_input_that_may_be_compared_with_none_is_none_no_more():
    def forward(self, x):
        return self.layer(torch.ones(4)) if x is None else self.layer(x)

    captured = fxplug.trace(net_of(forward), (X,))
    with pytest.raises(fxplug.GuardError, match="x is not None"):
        captured(None)


def test_an_input_whose_class_is_asked_for_has_that():
    captured = fxplug.trace(net_of(asks_for_classes), (X,))
    with pytest.raises(fxplug.GuardError, match=r"type\(x\) is torch\.Tensor"):
        captured([X])


def asked_by_a_function(x, mask):
    if mask is not None:
        x = x * 2
    return x[mask]


class AskingInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = OptionalIndex()

    def forward(self, x, index=None):
        return self.inside(x, index)


class OptionalIndex(nn.Module):
    def forward(self, x, index=None):
        if index is not None:
            x = x * 2
        return x[index]


class AskingInFunctions(nn.Module):
    def forward(self, x, mask=None):
        return asked_by_a_function(x, mask)


class AskingNothing(nn.Module):
    def forward(self, x, index=None):
        return x[index]


@pytest.mark.parametrize("kind", [AskingInFunctions, AskingInside, AskingNothing])
@pytest.mark.parametrize("way", ["plain", "listened"])
def test_an_optional_input_that_is_given_may_not_be_left_out(plainly, kind, way, listened_to):
    net, index = kind(), torch.tensor([0, 1])
    captured = fxplug.trace(net, (X, index)) if way == "plain" else listened_to(net, X, index)
    assert plainly == ([captured] if way == "plain" else [])
    torch.testing.assert_close(captured(X, index), net(X, index))
    with pytest.raises(fxplug.GuardError, match="is not None"):
        captured(X)


class AskingOfRequired(nn.Module):
    def forward(self, x, mask):
        return asked_by_a_function(x, mask)


@pytest.mark.parametrize("way", ["plain", "listened"])
def test_what_an_index_may_be_is_not_taken_for_what_fails(way, listened_to):
    net, index = AskingOfRequired(), torch.tensor([0, 1])
    captured = fxplug.trace(net, (X, index)) if way == "plain" else listened_to(net, X, index)
    with pytest.raises(fxplug.GuardError, match="mask is not None"):
        captured(X, None)


def asks_in_a_comprehension(self, x):
    return x * 2 if all(isinstance(value, torch.Tensor) for value in (x, x + 1)) else x * 3


def test_a_class_asked_for_in_a_comprehension_is_guarded(plainly):
    captured = fxplug.trace(net_of(asks_in_a_comprehension), (X,))
    assert plainly == [captured]
    assert "type(x) is torch.Tensor" in {str(guard) for guard in captured.guards}


@pytest.mark.parametrize(
    "layer", [nn.MaxPool1d(2, return_indices=True), nn.AdaptiveMaxPool1d(2, return_indices=True)]
)
def test_a_layer_that_returns_two_values_is_no_tensor(layer):
    def forward(self, x):
        y = self.layer(x)
        return y if isinstance(y, torch.Tensor) else y[0] * 10

    net = net_of(forward)
    net.layer = layer
    captured = fxplug.trace(net, (X,), check=False)
    torch.testing.assert_close(captured(X), net(X))


def is_said(net):
    """Return whether a program that keeps something is refused, or warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            fxplug.trace(net, (X,))
        except fxplug.TraceError:
            return True
    return bool(said)


def fills_what_a_layer_holds(self, x):
    self.layer.cache.append(x)
    return self.layer(x)


def fills_what_a_module_holds(self, x):
    cache = self.inner.cache
    cache["x"] = x
    return self.layer(x)


@pytest.mark.parametrize("forward", [fills_what_a_layer_holds, fills_what_a_module_holds])
def test_containers_that_layers_hold_are_listened_to(plainly, forward, listened_to):
    net = net_of(forward)
    net.layer.cache, net.inner.cache = [], {}
    assert is_said(net)
    assert plainly == [None]
    assert (net.layer.cache, net.inner.cache) == ([], {})


class Holding(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = held

    def forward(self, x):
        held = self.held
        if held is None:
            return x
        held.append(1)
        return x * len(held)


def test_a_second_module_of_a_class_may_hold_a_list_where_the_first_holds_none(plainly):
    net = nn.Sequential(Holding(None), Holding([1]))
    with pytest.raises(fxplug.TraceError, match="keeps something in"):
        fxplug.trace(net, (X,))
    assert plainly == [None]
    assert net[1].held == [1]


class Counting(enum.Enum):
    ONE = 1

    def count(self):
        CALLS.append(self)
        return len(CALLS)


class Ordered(enum.Enum):
    ONE = 1

    def __lt__(self, other):
        CALLS.append(self)
        return True


def calls_a_member(self, x):
    way = self.way
    return x * way.count()


def orders_members(self, x):
    return x * 2 if self.way < 3 else x


@pytest.mark.parametrize(
    ("forward", "member"), [(calls_a_member, Counting.ONE), (orders_members, Ordered.ONE)]
)
def test_members_of_enumerations_with_code_are_listened_to(plainly, forward, member, listened_to):
    CALLS.clear()
    net = net_of(forward)
    net.way = member
    assert is_said(net)
    assert plainly == [None]
    assert CALLS == []


def test_what_hides_a_method_of_one_module_counts(plainly):
    def none(*args):
        CALLS.append(1)
        return []

    CALLS.clear()
    net = nn.Sequential(Children(), Children())
    vars(net[1])["children"] = none
    with pytest.warns(TraceWarning):
        fxplug.trace(net, (X,))
    assert plainly == [None]
    assert CALLS == []


def asks_often(self, x):
    count = x.shape[0]
    for _ in range(self.count):
        count = count + 1
        if count > 3:
            x = x + 1
    return x


def test_questions_about_one_number_are_looked_at_once(plainly, monkeypatch):
    net = net_of(asks_often)
    net.count = 60
    looked = []
    original = plain_answers._numbers_behind
    monkeypatch.setattr(plain_answers, "_numbers_behind", lambda node: looked.append(node) or original(node))
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    assert len(looked) < 6 * net.count
    torch.testing.assert_close(captured(X), net(X))


class OptionalAndAsking(nn.Module):
    def forward(self, x, mask=None):
        y = x @ x.transpose(-2, -1)
        return y * 2 if y.size(1) == 3 else y


def test_inputs_that_are_left_out_take_part_in_a_run_for_an_answer(plainly):
    net = OptionalAndAsking()
    captured = fxplug.trace(net, (X,))
    assert plainly == [captured]
    torch.testing.assert_close(captured(X), net(X))

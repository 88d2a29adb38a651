"""Captures on examples down to functions: what layers of torch record is learned once, and written down again."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fxplug
from fxplug.api import plain_capture
from fxplug.capture.examples import learning
from fxplug.capture.layer_records import LayerRecords, Part, record_of_graph
from fxplug.capture.plain_programs import MissedProgramError
from fxplug.errors import GuardError
from fxplug.ir import RegionEntry
from fxplug.ir.guards import StateGuard
from fxplug.plugins import Config, PluginManager, TraceConfig

MANAGER = PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))), candidates=())


class Net(nn.Module):
    """Calls a layer first, in the middle of a line, and once more."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer
        self.act = nn.ReLU()

    def forward(self, x):
        y = self.act(self.layer(x))
        return y + 1


def captured(net, *args, check=False):
    return fxplug.trace(net, args, check=check, manager=MANAGER)


def watched(net, *args):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fxplug.api.capturing.capture_plainly", lambda *args: None)
        return captured(net, *args)


def described(module):
    nodes = [
        (node.op, node.name, node.target, node.args, node.kwargs, node.type, node.region, node.meta)
        for node in module.graph.nodes
    ]
    places = [node.stack_trace for node in module.graph.nodes]
    return str(nodes), places, module.code, module.guards, list(module.state_dict()), repr(module)


LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (5, 2, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9, 9)),
    "conv2d of one picture": (lambda: nn.Conv2d(4, 6, 3, bias=False), (4, 9, 9)),
    "conv2d valid": (lambda: nn.Conv2d(4, 6, (3, 5), dilation=2, padding="valid"), (1, 4, 9, 9)),
    "conv2d reflect": (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), (1, 4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(4, 2, 2), (1, 4, 3, 3, 3)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(4).eval(), (3, 4)),
    "batch norm 1d with time": (lambda: nn.BatchNorm1d(4).eval(), (3, 4, 5)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(4, eps=1e-3).eval(), (3, 4, 5, 5)),
    "batch norm 2d by counts": (lambda: nn.BatchNorm2d(4, momentum=None).eval(), (3, 4, 5, 5)),
    "batch norm 2d without weights": (lambda: nn.BatchNorm2d(4, affine=False).eval(), (3, 4, 5, 5)),
    "batch norm 2d of the batch": (lambda: nn.BatchNorm2d(4, track_running_stats=False).eval(), (3, 4, 5, 5)),
    "batch norm 3d": (lambda: nn.BatchNorm3d(4).eval(), (1, 4, 2, 2, 2)),
    "layer norm": (lambda: nn.LayerNorm((3, 4)), (2, 3, 4)),
    "layer norm without weights": (lambda: nn.LayerNorm(4, elementwise_affine=False), (2, 3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "flatten": (nn.Flatten, (2, 3, 4)),
    "flatten some": (lambda: nn.Flatten(0, 1), (2, 3, 4)),
    "identity": (nn.Identity, (2, 3)),
    "dropout": (lambda: nn.Dropout(0.3).eval(), (2, 3)),
    "dropout2d": (lambda: nn.Dropout2d(0.3).eval(), (2, 3, 4, 4)),
    "max pool 1d": (lambda: nn.MaxPool1d(2), (1, 2, 6)),
    "max pool 2d": (lambda: nn.MaxPool2d((2, 3), ceil_mode=True), (1, 2, 6, 6)),
    "avg pool 1d": (lambda: nn.AvgPool1d(2), (1, 2, 6)),
    "avg pool 2d": (lambda: nn.AvgPool2d(2, divisor_override=3), (1, 2, 6, 6)),
    "adaptive pool 1d": (lambda: nn.AdaptiveAvgPool1d(2), (1, 2, 6)),
    "adaptive pool 2d": (lambda: nn.AdaptiveAvgPool2d((1, None)), (1, 2, 6, 6)),
    **{
        kind.__name__: (kind, (2, 3))
        for kind in (
            *(nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU),
            *(nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Tanh),
        )
    },
    "in place": (lambda: nn.ReLU(inplace=True), (2, 3)),
    "gelu by tanh": (lambda: nn.GELU(approximate="tanh"), (2, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("check", [True, False])
def test_what_is_written_down_is_what_the_layer_does(plainly, name, check):
    make, sizes = LAYERS[name]
    net, x = Net(make()), torch.randn(sizes)
    plain = captured(net, x.clone(), check=check)
    assert plain is plainly[0]
    assert described(plain) == described(watched(net, x.clone()))
    torch.testing.assert_close(plain(x.clone()), net(x.clone()), rtol=0, atol=0)


def test_every_layer_that_is_learned_is_tested():
    tested = {type(make()) for make, _ in LAYERS.values()}
    assert tested == set(learning._SIZES)


class Block(nn.Module):
    def __init__(self, count) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(count, count, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(count)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(count, count, 1)
        self.shared = self.conv2
        self.pair = nn.Sequential(OrderedDict(a=nn.BatchNorm2d(count), b=nn.Hardswish()))

    def forward(self, x):
        out = self.relu(
            self.bn1(
                self.conv1(x),
            )
        )
        return self.tail(out) + x

    def tail(self, out):
        return self.pair(self.shared(self.conv2(out)))


def test_a_network_is_the_same_down_to_functions(plainly):
    net = nn.Sequential(Block(4), nn.Sequential(Block(4), Block(4)), nn.Flatten(), nn.Linear(4, 2)).eval()
    x = torch.randn(2, 4, 1, 1)
    plain = captured(net, x, check=True)
    assert plain is plainly[0]
    assert described(plain) == described(watched(net, x))
    assert sum("dim()" in str(guard) for guard in plain.guards) == 1
    assert sum("training" in str(guard) for guard in plain.guards) == 7


def test_it_says_no_to_inputs_and_modes_that_it_was_not_captured_for(plainly):
    net = Net(nn.BatchNorm2d(4)).eval()
    plain = captured(net, torch.randn(2, 4, 3, 3))
    assert plain is plainly[0]
    plain(torch.randn(5, 4, 1, 2))
    with pytest.raises(GuardError, match=r"x\.dim\(\) == 4.*_check_input_dim"):
        plain(torch.randn(2, 4, 3))
    with pytest.raises(ValueError, match="expected 4D"):
        net(torch.randn(2, 4, 3))
    plain.train()
    with pytest.raises(GuardError, match="training is False"):
        plain(torch.randn(2, 4, 3, 3))


@pytest.mark.parametrize("values", [(1, True, 1.0), (0, False, 0.0, -0.0)])
def test_settings_that_are_equal_are_told_apart(plainly, values):
    for value in values:
        plain = captured(Net(nn.ELU(value)), torch.randn(2, 3))
        assert plain is plainly[-1]
        (node,) = plain.graph.find_nodes(op="call_function", target=functional.elu)
        assert repr([*node.args, *node.kwargs.values()][1]) == repr(value)


def test_a_setting_that_is_assigned_later_counts(plainly):
    net = Net(nn.Linear(4, 4))
    captured(net, torch.randn(2, 4))
    net.act.inplace = True
    net.layer.bias = None
    plain = captured(net, torch.randn(2, 4))
    assert plain is plainly[-1]
    assert plain.code == watched(net, torch.randn(2, 4)).code
    assert "inplace = True" in plain.code
    assert "bias" not in plain.code


class Hears(nn.Parameter):
    """A weight that hears of calls."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class HearsToo(torch.Tensor):
    """A buffer that hears of calls."""


def with_buffer():
    layer = nn.BatchNorm1d(4).eval()
    layer.running_mean = torch.rand(4).as_subclass(HearsToo)
    return layer


def tied():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return net


def with_method():
    layer = nn.Conv2d(4, 4, 1)
    layer._conv_forward = lambda x, weight, bias: functional.conv2d(x, weight * 2, bias)
    return layer


def with_weight():
    layer = nn.Linear(4, 4)
    layer.weight = Hears(layer.weight.detach())
    return layer


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        pytest.param(tied, (2, 4), id="tied"),
        pytest.param(with_method, (1, 4, 2, 2), id="a method of its own"),
        pytest.param(with_weight, (2, 4), id="a weight that hears"),
        pytest.param(with_buffer, (3, 4), id="a buffer that hears"),
        pytest.param(lambda: nn.Conv2d(4, 4, 3, padding="same"), (1, 4, 3, 3), id="torch warns once"),
        pytest.param(lambda: nn.Softmax(-1), (2, 4), id="another class"),
        pytest.param(lambda: nn.BatchNorm1d(4), (3, 4), id="statistics"),
        pytest.param(
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (2, 4), id="parametrized"
        ),
    ],
)
def test_what_is_not_known_is_watched(plainly, make, sizes):
    net, x = Net(make()), torch.randn(sizes)
    found = captured(net, x, check=True)
    assert plainly == [None]
    torch.testing.assert_close(found(x), net(x))


class Named(Net):
    def forward(self, x):
        return self.act(input=self.layer(x))


class Squeezed(Net):
    def forward(self, x):
        return self.layer(torch.squeeze(x))


class Weighed(Net):
    def __init__(self, layer) -> None:
        super().__init__(layer)
        self.register_buffer("gain", torch.rand(4))

    def forward(self, x):
        return self.layer(x) * functional.relu(self.gain, inplace=True)


class Read(Net):
    def __init__(self, layer) -> None:
        super().__init__(layer)
        self.gain = nn.Parameter(torch.rand(4))
        self.tied = layer.weight

    def forward(self, x):
        return self.layer(x) * self.gain + self.tied


@pytest.mark.parametrize(
    ("net", "sizes"),
    [
        pytest.param(lambda: Named(nn.Linear(4, 4)), (2, 4), id="by name"),
        pytest.param(
            lambda: Squeezed(nn.BatchNorm2d(4)), (1, 2, 4, 3, 3), id="dimensions that hang on sizes"
        ),
        pytest.param(lambda: Weighed(nn.Linear(4, 4)), (4, 4), id="weights that are written to"),
    ],
)
def test_programs_that_do_more_are_watched(plainly, net, sizes):
    net, x = net().eval(), torch.randn(sizes)
    found = captured(net, x, check=True)
    assert plainly == [None]
    torch.testing.assert_close(found(x), net(x))


def test_weights_that_a_program_reads_itself_are_no_matter(plainly):
    net, x = Read(nn.Linear(4, 4)).eval(), torch.randn(4, 4)
    found = captured(net, x, check=True)
    assert plainly == [found]
    torch.testing.assert_close(found(x), net(x))


class Scaling:
    factor = 2
    is_on = False


def scaled(x, inplace=False):
    return x * Scaling.factor


def passing(x, *args, **kwargs):
    return functional.elu(x) if Scaling.is_on else x


def negated(x, *args, **kwargs):
    return torch.neg(x)


def exchanged_property(patch):
    patch.setattr(nn.LayerNorm, "eps", property(lambda layer: 10.0, lambda layer, value: None), raising=False)


def exchanged_attributes(patch):
    def get(layer, name):
        return 0.75 if name == "negative_slope" else object.__getattribute__(layer, name)

    patch.setattr(nn.LeakyReLU, "__getattribute__", get)


def exchanged_missing(patch):
    get = nn.Module.__getattr__
    patch.setattr(nn.ELU, "__getattr__", lambda layer, name: 0.5 if name == "alpha" else get(layer, name))


def exchanged_functions(patch):
    other = types.ModuleType("other")
    vars(other).update(vars(functional), relu=functional.selu)
    patch.setattr(torch.nn.modules.activation, "F", other)


def exchanged_code(patch):
    patch.setattr(functional.leaky_relu, "__code__", (lambda x, slope, inplace: x).__code__)


def exchanged_forward(patch):
    patch.setattr(nn.ReLU.forward, "__code__", nn.SELU.forward.__code__)


def exchanged_hardtanh(patch):
    patch.setattr(nn.Hardtanh, "forward", nn.Hardsigmoid.forward)


def exchanged_method(patch):
    called = nn.Conv2d._conv_forward
    patch.setattr(nn.Conv2d, "_conv_forward", lambda layer, *args: called(layer, *args) * 3)


def exchanged_check(patch):
    patch.setattr(nn.BatchNorm1d, "_check_input_dim", lambda layer, x: None)


def without_setting():
    layer = nn.ELU()
    del layer.alpha
    return layer


EXCHANGED = {
    "of functional": (nn.ReLU, lambda patch: patch.setattr(functional, "relu", negated)),
    "of torch": (nn.Tanh, lambda patch: patch.setattr(torch, "tanh", torch.sigmoid)),
    "of torch by one that returns its input": (
        nn.Sigmoid,
        lambda patch: patch.setattr(torch, "sigmoid", passing),
    ),
    "by one of torch": (nn.SELU, lambda patch: patch.setattr(functional, "selu", functional.silu)),
    "by one that is wrapped": (
        nn.Mish,
        lambda patch: patch.setattr(functional, "mish", functools.wraps(functional.mish)(negated)),
    ),
    "the module of functions": (nn.ReLU, exchanged_functions),
    "code of a function": (nn.LeakyReLU, exchanged_code),
    "code of a forward": (nn.ReLU, exchanged_forward),
    "a forward": (nn.Hardtanh, exchanged_hardtanh),
    "a method of the layer": (lambda: nn.Conv2d(2, 4, 1), exchanged_method),
    "a method that makes nothing": (lambda: nn.BatchNorm1d(3).eval(), exchanged_check),
    "a method of tensors": (nn.Flatten, lambda patch: patch.setattr(torch.Tensor, "flatten", passing)),
    "a property": (lambda: nn.LayerNorm(4), exchanged_property),
    "all attributes": (nn.LeakyReLU, exchanged_attributes),
    "missing attributes": (without_setting, exchanged_missing),
}


def sizes_for(layer):
    return (1, 2, 3, 4) if isinstance(layer, nn.Conv2d) else (2, 3, 4)


@pytest.mark.parametrize("name", EXCHANGED)
@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_layer_calls_may_be_exchanged(name, is_first):
    make, exchange = EXCHANGED[name]
    net, learned = Net(make()), not isinstance(make(), nn.ELU)
    x = torch.randn(sizes_for(net.layer))
    learning.LAYERS.__init__()
    before = described(watched(net, x)) if learned else None
    if learned and not is_first:
        assert described(captured(net, x)) == before
    with pytest.MonkeyPatch.context() as patch:
        exchange(patch)
        other = captured(net, x)
        assert other.code == watched(net, x).code
        torch.testing.assert_close(other(x), net(x))
    if learned:
        again = captured(net, x)
        assert described(again) == before
        torch.testing.assert_close(again(x), net(x))


def test_a_class_is_looked_at_again(plainly):
    net, x = Net(nn.ReLU()), torch.randn(2, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.ReLU, "relu", "an attribute that nobody reads", raising=False)
        captured(net, x)
    captured(net, x)
    assert None not in plainly


@pytest.mark.parametrize("function", [scaled, passing])
def test_a_function_with_a_state_in_the_place_of_one_of_torch(monkeypatch, function):
    net, x = Net(nn.Linear(4, 4)), torch.randn(2, 4)
    monkeypatch.setattr(functional, "relu", function)
    captured(net, x)
    monkeypatch.setattr(Scaling, "factor", 3)
    monkeypatch.setattr(Scaling, "is_on", True)
    again = captured(net, x)
    torch.testing.assert_close(again(x), net(x))


def slope_of_state(layer, name):
    if name == "negative_slope":
        return 0.5 if Scaling.is_on else 0.25
    return object.__getattribute__(layer, name)


def check_by_state(layer, x):
    if Scaling.is_on and x.dim() != 3:
        raise ValueError


EPS_BY_STATE = property(lambda layer: 10.0 if Scaling.is_on else 0.1, lambda layer, value: None)


@pytest.mark.parametrize(
    ("make", "owner", "name", "value"),
    [
        pytest.param(nn.LeakyReLU, nn.LeakyReLU, "__getattribute__", slope_of_state, id="all attributes"),
        pytest.param(lambda: nn.LayerNorm(4), nn.LayerNorm, "eps", EPS_BY_STATE, id="a property"),
        pytest.param(
            lambda: nn.BatchNorm1d(3).eval(), nn.BatchNorm1d, "_check_input_dim", check_by_state, id="check"
        ),
        pytest.param(nn.Flatten, torch.Tensor, "flatten", passing, id="a method of tensors"),
    ],
)
def test_what_has_a_state_in_the_place_of_an_attribute(monkeypatch, make, owner, name, value):
    learning.LAYERS.__init__()
    monkeypatch.setattr(owner, name, value, raising=False)
    net, x = Net(make()), torch.randn(2, 3, 4)
    captured(net, x)
    monkeypatch.setattr(Scaling, "is_on", True)
    again, other = captured(net, x), watched(net, x)
    assert again.code == other.code
    assert [str(guard) for guard in again.guards if "dim()" in str(guard)] == [
        str(guard) for guard in other.guards if "dim()" in str(guard)
    ]
    torch.testing.assert_close(again(x), net(x))


class Counting(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class CountingOperators(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Counting, CountingOperators])
def test_a_mode_around_the_capture_hears_of_the_program_alone(plainly, mode):
    net, x = Net(nn.Linear(4, 4)), torch.randn(2, 4)
    learning.LAYERS.__init__()
    with mode():
        watched(net, x)  # What is done once in a process.
    with mode() as counting:
        captured(net, x)
    assert plainly == [None]
    with mode() as other:
        watched(net, x)
    assert (
        other.count <= counting.count <= other.count + 1
    )  # What kind of tensor the input is may be asked for.


def test_policies_that_may_say_something_of_values_are_asked():
    net, x = Net(nn.Linear(4, 4)), torch.randn(2, 4)

    def through(module, path, context):
        return False

    def kept():
        return (functional.relu,)

    for answers in ({}, {"leaf_functions": kept}, {"mixins_of_kind": lambda kind, context: ()}):
        policy = fxplug.TracePolicy(is_leaf_module=through, **answers)
        found = plain_capture.capture_plainly(net, (x,), {}, policy, "Net")
        assert (found is None) == bool(answers)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_layers_are_learned_with_the_dtype_of_their_weights(plainly, dtype):
    learning.LAYERS.__init__()
    captured(Net(nn.Linear(4, 4).to(dtype)), torch.randn(2, 4, dtype=dtype))
    assert plainly[0] is not None


def test_what_cannot_be_learned_now_may_be_learned_later(plainly):
    learning.LAYERS.__init__()
    net, x = Net(nn.Linear(4, 4)), torch.randn(2, 4)
    net.layer.in_features = 7
    captured(net, x)
    net.layer.in_features = 4
    captured(net, x)
    assert plainly[0] is None
    assert plainly[1] is not None


def test_layers_of_which_nothing_is_kept_are_looked_through(plainly, monkeypatch):
    monkeypatch.setattr("fxplug.capture.layer_records._MOST_RECORDS", 1)
    learning.LAYERS.__init__()
    found = captured(Net(nn.Linear(4, 4)), torch.randn(2, 4))
    assert plainly == [None]
    assert not found.graph.find_nodes(op="call_module")


def graph_of(*steps, inputs=1):
    graph = fxplug.Graph()
    values = [graph.placeholder(f"x{number}") for number in range(inputs)]
    for step in steps:
        values.append(step(graph, *values))
    graph.output(values[-1])
    return graph


def in_a_region(graph, x):
    graph.current_region = (RegionEntry("no_grad"),)
    return graph.call_function(torch.neg, (x,))


def of_several(graph):
    graph.output_node().args = ([graph.output_node().args[0]],)
    return graph


def with_attribute(name, value):
    graph = graph_of(lambda graph, x: graph.call_function(torch.neg, (x,)))
    setattr(graph, name, value)
    return graph


def test_what_is_recorded_of_a_layer_is_written_down_as_steps():
    record = record_of_graph(
        graph_of(
            lambda graph, x: graph.get_attr("weight"),
            lambda graph, x, weight: graph.call_function(functional.linear, (x, weight), {"bias": weight}),
        ),
        None,
    )
    assert record is not None
    assert record.result == 2
    assert record.steps[1].args == (Part(0), Part(1))
    assert record.steps[1].inputs == (0, 1, 1)
    assert record.steps[1].has_named_parts
    assert not record.asks_for_training


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda: graph_of(lambda graph, x, y: graph.call_function(abs, (x,)), inputs=2), id="inputs"
        ),
        pytest.param(lambda: graph_of(lambda graph, x: graph.call_function(abs, ([x],))), id="a list"),
        pytest.param(lambda: graph_of(lambda graph, x: graph.call_function(abs, ((x,),))), id="a tuple"),
        pytest.param(
            lambda: graph_of(lambda graph, x: graph.call_method("to", (x, torch.half))), id="a dtype"
        ),
        pytest.param(lambda: graph_of(lambda graph, x: graph.get_attr("inner.weight")), id="a part"),
        pytest.param(lambda: graph_of(in_a_region), id="a region"),
        pytest.param(
            lambda: of_several(graph_of(lambda graph, x: graph.call_function(abs, (x,)))), id="several"
        ),
        pytest.param(lambda: with_attribute("lifted", {"constant": torch.ones(1)}), id="constants"),
        pytest.param(lambda: with_attribute("training_overrides", {"": (True, True)}), id="switches"),
        pytest.param(
            lambda: with_attribute("state_guards", (StateGuard("self.weight.dtype", (), torch.half),)),
            id="guards",
        ),
    ],
)
def test_what_cannot_be_written_down_again_is_not(make):
    assert record_of_graph(make(), None) is None


def test_records_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr("fxplug.capture.layer_records._MOST_RECORDS", 3)
    records = LayerRecords()
    records.renew(nn.LeakyReLU)
    for slope in range(5):
        records.add(nn.LeakyReLU(slope), None)
    with pytest.raises(MissedProgramError):
        records.find(nn.LeakyReLU(4))
    assert records.find(nn.LeakyReLU(0)) is None


def test_learning_leaves_everything_as_it_was(plainly):
    learning.LAYERS.__init__()
    net, x = Net(nn.BatchNorm2d(4)).eval(), torch.randn(2, 4, 3, 3)
    state = torch.get_rng_state()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    captured(net, x)
    assert plainly[0] is not None
    assert torch.equal(state, torch.get_rng_state())
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)

"""Captures on examples down to functions: what layers of torch record is learned once, and written down again."""

from __future__ import annotations

import warnings
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import fxplug
from fxplug.api import plain_capture
from fxplug.capture.examples import learning
from fxplug.capture.layer_records import LayerRecords
from fxplug.capture.plain_functions import MissedProgramError
from fxplug.errors import GuardError
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


@pytest.fixture
def plainly(monkeypatch):
    """What was captured plainly, and None for each program that was not."""
    found = []
    capture = plain_capture.capture_plainly

    def noted(*args):
        found.append(capture(*args))
        return found[-1]

    monkeypatch.setattr("fxplug.api.capturing.capture_plainly", noted)
    return found


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
    "conv2d same": (lambda: nn.Conv2d(4, 6, (3, 5), dilation=2, padding="same"), (1, 4, 9, 9)),
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


class Doubled(nn.Linear):
    def forward(self, input):  # noqa: A002 - as torch calls it
        return super().forward(input) * 2


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
        pytest.param(lambda: Doubled(4, 4), (2, 4), id="a class of its own"),
        pytest.param(tied, (2, 4), id="tied"),
        pytest.param(with_method, (1, 4, 2, 2), id="a method of its own"),
        pytest.param(with_weight, (2, 4), id="a weight that hears"),
        pytest.param(with_buffer, (3, 4), id="a buffer that hears"),
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
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, x):
        return torch.mul(self.layer(x), self.scale)


@pytest.mark.parametrize(
    ("net", "sizes"),
    [
        pytest.param(lambda: Named(nn.Linear(4, 4)), (2, 4), id="by name"),
        pytest.param(
            lambda: Squeezed(nn.BatchNorm2d(4)), (1, 2, 4, 3, 3), id="dimensions that hang on sizes"
        ),
        pytest.param(lambda: Weighed(nn.Linear(4, 4)), (4, 4), id="weights"),
    ],
)
def test_programs_that_do_more_are_watched(plainly, net, sizes):
    net, x = net().eval(), torch.randn(sizes)
    found = captured(net, x, check=True)
    assert plainly == [None]
    torch.testing.assert_close(found(x), net(x))


def test_what_torch_calls_may_be_exchanged(monkeypatch):
    net, x = Net(nn.Linear(4, 4)), torch.randn(2, 4)
    before = captured(net, x)
    with monkeypatch.context() as patch:
        patch.setattr(functional, "relu", lambda x, inplace=False: x.clamp(min=0.5))
        other = captured(net, x)
        torch.testing.assert_close(other(x), net(x))
        assert "clamp" in other.code
    with monkeypatch.context() as patch:
        patch.setattr(nn.ReLU, "extra", lambda self, x: x, raising=False)
        assert captured(net, x).code == before.code
    assert captured(net, x).code == before.code


def test_a_method_of_a_layer_may_be_exchanged(monkeypatch):
    net, x = Net(nn.Conv2d(4, 4, 1)), torch.randn(1, 4, 2, 2)
    before = captured(net, x)
    called = nn.Conv2d._conv_forward
    with monkeypatch.context() as patch:
        patch.setattr(nn.Conv2d, "_conv_forward", lambda self, *args: called(self, *args) * 3)
        other = captured(net, x)
        torch.testing.assert_close(other(x), net(x))
        assert "* 3" in other.code
    assert captured(net, x).code == before.code


def test_code_of_a_layer_may_be_exchanged():
    net, x = Net(nn.ReLU()), torch.randn(2, 4)
    before, code = captured(net, x), nn.ReLU.forward.__code__

    def forward(self, x):
        return x.clamp(min=0.25)

    nn.ReLU.forward.__code__ = forward.__code__
    try:
        other = captured(net, x)
        torch.testing.assert_close(other(x), net(x))
        assert "clamp" in other.code
    finally:
        nn.ReLU.forward.__code__ = code
    assert captured(net, x).code == before.code


class Counting(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_around_the_capture_hears_of_calls(plainly):
    net, x = Net(nn.Linear(4, 4)), torch.randn(2, 4)
    captured(net, x)
    with Counting() as counting:
        captured(net, x)
    assert plainly[0] is not None
    assert plainly[1] is None
    assert counting.count


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


def test_what_is_learned_is_not_warned_of_again():
    net, x = Net(nn.Conv1d(4, 4, 2, padding="same")), torch.randn(1, 4, 6)
    learning.LAYERS.__init__()
    counts = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            captured(net, x)
        counts.append(len(said))
    assert counts[0] == counts[1]


class Scaling:
    factor = 2


def scaled(x, inplace=False):
    return x * Scaling.factor


def test_a_function_with_a_state_in_the_place_of_one_of_torch(monkeypatch):
    net, x = Net(nn.Linear(4, 4)), torch.randn(2, 4)
    monkeypatch.setattr(functional, "relu", scaled)
    assert "* 2" in captured(net, x).code
    monkeypatch.setattr(Scaling, "factor", 3)
    assert "* 3" in captured(net, x).code


def test_records_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr("fxplug.capture.layer_records._MOST_RECORDS", 3)
    records = LayerRecords()
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

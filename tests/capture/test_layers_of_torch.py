"""Layers of torch are called by a short way on example inputs, and only where nothing is to be heard of on it."""

from __future__ import annotations

import copy
import functools
import queue

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import fxplug
from fxplug.capture.examples.layers import LayerCaller
from fxplug.capture.examples.tracer import ExampleTracer
from fxplug.capture.policy import TracePolicy
from fxplug.errors import FxplugError, TraceError
from fxplug.ir import effects, writes
from fxplug.plugins import PluginManager

X = torch.linspace(-1, 1, 12).reshape(2, 6)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.linear(x)) + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        # A program that asks for less would not be listened to.
        return self.head(self.blocks(x)) if type(x) in {torch.Tensor} else x


class Asking(nn.Sequential):
    """What its modules do; it is listened to, as it has a forward that asks."""

    def forward(self, x):
        return super().forward(x) if x.dim() == 2 else x


@pytest.fixture
def short_calls(monkeypatch):
    """The paths of the layers that are called by the short way."""
    calls: list[str] = []
    original = LayerCaller._call_layer

    def call_layer(self, module, layer, value, source):
        calls.append(layer[0])
        return original(self, module, layer, value, source)

    monkeypatch.setattr(LayerCaller, "_call_layer", call_layer)
    return calls


def captured(root, *inputs, **options):
    options.setdefault("manager", PluginManager(candidates=()))
    return fxplug.trace(root, inputs or (X,), **options)


def lines_of(module):
    return [str(next(iter(node.origins)).source()) for node in module.graph.nodes if node.op == "call_module"]


def test_layers_are_called_by_the_short_way_and_recorded_as_by_the_long_one(short_calls):
    net = Net()
    short = captured(net)
    layers = ["blocks.0.linear", "blocks.0.relu", "blocks.1.linear", "blocks.1.relu", "head"]
    assert short_calls[: len(layers)] == layers

    asked = PluginManager(candidates=())
    tracer = ExampleTracer((X,), {}, policy=TracePolicy(is_leaf_module=lambda *_: None))
    short_calls.clear()
    long = fxplug.GraphModule(net, tracer.trace(net), "Net")

    assert short_calls == []
    assert str(short.graph) == str(long.graph)
    assert lines_of(short) == lines_of(long)
    assert [node.meta.get("nn_module_stack") for node in short.graph.nodes] == [
        node.meta.get("nn_module_stack") for node in long.graph.nodes
    ]
    assert short.code == fxplug.trace(net, (X,), manager=asked).code
    assert torch.equal(short(X), net(X))


def test_modules_of_a_class_that_was_entered_before_are_in_the_stack(short_calls):
    stacks = [
        [*node.meta["nn_module_stack"]] for node in captured(Net()).graph.nodes if node.op == "call_function"
    ]

    assert stacks == [["", "blocks", "blocks.0"], ["", "blocks", "blocks.1"]]


def test_behind_a_module_of_a_class_that_was_entered_before_one_is_out_of_it(short_calls):
    module = captured(nn.Sequential(Block(), Block(), nn.Linear(6, 2)))
    (head,) = module.graph.find_nodes(op="call_module", target="2")

    assert [*head.meta["nn_module_stack"]] == ["", "2"]


class Upsamples(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.layer = nn.ConvTranspose1d(2, 2, 3, stride=2)
        self.call = call

    def forward(self, x):
        return self.call(self.layer, x)


@pytest.mark.parametrize(
    "call",
    [lambda layer, x: layer(x, [14]), lambda layer, x: layer(x, output_size=[14])],
    ids=["by position", "by name"],
)
def test_a_layer_with_two_arguments_is_given_both(short_calls, call):
    root = Upsamples(call)
    module = captured(root, check=False)

    assert module(X).shape == (2, 14)
    assert torch.equal(module(X), root(X))
    assert short_calls == []


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_tracer_that_decides_itself_what_stays_whole_is_asked_about_layers(short_calls, mode):
    asked = []

    class Enters(ExampleTracer):
        def is_leaf_module(self, m, module_qualified_name):
            asked.append(module_qualified_name)
            return module_qualified_name == "1"

    root = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    graph = Enters((X,), {}, mode=mode).trace(root)

    assert asked == ["0", "1"]
    assert [node.target for node in graph.nodes if node.op.startswith("call")] == [F.linear, "1"]


class Doubles(TorchFunctionMode):
    """Hears of functions of torch, and changes what one of them gives."""

    def __init__(self, heard):
        super().__init__()
        self.heard = heard

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.heard.put(func.__name__)
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is F.linear else result


class Listens(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.heard = queue.SimpleQueue()  # What it holds is not put back.

    def forward(self, x):
        x = self.block(x)
        with Doubles(self.heard):
            return self.block(x)


def heard_by(root):
    return [root.heard.get_nowait() for _ in range(root.heard.qsize())]


def test_a_mode_of_the_program_hears_of_the_functions_inside_of_layers(short_calls):
    root = Listens()
    module = captured(root, check=False)
    heard = heard_by(root)

    assert short_calls == ["block.linear", "block.relu"]
    assert torch.equal(module(X), root(X))
    assert heard == heard_by(root) == ["linear", "relu", "add"]


@pytest.mark.parametrize("patched", ["_call_impl", "__call__"])
def test_what_others_have_put_around_the_calls_of_modules_is_run(monkeypatch, patched):
    heard = []
    original = getattr(nn.Module, patched)

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        heard.append(type(self).__name__)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, patched, call)
    captured(Net(), check=False)

    assert heard.count("Linear") == 3
    assert heard.count("ReLU") == 2


def test_a_layer_with_a_forward_of_its_own_goes_the_long_way(short_calls):
    net = Net()
    net.head.forward = lambda x: F.linear(x, net.head.weight)
    module = captured(net, check=False)

    assert short_calls == ["blocks.0.linear", "blocks.0.relu", "blocks.1.linear", "blocks.1.relu"]
    assert torch.equal(module(X), net(X))


def test_where_a_layer_has_a_hook_which_can_be_taken_away_all_go_the_long_way(short_calls):
    net = Net()
    net.head.register_forward_hook(lambda module, args, result: result * 2)
    module = captured(net, check=False)

    assert short_calls == []
    assert torch.equal(module(X), net(X))


def test_hooks_of_all_modules_are_run(short_calls):
    heard = []
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: heard.append(module))
    try:
        net = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        captured(net, check=False)
    finally:
        handle.remove()

    assert short_calls == []
    assert [type(module) for module in heard if module is not net] == [nn.Linear, nn.Tanh]


class Sets(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.change = change

    def forward(self, x):
        self.change(self.layer)
        return self.layer(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.ones(6, 6))),
        lambda layer: setattr(layer, "forward", torch.relu),
        lambda layer: layer.register_forward_hook(lambda module, args, result: result * 2),
        nn.utils.parametrizations.weight_norm,
    ],
    ids=["a weight", "a forward", "a hook", "a parametrization"],
)
def test_a_layer_that_the_program_has_changed_is_refused(change):
    with pytest.raises(TraceError):
        captured(Sets(change), check=False)


@pytest.mark.parametrize("check", [True, False])
def test_a_layer_is_entered_where_the_program_leaves_it_a_hook_that_does_nothing(
    short_calls, with_whole_layers, check
):
    net = Sets(lambda layer: layer.register_forward_hook(lambda *_: None))
    module = captured(net, check=check)

    assert short_calls == []
    assert not net.layer._forward_hooks
    for one in (module, copy.deepcopy(module)):
        for inputs in (X, X + 1, torch.rand(5, 6)):  # Eager has one hook more at each call.
            assert torch.equal(one(inputs), net(inputs))

    with pytest.raises(TraceError, match="its hooks") as refused:
        captured(Sets(net.change), check=check, manager=with_whole_layers)
    assert refused.value.code == "FXP-T010"


def test_training_layers_that_draw_or_keep_statistics_go_the_long_way(short_calls):
    net = Asking(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.ReLU())
    before = net[1].running_mean.clone()
    captured(net, check=False)

    assert short_calls == ["0", "3"]
    assert torch.equal(net[1].running_mean, before)

    short_calls.clear()
    captured(net.eval(), check=False)
    assert short_calls == ["0", "1", "2", "3"]


def test_a_layer_that_returns_what_it_is_given_gives_another_value():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout()

        def forward(self, x):
            y = self.drop(x)
            return x + y * 2

    root = Same().eval()
    module = captured(root)

    assert torch.equal(module(X), root(X))
    (dropped,) = module.graph.find_nodes(op="call_module")
    assert [[used.name for used in user.all_input_nodes] for user in dropped.users] == [["drop"]]
    results = []
    for one in (module.train(), root.train()):
        torch.manual_seed(0)
        results.append(one(X))
    assert torch.equal(*results)


def test_a_write_in_place_to_an_input_is_in_the_graph_and_undone():
    x = X.clone()
    module = captured(nn.Sequential(nn.ReLU(inplace=True)), x)

    assert torch.equal(x, X)
    given = X.clone()
    module(given)
    assert torch.equal(given, X.relu())


def test_an_effect_that_somebody_has_stated_for_a_class_of_torch_is_heard(short_calls):
    effects.register_target(nn.Linear, writes("state"))
    try:
        captured(Net(), check=False)
    finally:
        effects.unregister_target(nn.Linear)

    assert "head" not in short_calls
    assert "blocks.0.relu" in short_calls


def test_a_rule_about_effects_of_modules_is_asked_for_every_layer(short_calls):
    asked = []

    def rule(node, module):
        asked.append(node.target)

    effects.register_rule(rule, "call_module")
    try:
        captured(Net(), check=False)
    finally:
        effects.unregister_rule(rule)

    assert short_calls == []
    assert "head" in asked


def test_an_error_of_a_layer_is_that_of_eager_and_leaves_no_node():
    class Tries(nn.Module):
        def __init__(self):
            super().__init__()
            self.wrong = nn.Linear(7, 7)
            self.right = nn.Linear(6, 6)

        def forward(self, x):
            try:
                return self.wrong(x)
            except RuntimeError:
                return self.right(x)

    module = captured(Tries(), check=False)

    assert [node.target for node in module.graph.find_nodes(op="call_module")] == ["right"]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        captured(nn.Sequential(nn.Linear(7, 7)))


def test_modes_of_torch_are_back_behind_a_layer_that_fails():
    with pytest.raises(RuntimeError):
        captured(nn.Sequential(nn.Linear(7, 7)), check=False)

    assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0


class Flagged(nn.Module):
    def forward(self, x):
        return x * 2 if self.training else x * 3


def test_each_part_that_asks_for_training_is_guarded_also_where_its_class_was_entered_before():
    module = captured(nn.Sequential(Flagged(), Flagged()).eval())

    assert [guard.text for guard in module.guards if "training" in guard.text] == [
        "self.training is False",
        "self.0.training is False",
        "self.1.training is False",
    ]


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()
        self.second.forward = lambda x: x * 7

    def forward(self, x):
        return self.second(self.first(x))


def test_a_forward_of_its_own_counts_in_a_class_that_was_entered_before():
    root = Other()
    module = captured(root)

    assert torch.equal(module(X), root(X))
    assert [node.target for node in module.graph.find_nodes(op="call_module")] == [
        "first.linear",
        "first.relu",
    ]


def test_a_policy_is_asked_about_every_module_once():
    asked = []

    def is_leaf(module, path, _):
        asked.append(path)
        return True if path == "blocks.1" else None

    net = Net()
    tracer = ExampleTracer((X,), {}, policy=TracePolicy(is_leaf_module=is_leaf))
    graph = tracer.trace(net)

    assert asked == ["blocks", "blocks.0", "blocks.0.linear", "blocks.0.relu", "blocks.1", "head"]
    assert [node.target for node in graph.nodes if node.op == "call_module"][2] == "blocks.1"


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.weight + self.weight


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_policy_is_told_once_of_each_call_of_a_layer_and_of_each_weight(short_calls, mode):
    told = []
    policy = TracePolicy(node_created=lambda node, _: told.append((node.op, node.target)))
    ExampleTracer((X,), {}, mode=mode, policy=policy).trace(
        nn.Sequential(nn.Linear(6, 6), nn.Dropout(), Scales())
    )

    assert short_calls == ["0"]
    assert [one for one in told if one[0] in {"call_module", "get_attr"}] == [
        ("call_module", "0"),
        ("call_module", "1"),
        ("get_attr", "2.weight"),
    ]


def test_a_policy_takes_wrappers_off_that_are_layers_of_torch():
    root = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Sigmoid())
    policy = TracePolicy(unwrap_module=lambda module: root[2] if module is root[1] else None)
    graph = ExampleTracer((X,), {}, policy=policy).trace(root)

    assert [node.target for node in graph.find_nodes(op="call_module")] == ["0", "2", "2"]


class Wraps(nn.Module):
    """Is a wrapper or not, with one class and one forward."""

    def __init__(self, *, is_wrapper):
        super().__init__()
        self.inner = Flagged()
        self.is_wrapper = is_wrapper

    def forward(self, x):
        return self.inner(x) + 1


def test_a_policy_takes_wrappers_off_also_where_their_class_was_entered_before():
    policy = TracePolicy(
        unwrap_module=lambda module: module.inner if getattr(module, "is_wrapper", False) else None
    )
    graph = ExampleTracer((X,), {}, policy=policy).trace(
        nn.Sequential(Wraps(is_wrapper=False), Wraps(is_wrapper=True))
    )

    assert [[*node.meta["nn_module_stack"]] for node in graph.find_nodes(op="call_function")] == [
        ["", "0", "0.inner"],
        ["", "0"],
        ["", "1.inner"],
    ]


def test_what_holds_a_layer_that_is_not_its_own_any_more_is_refused_by_the_check():
    """Nobody hears of a write past torch's own assignment; the check does."""
    net = Net()

    class Past(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            vars(self.net.head)["_parameters"]["bias"] = nn.Parameter(torch.full((2,), x.sum().item() + 5))
            return self.net(x)

    with pytest.raises(FxplugError):
        captured(Past())

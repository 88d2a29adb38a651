"""What calls of modules do besides computing a value."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_globals
from torch.nn.utils import parametrizations

from fxplug.ir import PURE, Graph, effects, writes
from fxplug.semantics import module_effect


def case(name, make):
    return pytest.param(make, id=name)


class Custom(nn.Module):
    def forward(self, x):
        return x


class Derived(nn.Linear):
    pass


def with_hook(module, register, *path):
    part = module.get_submodule(".".join(path))
    getattr(part, register)(lambda *_: None)
    return module


def with_own_forward():
    module = nn.Linear(2, 2)
    module.forward = lambda x: x
    return module


ALWAYS_KEPT = [
    case("relu in place", lambda: nn.ReLU(inplace=True)),
    case("hardswish in place", lambda: nn.Hardswish(inplace=True)),
    case(
        "in place inside containers",
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(inplace=True))),
    ),
    case("custom class", Custom),
    case("class derived from torch.nn", lambda: Derived(2, 2)),
    case("custom class inside a container", lambda: nn.Sequential(nn.Linear(2, 2), Custom())),
    case("forward hook", lambda: with_hook(nn.Linear(2, 2), "register_forward_hook")),
    case("forward pre-hook", lambda: with_hook(nn.Linear(2, 2), "register_forward_pre_hook")),
    case("backward hook", lambda: with_hook(nn.Linear(2, 2), "register_full_backward_hook")),
    case("backward pre-hook", lambda: with_hook(nn.Linear(2, 2), "register_full_backward_pre_hook")),
    case("hook of a child", lambda: with_hook(nn.Sequential(nn.Linear(2, 2)), "register_forward_hook", "0")),
    case("forward of the instance", with_own_forward),
    case("lazy linear", lambda: nn.LazyLinear(2)),
    case("lazy batch norm", nn.LazyBatchNorm1d),
    case("spectral norm", lambda: parametrizations.spectral_norm(nn.Linear(2, 2))),
    case("weight norm", lambda: parametrizations.weight_norm(nn.Linear(2, 2))),
    case("embedding with max_norm", lambda: nn.Embedding(3, 2, max_norm=1.0)),
    case("embedding bag with max_norm", lambda: nn.EmbeddingBag(3, 2, max_norm=1.0)),
    case("fractional max pooling", lambda: nn.FractionalMaxPool2d(2, output_ratio=0.5)),
]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("make", ALWAYS_KEPT)
def test_module_that_does_something_is_kept(make, training):
    assert module_effect(make().train(training)).must_be_kept


KEPT_IN_TRAINING = [
    case("batch norm", lambda: nn.BatchNorm1d(2)),
    case("batch norm without affine", lambda: nn.BatchNorm2d(2, affine=False)),
    case("synchronised batch norm", lambda: nn.SyncBatchNorm(2)),
    case("instance norm with statistics", lambda: nn.InstanceNorm1d(2, track_running_stats=True)),
    case("dropout", nn.Dropout),
    case("dropout2d", nn.Dropout2d),
    case("alpha dropout", nn.AlphaDropout),
    case("feature alpha dropout", nn.FeatureAlphaDropout),
    case("randomised relu", nn.RReLU),
    case("lstm with dropout", lambda: nn.LSTM(2, 2, 2, dropout=0.5)),
    case("gru with dropout", lambda: nn.GRU(2, 2, 2, dropout=0.5)),
    case("attention with dropout", lambda: nn.MultiheadAttention(2, 1, dropout=0.5)),
    case("attention with dropout one", lambda: nn.MultiheadAttention(2, 1, dropout=1)),
    case("encoder layer", lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1)),
    case(
        "nested containers",
        lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout()))),
    ),
]


@pytest.mark.parametrize("make", KEPT_IN_TRAINING)
def test_module_that_does_something_in_training_is_kept(make):
    assert module_effect(make().train()).must_be_kept


@pytest.mark.parametrize(
    "make", [make.values[0] for make in KEPT_IN_TRAINING], ids=[make.id for make in KEPT_IN_TRAINING]
)
def test_module_that_only_trains_with_effects_may_be_removed_in_evaluation(make):
    assert module_effect(make().eval()).is_pure


def test_one_part_in_training_is_enough():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    module[1].train()

    assert module_effect(module) == writes("state")


PURE_MODULES = [
    nn.Linear(2, 2),
    nn.Conv2d(2, 2, 1),
    nn.ReLU(),
    nn.GELU(),
    nn.Softmax(dim=1),
    nn.LayerNorm(2),
    nn.GroupNorm(1, 2),
    nn.MaxPool2d(2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Identity(),
    nn.Embedding(3, 2),
    nn.LSTM(2, 2),
    nn.MultiheadAttention(2, 1),
    nn.BatchNorm1d(2, track_running_stats=False),
    nn.InstanceNorm1d(2),
    nn.Upsample(scale_factor=2),
    nn.PixelShuffle(2),
    nn.CrossEntropyLoss(),
    nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())),
]


@pytest.mark.parametrize(
    "module",
    PURE_MODULES,
    ids=[f"{number}-{type(module).__name__}" for number, module in enumerate(PURE_MODULES)],
)
def test_module_that_only_computes_may_be_removed(module):
    assert module_effect(module.train()) == PURE


def call_node(module):
    root = nn.Module()
    root.part = module
    graph = Graph()
    graph.output(graph.call_module("part", (graph.placeholder("x"),)))
    return graph, root, graph.find_nodes(op="call_module")[0]


def test_node_is_looked_up_in_the_root_that_is_given():
    _, root, node = call_node(nn.Linear(2, 2))

    assert effects.effect_of(node, root) == PURE
    assert effects.effect_of(node).unknown


def test_node_is_looked_up_in_the_owner_of_its_graph():
    graph, root, node = call_node(nn.Linear(2, 2))
    graph.owning_module = root

    assert effects.effect_of(node) == PURE


@pytest.mark.parametrize("target", ["nowhere", "part.nowhere", "part.weight"])
def test_node_without_module_is_unknown(target):
    _, root, node = call_node(nn.Linear(2, 2))
    node.target = target

    assert effects.effect_of(node, root).unknown


def test_effect_follows_the_training_flag():
    _, root, node = call_node(nn.Dropout())

    assert effects.effect_of(node, root).random
    root.eval()
    assert effects.effect_of(node, root) == PURE


def test_class_that_is_declared_pure_may_be_removed():
    _, root, node = call_node(Custom())
    effects.register_target(Custom, PURE)
    try:
        assert effects.effect_of(node, root) == PURE
        assert module_effect(nn.Sequential(Custom(), nn.Linear(2, 2))) == PURE
        assert module_effect(nn.Sequential(Custom(), nn.ReLU(inplace=True))) == writes(0)
    finally:
        effects.unregister_target(Custom)


def test_hook_on_a_class_that_is_declared_pure_is_kept():
    _, root, node = call_node(with_hook(Custom(), "register_forward_hook"))
    effects.register_target(Custom, PURE)
    try:
        assert effects.effect_of(node, root).must_be_kept
    finally:
        effects.unregister_target(Custom)


def test_rule_for_a_class_counts_inside_a_container():
    asked = []

    def rule(node, module):
        asked.append((node.target, type(module)))
        return PURE

    _, root, node = call_node(nn.Sequential(nn.Linear(2, 2), Custom()))
    effects.register_target(Custom, rule)
    try:
        assert effects.effect_of(node, root) == PURE
        assert asked == [("part", Custom)]
        assert module_effect(root.part).unknown
    finally:
        effects.unregister_target(Custom)


def test_hook_for_all_modules_is_kept():
    handle = module_globals.register_module_forward_hook(lambda *_: None)
    try:
        assert module_effect(nn.Linear(2, 2)).must_be_kept
    finally:
        handle.remove()


@pytest.mark.parametrize("training", [True, False])
def test_no_module_that_is_called_pure_draws_random_numbers(training):
    x = torch.linspace(-1, 1, 64).reshape(1, 4, 4, 4)
    makes = {
        name: kind
        for name, kind in vars(nn).items()
        if isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and name not in {"FractionalMaxPool2d", "Container"}
    }
    for name, kind in makes.items():
        try:
            module = kind().train(training)
            pure = module_effect(module).is_pure
            before = torch.get_rng_state()
            module(x)
        except Exception:  # It needs arguments, so nothing is learnt.
            continue
        assert not pure or torch.equal(torch.get_rng_state(), before), name

"""Modules that are held but not entered: what a program keeps in them, and layers that it changes for one call."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import fxplug
from fxplug.capture.examples.tracer import ExampleTracer
from fxplug.capture.policy import TracePolicy
from fxplug.capture.tracer import Tracer
from fxplug.errors import TraceError, TraceWarning

X = torch.arange(6.0).reshape(3, 2)
REGISTRY = nn.Module()
REGISTRY.calls = 0


def _parts_of(root):
    """Return all that the modules of a root hold, by identity, with what is in containers."""
    found = {}
    for path, module in root.named_modules():
        tables = (vars(module), module._parameters, module._buffers, module._modules)
        for index, table in enumerate(tables):
            for name, value in table.items():
                inner = [*value.items()] if isinstance(value, dict) else value
                parts = [id(part) for part in inner] if isinstance(value, list) else str(inner)[:200]
                found[path, index, name] = id(value), parts
    return found


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = Cache()
        self.project = nn.Linear(2, 2)

    def forward(self, x):
        keys = self.project(x)
        if "k" in self.cache.kept:
            keys = torch.cat([self.cache.kept["k"], keys])
        self.cache.kept["k"] = keys
        return keys.sum(0)


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = nn.Module()
        self.state.seen = []
        self.state.calls = 0


class Summing(Holder):
    def forward(self, x):
        self.state.seen.append(x)
        return sum(self.state.seen)


class Counting(Holder):
    def forward(self, x):
        self.state.calls += 1
        return x * self.state.calls


class OnALayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.seen = []

    def forward(self, x):
        self.layer.seen.append(x)
        return self.layer(x) + len(self.layer.seen)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Attention, "cache.kept"),
        (Summing, "state.seen"),
        (Counting, "state.calls"),
        (OnALayer, "layer.seen"),
    ],
)
def test_what_a_module_that_is_not_entered_keeps_is_refused(capture_as, kind, path):
    root = kind()
    before = _parts_of(root)
    with pytest.raises(TraceError, match=f"keeps something in the attribute '{path}'") as caught:
        capture_as(root)
    assert caught.value.code == "FXP-T055"
    assert "test_held_modules.py" in caught.value.message
    assert _parts_of(root) == before


class Noting(Holder):
    def forward(self, x):
        self.state.seen.append(x)
        self.state.calls += 1
        return x + 1


def test_what_only_lies_there_is_put_back(capture_as):
    root = Noting()
    before = _parts_of(root)
    with pytest.warns(TraceWarning) as warned:
        captured = capture_as(root)
    said = " ".join(str(warning.message) for warning in warned)
    assert "'state.seen'" in said
    assert "'state.calls'" in said
    assert _parts_of(root) == before
    torch.testing.assert_close(captured(X), X + 1)


class Failing(Holder):
    def forward(self, x):
        self.state.seen.append(x)
        self.state.calls += 1
        raise LookupError


def test_put_back_after_an_error_of_the_program(capture_as):
    root = Failing()
    before = _parts_of(root)
    with pytest.raises(LookupError):
        capture_as(root)
    assert _parts_of(root) == before


class OfAGlobal(nn.Module):
    def forward(self, x):
        REGISTRY.calls += 1
        return x * REGISTRY.calls


def test_a_module_that_a_function_finds_by_a_global_name(capture_as):
    with pytest.raises(TraceError, match="the attribute 'calls' of REGISTRY") as caught:
        capture_as(OfAGlobal())
    assert caught.value.code == "FXP-T055"
    assert REGISTRY.calls == 0


# -- layers that are changed for a call


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.tensor(2.0))


class WithAnotherWeight(Scaled):
    def forward(self, x):
        weight = self.layer._parameters.pop("weight")
        self.layer.weight = weight * self.scale
        try:
            return self.layer(x)
        finally:
            del self.layer.weight
            self.layer._parameters["weight"] = weight


class WithAnotherParameter(Scaled):
    def forward(self, x):
        weight = self.layer._parameters["weight"]
        self.layer._parameters["weight"] = self.zeros
        try:
            return self.layer(x)
        finally:
            self.layer._parameters["weight"] = weight

    zeros = nn.Parameter(torch.zeros(2, 2))


class WithAHook(Scaled):
    def forward(self, x):
        handle = self.layer.register_forward_hook(lambda *call: call[2] * 2)
        try:
            return self.layer(x)
        finally:
            handle.remove()


class WithoutItsHook(Scaled):
    def __init__(self):
        super().__init__()
        self.layer.register_forward_hook(_doubling)

    def forward(self, x):
        hooks = dict(self.layer._forward_hooks)
        self.layer._forward_hooks.clear()
        try:
            return self.layer(x)
        finally:
            self.layer._forward_hooks.update(hooks)


def _doubling(module, args, result):
    return result * 2


class WithAnotherForward(Scaled):
    def forward(self, x):
        self.layer.forward = lambda value: value * 3
        try:
            return self.layer(x)
        finally:
            del self.layer.forward


class WithAnotherEps(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LayerNorm(2)

    def forward(self, x):
        former = self.layer.eps
        self.layer.eps = 10.0
        result = self.layer(x)
        self.layer.eps = former
        return result


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (WithAnotherParameter, "'layer.weight' is not what it was"),
        (WithAnotherForward, "'layer.forward' is not what it was"),
        (WithAnotherEps, "'layer.eps' is not what it was"),
    ],
)
def test_a_layer_that_is_another_one_during_its_call_is_refused(capture_as, kind, named):
    root = kind()
    before = _parts_of(root)
    with pytest.raises(
        TraceError, match=f"the call of the module 'layer' at .*test_held_modules.*{named}"
    ) as caught:
        capture_as(root)
    assert caught.value.code == "FXP-T010"
    assert _parts_of(root) == before


@pytest.mark.parametrize("kind", [WithAHook, WithoutItsHook])
def test_a_layer_with_other_hooks_during_its_call_is_refused_where_it_was_said_to_be_a_call(
    capture_as, kind, with_whole_layers
):
    root = kind()
    before = _parts_of(root)
    refused = partial(pytest.raises, TraceError, match="the call of the module 'layer' at .*its hooks")
    with refused() as caught:
        capture_as(root, manager=with_whole_layers)
    with refused() as caught_by_hand:
        Tracer().trace(root)
    assert caught.value.code == caught_by_hand.value.code == "FXP-T010"
    assert _parts_of(root) == before


@pytest.mark.parametrize("kind", [WithAHook, WithoutItsHook])
def test_a_layer_with_other_hooks_during_its_call_is_entered(capture_as, kind):
    root = kind()
    reference, before = copy.deepcopy(root), _parts_of(root)
    captured = capture_as(root)
    assert _parts_of(root) == before
    for module in (copy.deepcopy(captured), captured, capture_as(captured)):
        for inputs in (X, -X[:1], torch.rand(2, 5, 2)):
            found, wanted = module(inputs), reference(inputs)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(
                torch.autograd.grad(found.sum(), (module.layer.weight, module.layer.bias)),
                torch.autograd.grad(wanted.sum(), (reference.layer.weight, reference.layer.bias)),
            )


class WithAHookOn(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    forward = WithAHook.forward


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [nn.Dropout, partial(nn.BatchNorm1d, 2), partial(nn.ReLU, inplace=True)])
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_a_layer_that_is_entered_for_its_hooks_follows_the_training_flag(mode, make, training):
    root = WithAHookOn(make()).train(training)
    reference = copy.deepcopy(root)
    captured = fxplug.trace(root, (X.clone(),), mode=mode)
    for flag in (training, not training):
        reference.train(flag)
        captured.train(flag)
        for values in (X - 2, torch.rand(4, 2)):
            found, wanted = values.clone(), values.clone()
            torch.manual_seed(0)
            if flag is not training and not isinstance(root.layer, nn.ReLU):
                with pytest.raises(fxplug.GuardError, match=f"captured for self.training is {training}"):
                    captured(found)
                continue
            result = captured(found)
            torch.manual_seed(0)
            torch.testing.assert_close((result, found), (reference(wanted), wanted))
            for name, buffer in captured.named_buffers():
                torch.testing.assert_close(buffer, reference.get_buffer(name))


def test_a_refused_capture_leaves_the_parameters(capture_as):
    root = WithAnotherWeight()
    weight, expected = root.layer.weight, root(X)
    with pytest.raises(TraceError) as caught:
        capture_as(root)
    assert caught.value.code in {"FXP-T010", "FXP-T061"}
    assert root.layer.weight is weight
    torch.testing.assert_close(root(X), expected)


class Leaving(Scaled):
    def forward(self, x):
        self.layer.register_forward_hook(_doubling)
        return x + 1


def test_hooks_that_the_program_leaves_are_taken_away(capture_as):
    root = Leaving()
    capture_as(root)
    assert not root.layer._forward_hooks


class Labelled(Scaled):
    def forward(self, x):
        self.layer.label = "first"
        return self.layer(x)


def test_an_attribute_that_the_layer_does_not_read_may_change(capture_as):
    root = Labelled()
    with pytest.warns(TraceWarning, match=r"'layer\.label'"):
        captured = capture_as(root)
    torch.testing.assert_close(captured(X), root(X))


# -- layers that change themselves when they are called


class Twice(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(self.layer(x))


@pytest.mark.parametrize("prepare", [prune.identity, nn.utils.spectral_norm])
def test_what_a_call_of_a_layer_assigns_is_its_own_affair(capture_as, prepare):
    layer = nn.Linear(2, 2)
    prepare(layer, "weight")
    root = Twice(layer).eval()
    before = {name: id(value) for name, value in vars(layer).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", TraceWarning)
        captured = capture_as(root)
    assert {name: id(value) for name, value in vars(layer).items()} == before
    assert type(layer.weight) is torch.Tensor
    torch.testing.assert_close(captured(X), root(X))


class Caching(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.kept[self.calls] = x
        return x * len(self.kept)


@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_a_leaf_may_keep_what_it_likes(mode):
    root = Twice(Caching())
    policy = TracePolicy(is_leaf_module=lambda module, path, context: isinstance(module, Caching) or None)
    tracer = (
        Tracer(policy=policy) if mode == "symbolic" else ExampleTracer((X,), {}, mode="value", policy=policy)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", TraceWarning)
        graph = tracer.trace(root)
    assert [node.op for node in graph.nodes].count("call_module") == 2
    assert root.layer.calls == 0
    assert not root.layer.kept

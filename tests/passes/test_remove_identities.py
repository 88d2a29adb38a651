"""Identities go; what does something, or may be watched, stays."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.passes import PassContext, RemoveIdentities

X = torch.linspace(-2, 2, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x + 1) * 2


class Calls(nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program

    def forward(self, x):
        return self.program(self, x + 1) * 2


def run(model):
    module = fxplug.symbolic_trace(model)
    result = RemoveIdentities().run(module, PassContext())
    module.graph.lint()
    assert result.modified is (result.details["removed"] > 0)
    return module, result


MODELS = {
    "Identity": lambda: Wrapped(nn.Identity()),
    "Dropout": lambda: Wrapped(nn.Dropout()),
    "Dropout in place": lambda: Wrapped(nn.Dropout(0.5, inplace=True)),
    "Dropout1d": lambda: Wrapped(nn.Sequential(nn.Flatten(2), nn.Dropout1d())),
    "Dropout2d": lambda: Wrapped(nn.Dropout2d()),
    "Dropout3d": lambda: Wrapped(nn.Dropout3d()),
    "AlphaDropout": lambda: Wrapped(nn.AlphaDropout()),
    "FeatureAlphaDropout": lambda: Wrapped(nn.FeatureAlphaDropout()),
    "dropout": lambda: Calls(lambda m, x: F.dropout(x, training=m.training)),
    "dropout by keyword": lambda: Calls(
        lambda m, x: F.dropout(input=x, p=0.3, training=m.training, inplace=True)
    ),
    "dropout1d": lambda: Calls(lambda m, x: F.dropout1d(x[0], training=m.training)),
    "dropout2d": lambda: Calls(lambda m, x: F.dropout2d(x, 0.5, m.training)),
    "dropout3d": lambda: Calls(lambda m, x: F.dropout3d(x, training=m.training)),
    "alpha_dropout": lambda: Calls(lambda m, x: F.alpha_dropout(x, training=m.training)),
    "feature_alpha_dropout": lambda: Calls(lambda m, x: F.feature_alpha_dropout(x, training=m.training)),
    "torch.dropout": lambda: Calls(lambda m, x: torch.dropout(x, 0.5, m.training)),
    "torch.dropout by keyword": lambda: Calls(lambda m, x: torch.dropout(x, p=0.5, train=m.training)),
}
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
models = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


@models
def test_an_identity_is_removed(make):
    model = make().eval()

    module, result = run(model)

    assert result.details == {"removed": 1, "in_training": 0}
    assert not [node for node in module.graph.nodes if "dropout" in str(node.target)]
    assert not any(isinstance(part, (nn.Identity, *DROPOUTS)) for part in module.modules())
    torch.testing.assert_close(module(X), model(X), rtol=0, atol=0)
    assert not RemoveIdentities().run(module, PassContext()).modified


@models
def test_dropout_in_training_stays(make, request):
    module, result = run(make().train())

    if "[Identity]" in request.node.name:
        assert result.details == {"removed": 1, "in_training": 0}
        return
    assert result.details == {"removed": 0, "in_training": 1}
    assert "left alone in training mode" in result.summary
    torch.manual_seed(0)
    first = module(X)
    torch.manual_seed(1)
    assert not torch.equal(first, module(X))


class Louder(nn.Identity):
    def forward(self, x):
        return x * 3


def hooked():
    inner = nn.Identity()
    inner.register_forward_hook(lambda module, given, value: value * 5)
    return inner


def with_a_forward_of_its_own():
    inner = nn.Dropout()
    inner.forward = lambda x: x * 7
    return inner


@pytest.mark.parametrize("make", [Louder, hooked, with_a_forward_of_its_own])
def test_what_may_do_something_stays(make):
    model = Wrapped(make()).eval()
    leaves = fxplug.Tracer()
    leaves.is_leaf_module = lambda module, name: True
    graph = leaves.trace(model)
    module = fxplug.GraphModule(model, graph)

    assert not RemoveIdentities().run(module, PassContext()).modified
    torch.testing.assert_close(module(X), model(X))


def test_an_identity_between_input_and_output_is_removed():
    module, result = run(nn.Sequential(nn.Identity(), nn.Dropout()).eval())

    assert result.details["removed"] == 2
    assert [node.op for node in module.graph.nodes] == ["placeholder", "output"]
    assert module(X) is X


def test_a_decision_of_the_program_itself_stays():
    module, result = run(Calls(lambda m, x: F.dropout(x, 0.0, x.sum() > 1)).eval())

    assert not result.modified
    assert F.dropout in [node.target for node in module.graph.nodes]


def test_stochastic_depth_of_torchvision_is_dropout(monkeypatch):
    library = types.ModuleType("torchvision.ops.stochastic_depth")

    def stochastic_depth(input, p, mode, training=True):  # noqa: A002 - as the library names it
        return input

    stochastic_depth.__module__ = library.__name__
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    off = graph.call_function(stochastic_depth, (x, 0.1, "row", False))
    named = graph.call_function(stochastic_depth, (off, 0.1), {"mode": "row", "training": False})
    on = graph.call_function(stochastic_depth, (named, 0.1, "row", True))
    by_default = graph.call_function(stochastic_depth, (on, 0.1, "row"))
    graph.output(by_default)
    module = fxplug.GraphModule(nn.Module(), graph)

    assert not RemoveIdentities().run(module, PassContext()).modified, (
        "a function of that name is not the library's"
    )
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setattr(library, "stochastic_depth", stochastic_depth, raising=False)
    assert RemoveIdentities().run(module, PassContext()).details["removed"] == 2
    assert on.args[0] is x
    assert by_default.args[0] is on

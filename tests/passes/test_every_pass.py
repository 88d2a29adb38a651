"""What every built-in pass keeps to: it says what it did, twice is once, values, origins and modes are kept."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import PassError
from fxplug.passes import BUILTIN_PASSES, Pass, PassContext, PassRecord, Pipeline, PipelineStep

RECORDS = {record.name: record for record in BUILTIN_PASSES}
OPTIONS = {"replace-activations": {"replacements": {"relu": "gelu"}}}
OTHER_VALUES = {"replace-activations"}
"""What the options ask for is another function."""
ONLY_NOTES = {"propagate-shapes"}
every_pass = pytest.mark.parametrize("name", RECORDS)
X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


class Rich(nn.Module):
    """Has something for every pass to do."""

    def __init__(self, *, calls_a_part):
        super().__init__()
        self.calls_a_part = calls_a_part
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.same = nn.Identity()
        self.drop = nn.Dropout(0.5)
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 4)
        self.register_buffer("scale", torch.ones(4))
        self.part = fxplug.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()))

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        x = F.relu(self.second(x) + x)
        x.sum()
        x = self.drop(self.same(x)).mean((2, 3)).mul(2).add_(1)
        x = self.last(self.first(x)) * (self.scale + 1)
        x = torch.tanh(x) * torch.tanh(x)
        return self.part(x) if self.calls_a_part else x


class Plain(nn.Module):
    """Has nothing for any pass to do."""

    def forward(self, x):
        return torch.tan(x)


def captured(name, *, training=False):
    torch.manual_seed(0)
    # Nothing is known of what a part does: other passes are careful around it.
    model = Rich(calls_a_part=name == "inline-submodules")
    with torch.no_grad():
        model.norm.running_mean.add_(0.3)
    model.train(training)
    graph = _LeavingParts().trace(copy.deepcopy(model))
    module = fxplug.GraphModule(copy.deepcopy(model), graph)
    return model, module.train(training)


class _LeavingParts(fxplug.Tracer):
    def is_leaf_module(self, m, module_qualified_name):
        return isinstance(m, fxplug.GraphModule) or super().is_leaf_module(m, module_qualified_name)


def made(name):
    return RECORDS[name].factory(**OPTIONS.get(name, {}))


def run(name, module):
    with torch.no_grad():
        return made(name).run(module, PassContext((X.clone(),), module=module))


def text_of(module):
    return module.code, sorted(
        (key, tuple(value.shape), value.dtype) for key, value in module.state_dict().items()
    )


@every_pass
def test_a_pass_does_what_it_says_once_and_keeps_values_and_origins(name):
    model, module = captured(name)
    before = text_of(module)
    assert run(name, module).modified is (name not in ONLY_NOTES)
    after = text_of(module)
    assert (after != before) is (name not in ONLY_NOTES)
    module.graph.lint()
    assert not run(name, module).modified
    assert text_of(module) == after
    if name not in OTHER_VALUES:
        tolerance = RECORDS[name].tolerance or 1e-5
        torch.testing.assert_close(module(X), model(X), rtol=tolerance, atol=tolerance)
    for node in module.graph.nodes:
        assert node.origins or not node.op.startswith("call_"), node


@every_pass
def test_a_pass_with_nothing_to_do_says_so_and_changes_nothing(name):
    module = fxplug.symbolic_trace(Plain().eval())
    before = text_of(module)
    assert not run(name, module).modified
    assert text_of(module) == before


@every_pass
def test_a_pass_whose_pipeline_refuses_it_leaves_no_trace(name):
    class Broken(Pass):
        def run(self, module, context):
            assert made(name).run(module, context).modified is (name not in ONLY_NOTES)
            raise RuntimeError("after all of it")

    _, module = captured(name)
    before, expected = text_of(module), module(X)
    state = dict(module.state_dict(keep_vars=True))
    with pytest.raises(PassError, match="after all of it"), torch.no_grad():
        Pipeline("trial", [PipelineStep("broken", PassRecord("broken", Broken, "Fails."), {})]).run(
            module, (X,)
        )
    assert text_of(module) == before
    assert all(module.state_dict(keep_vars=True)[key] is value for key, value in state.items())
    assert torch.equal(module(X), expected)


@every_pass
def test_a_module_in_training_mode_does_what_it_did(name):
    model, module = captured(name, training=True)
    run(name, module)
    if name in OTHER_VALUES:
        return
    results = []
    for program in (model, module):
        torch.manual_seed(3)
        results.append(program(X))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)
    for key in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(module.state_dict()[key], model.state_dict()[key])

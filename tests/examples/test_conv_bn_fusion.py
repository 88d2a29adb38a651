"""The example that folds batch norms: short, on public names, and right."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.passes import Pipeline, PipelineStep
from fxplug.testing import check_plugin, make_plugin

FILE = Path(__file__).resolve().parents[2] / "examples" / "conv_bn_fusion.py"
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def load(path=FILE):
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = load()


def random_statistics(model):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(3)
        for part in model.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.running_mean.normal_()
                part.running_var.uniform_(0.5, 2)
                part.weight.uniform_(0.5, 2)
                part.bias.normal_()
    return model.eval()


class Pair(nn.Module):
    def __init__(self, *, bias=True):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=bias)
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class Twice(Pair):
    def forward(self, x):
        return self.bn(self.conv(self.conv(x)))


class NormTwice(Pair):
    def forward(self, x):
        return self.bn(self.bn(self.conv(x)) + 1)


class UsedElsewhere(Pair):
    def forward(self, x):
        y = self.conv(x)
        return self.bn(y) + y


class WeightElsewhere(Pair):
    def forward(self, x):
        return self.bn(self.conv(x)) + self.conv.weight.sum()


def norms(module):
    return sum(
        isinstance(module.get_submodule(node.target), nn.modules.batchnorm._BatchNorm)
        for node in module.graph.find_nodes(op="call_module")
    )


def assert_equal(module, model, *inputs):
    with torch.no_grad():
        torch.testing.assert_close(module(*inputs), model(*inputs), atol=1e-4, rtol=1e-4)


def test_it_has_less_than_150_lines():
    assert len(FILE.read_text(encoding="utf-8").splitlines()) < 150


def test_it_uses_public_names_only():
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    documented = {"fxplug", "fxplug.passes"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fxplug"):
            assert node.module in documented
            public = importlib.import_module(node.module).__all__
            assert [name.name for name in node.names if name.name not in public] == []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
            assert [name for name in names if name.startswith("fxplug") and name not in documented] == []
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_"), f"line {node.lineno} uses {node.attr}"


@pytest.mark.parametrize("bias", [True, False])
def test_a_pair_becomes_one_convolution(bias):
    model = random_statistics(Pair(bias=bias))
    fused = example.fuse(model, (X,))
    assert norms(fused) == 0
    assert not hasattr(fused, "bn")
    assert_equal(fused, model, X)
    assert norms(fxplug.symbolic_trace(model)) == 1


@pytest.mark.parametrize("trains", [True, False])
def test_what_is_made_of_frozen_parameters_is_frozen(trains):
    fused = example.fuse(random_statistics(Pair()).requires_grad_(trains))
    assert [parameter.requires_grad for parameter in fused.parameters()] == [trains, trains]


@pytest.mark.parametrize(
    ("conv", "norm", "size"),
    [(nn.Conv1d, nn.BatchNorm1d, (2, 3, 9)), (nn.Conv3d, nn.BatchNorm3d, (1, 3, 5, 5, 5))],
)
def test_other_dimensions(conv, norm, size):
    model = random_statistics(nn.Sequential(conv(3, 4, 3), norm(4)))
    fused = example.fuse(model)
    assert norms(fused) == 0
    assert_equal(fused, model, torch.randn(size))


@pytest.mark.parametrize(
    ("kind", "left"), [(Twice, 1), (NormTwice, 2), (UsedElsewhere, 1), (WeightElsewhere, 1)]
)
def test_what_is_also_used_elsewhere_stays(kind, left):
    model = random_statistics(kind())
    fused = example.fuse(model)
    assert norms(fused) == left
    assert_equal(fused, model, X)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.train(),
        lambda model: model.bn.train(),
        lambda model: model.conv.register_forward_hook(lambda *_: None),
        lambda model: model.bn.register_forward_pre_hook(lambda *_: None),
        lambda model: setattr(model, "bn", nn.BatchNorm2d(3, track_running_stats=False).eval()),
        lambda model: setattr(model, "bn", nn.BatchNorm2d(3, affine=False).eval()),
        lambda model: setattr(model, "bn", nn.InstanceNorm2d(3).eval()),
        lambda model: setattr(model, "conv", type("Other", (nn.Conv2d,), {})(3, 3, 1).eval()),
        lambda model: model.conv.bfloat16(),
    ],
    ids=["training", "norm", "hook", "pre-hook", "statistics", "affine", "instance", "subclass", "precision"],
)
def test_what_computes_something_else_stays(change):
    model = random_statistics(Pair())
    change(model)
    captured = fxplug.symbolic_trace(model)
    before = str(captured.graph)
    (report,) = Pipeline("test", [PipelineStep("fold", example.RECORD)]).run(captured)
    assert not report.result.modified
    assert str(captured.graph) == before


def test_new_weights_can_be_loaded_into_the_result():
    fused = example.fuse(random_statistics(nn.Sequential(Pair(), Pair(bias=False))))
    torch.manual_seed(7)
    trained = random_statistics(nn.Sequential(Pair(), Pair(bias=False)))
    fxplug.load_original_state_dict(fused, trained.state_dict())
    assert_equal(fused, trained, X)


def test_it_passes_the_checks_that_every_plugin_has_to_pass():
    @fxplug.hookimpl
    def fxplug_register_passes():
        return [example.RECORD]

    report = check_plugin(make_plugin("demo", fxplug_register_passes))
    report.raise_failures()
    assert any("changes" in finding.reason and finding.check == "pass-runs" for finding in report.findings)


def test_resnet_50_is_fused_in_whole():
    file = load(FILE.with_name("resnet50.py"))
    model, inputs = file.resnet50(), file.example_inputs()
    fused = example.fuse(model, inputs)
    assert norms(fused) == 0
    assert len(fused.graph.nodes) == 177 - 53
    with torch.no_grad():
        torch.testing.assert_close(fused(*inputs), model(*inputs), atol=1e-3, rtol=1e-3)

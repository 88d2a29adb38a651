"""Passes that fuse, on whole models, captured with their modules and down to functions: the same results as eager."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.passes import (
    BUILTIN_PASSES,
    FuseConvBN,
    MergeLinear,
    PassContext,
    Pipeline,
    PipelineStep,
    replace_activations,
)
from fxplug.plugins import Config, PluginManager, TraceConfig

CHECKOUT = Path(__file__).resolve().parents[2]
STEPS = [
    PipelineStep(record.name, record)
    for record in BUILTIN_PASSES
    if record.name in {"fuse-conv-bn", "merge-linear"}
]


def load(path):
    spec = importlib.util.spec_from_file_location(f"fused_{Path(path).stem}", CHECKOUT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look for the module that they are made in.
    spec.loader.exec_module(module)
    return module


def through_modules():
    return PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))), candidates=())


LEVELS = pytest.mark.parametrize(
    "manager", [PluginManager(candidates=()), through_modules()], ids=["modules", "functions"]
)


def lively(root):
    generator = torch.Generator().manual_seed(0)
    for part in root.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.uniform_(-1, 1, generator=generator)
            part.running_var.uniform_(0.5, 2, generator=generator)
            part.weight.data.uniform_(-1, 1, generator=generator)
    return root.eval()


def captured(root, inputs, manager):
    return fxplug.trace(root, inputs, mode="value", manager=manager, check=False)


def fuse(module, inputs):
    """Run the passes, and again, and return how many calls they took away."""
    reports = Pipeline("fusion", STEPS).run(module, inputs)
    for again in (FuseConvBN(), MergeLinear()):
        assert not again.run(module, PassContext(inputs, module=module)).modified
    return [report.result.details[name] for report, name in zip(reports, ("folded", "merged"), strict=True)]


OWN = load("benchmarks/own_models.py")


@pytest.mark.parametrize("model", OWN.OWN_MODELS, ids=lambda model: model.name)
@LEVELS
def test_models_of_many_kinds(model, manager):
    torch.manual_seed(0)
    root = lively(model.build())
    inputs = model.inputs(2)
    expected = root(*inputs)
    state = {name: value.clone() for name, value in root.state_dict().items()}

    module = captured(root, inputs, manager)
    fuse(module, inputs)

    torch.testing.assert_close(module(*inputs), expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert all(torch.equal(value, state[name]) for name, value in root.state_dict().items())


@functools.cache
def example_model(file, factory):
    """Return a model that takes long to make, and inputs for it."""
    example = load(f"examples/{file}.py")
    return getattr(example, factory)().eval(), example.example_inputs()


@pytest.mark.parametrize(
    ("file", "factory", "folded"),
    [
        ("resnet50", "resnet50", 53),
        ("learning_to_paint", "actor", 21),
        ("deep_recommender", "deep_recommender", 0),
        ("transformer", "transformer", 0),
    ],
)
@LEVELS
def test_example_models(file, factory, folded, manager):
    root, inputs = example_model(file, factory)
    with torch.no_grad():
        expected = root(*inputs)
        module = captured(root, inputs, manager)
        assert fuse(module, inputs) == [folded, 0]
        found = module(*inputs)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_activations_of_a_whole_model():
    torch.manual_seed(0)
    root, x = load("examples/resnet50.py").ResNet50().eval(), torch.randn(1, 3, 64, 64)
    module = fxplug.symbolic_trace(root)
    assert replace_activations(module, {"relu": "gelu"}).details["replaced"] == 49
    assert not module.graph.find_nodes(op="call_method", target="clone")
    for name, part in list(root.named_modules()):
        if type(part) is nn.ReLU:
            root.set_submodule(name, nn.GELU())
    with torch.no_grad():
        expected, found = root(x), module(x)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()

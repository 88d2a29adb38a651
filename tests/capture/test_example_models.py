"""Models of the kinds that people write, captured on example inputs: what they compute, and how they learn."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.plugins import Config, PluginManager, TraceConfig

CHECKOUT = Path(__file__).resolve().parents[2]


def load(path: str):
    spec = importlib.util.spec_from_file_location(f"models_under_test_{Path(path).stem}", CHECKOUT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look for the module that they are made in.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


OWN = load("benchmarks/own_models.py")
every_model = pytest.mark.parametrize("model", OWN.OWN_MODELS, ids=lambda model: model.name)
every_mode = pytest.mark.parametrize("mode", ["value", "shape"])


def through_modules():
    """Return what makes a trace look through every module."""
    return PluginManager(config=Config(trace=TraceConfig(through_modules=("*",))), candidates=())


every_level = pytest.mark.parametrize(
    "manager", [PluginManager(candidates=()), through_modules()], ids=["modules", "functions"]
)


def run(program, inputs, parameters):
    """Return results and gradients, all in a list."""
    leaves = [value.detach().clone().requires_grad_(value.is_floating_point()) for value in inputs]
    output = program(*leaves)
    results = list(tensors_in(output))
    learning = [result for result in results if result.requires_grad]
    total = sum(
        (result * torch.linspace(0.5, 1.5, result.numel()).view_as(result)).sum() for result in learning
    )
    sources = [leaf for leaf in leaves if leaf.requires_grad] + parameters
    return output, [*results, *torch.autograd.grad(total, sources, allow_unused=True)]


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    else:
        for part in value:
            yield from tensors_in(part)


def assert_same(captured, root, inputs):
    parameters = list(root.parameters())
    expected, wanted = run(root, inputs, parameters)
    output, found = run(captured, inputs, parameters)
    assert type(output) is type(expected)
    if isinstance(expected, dict):
        assert output.keys() == expected.keys()
    torch.testing.assert_close(found, wanted, equal_nan=True)


@every_model
@every_mode
@every_level
def test_captured_model_is_eager_for_batches_of_any_size(model, mode, manager):
    torch.manual_seed(0)
    root = model.build().eval()

    captured = fxplug.trace(root, model.inputs(2), mode=mode, manager=manager)

    for batch in (2, 3, 5):
        assert_same(captured, root, model.inputs(batch))


@pytest.fixture(scope="module")
def resnet50():
    return load("examples/resnet50.py").ResNet50().eval()


@every_mode
def test_resnet50_down_to_functions_has_one_node_for_each_function_and_each_tensor(resnet50, mode):
    images = torch.randn(2, 3, 64, 64)

    captured = fxplug.trace(resnet50, (images,), mode=mode, manager=through_modules(), check=False)

    assert not list(captured.graph.find_nodes(op="call_module"))
    assert len(captured.graph.nodes) <= 444
    with torch.no_grad():
        assert torch.equal(captured(images), resnet50(images))
        assert torch.equal(captured(images[:1]), resnet50(images[:1]))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_resnet50_down_to_functions_is_half_as_large_as_what_torchscript_traces(resnet50):
    images = torch.randn(1, 3, 64, 64)

    captured = fxplug.trace(resnet50, (images,), manager=through_modules(), check=False)
    script = torch.jit.trace(resnet50, (images,)).inlined_graph

    assert len(captured.graph.nodes) < 0.55 * len(list(script.nodes()))


@every_mode
def test_straight_through_estimator_keeps_its_gradient(mode):
    root = OWN.Shortcut()
    x = torch.randn(3, 8, requires_grad=True)

    captured = fxplug.trace(root, (torch.randn(2, 8),), mode=mode)
    (found,) = torch.autograd.grad(captured(x).sum(), x)
    (expected,) = torch.autograd.grad(root(x).sum(), x)

    assert expected.abs().sum() > 0.1
    torch.testing.assert_close(found, expected)


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        batch = x.shape[0]
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        if self.training:
            x = self.dropout(x)
        return self.head(x.view(batch, -1))


def train_one_epoch(program, parameters, images, labels):
    """Return the loss of every step."""
    torch.manual_seed(5)
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    losses = []
    for batch, wanted in zip(images.split(64), labels.split(64), strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(program(batch), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_an_epoch_of_digits_through_a_captured_network_has_the_losses_of_eager():
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    torch.manual_seed(2)
    root, other = Digits().train(), Digits().train()
    other.load_state_dict(root.state_dict())

    captured = fxplug.trace(other, (images[:64],))
    found = train_one_epoch(captured, captured.parameters(), images, labels)
    expected = train_one_epoch(root, root.parameters(), images, labels)

    assert len(expected) == 29  # The last of them is smaller.
    assert expected[-1] < 0.5 * expected[0]
    assert found == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(captured.norm.running_mean, root.norm.running_mean)

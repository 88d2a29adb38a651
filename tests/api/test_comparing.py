"""``fxplug.compare``: modules that are captured, and those that are graph modules already."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import ExampleError
from fxplug.errors import AnalysisError, ConfigError

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.norm(self.first(x))))


class Asks(Net):
    def forward(self, x):
        if x.sum() > 100:
            return x
        return super().forward(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net().eval()


@pytest.mark.parametrize("kind", [Net, Asks])
def test_two_models_are_captured_and_compared(kind):
    model = kind().eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.second.bias += 1

    found = fxplug.compare(model, other, X)

    assert not found.passed
    assert [layer.name for layer in found.differences][:1] == ["second"]
    assert found.first_difference.module_path == "second"
    assert found.first_difference.max_abs_error == pytest.approx(1.0)


def test_a_model_is_compared_with_what_a_pipeline_made_of_it(model):
    result = fxplug.optimize(model, X, measure=False)

    found = fxplug.compare(model, result.graph_module, X)

    assert found.passed
    assert found.first_difference is None
    assert found.only_in_module == ()


def test_tolerances_count(model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.second.bias += 1e-3

    assert not fxplug.compare(model, other, X).passed
    assert fxplug.compare(model, other, X, atol=1e-2).passed


def test_models_and_random_state_stay_as_they_are(model):
    model.train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()

    fxplug.compare(model, copy.deepcopy(model), X)
    fxplug.compare(model, model, X)

    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_capture_that_does_something_else_is_not_compared():
    captured = []

    class Lying(nn.Module):
        def forward(self, x):
            captured.append(x)
            return x + len(captured)

    with pytest.raises(fxplug.FxplugError):
        fxplug.compare(Lying(), nn.Identity(), X)


def test_what_cannot_be_compared_is_refused(model):
    class Two(nn.Module):
        def forward(self, x, y=None):
            return x

    with pytest.raises(ConfigError, match=r"give torch\.nn\.Modules, not a function"):
        fxplug.compare(model, lambda x: x, X)
    with pytest.raises(ConfigError, match="Cannot use a NoneType as example inputs"):
        fxplug.compare(model, model, None)
    with pytest.raises(ConfigError, match="Cannot compare with rtol = -1"):
        fxplug.compare(model, model, X, rtol=-1)
    with pytest.raises(ExampleError, match="Cannot run Net on the example inputs"):
        fxplug.compare(model, model, torch.ones(2, 3))
    with pytest.raises(AnalysisError, match=r"the reference takes \(x\), and the other one takes \(x, y\)"):
        fxplug.compare(model, Two(), X)


@pytest.mark.parametrize(
    "call",
    [
        fxplug.trace,
        lambda images: fxplug.trace(nn.ReLU(), (images,), mode=images),
        lambda images: fxplug.compare(nn.ReLU(), (images,)),
        lambda images: fxplug.plan(nn.ReLU(), (images,), backend=[images]),
    ],
    ids=["root", "option", "module", "backend"],
)
def test_a_tensor_in_the_wrong_place_is_not_printed_whole(call):
    with pytest.raises(fxplug.FxplugError) as refused:
        call(torch.zeros(3, 64, 64))

    assert "tensor([[[0., 0." in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300

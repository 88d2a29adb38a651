"""What is done with captured modules on a GPU: stored, optimised, lowered, measured, compared."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda"


def network():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    )
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    return model.eval().to(DEVICE)


def image(batch=2):
    return torch.linspace(-1, 1, batch * 192, device=DEVICE).reshape(batch, 3, 8, 8)


def test_optimized(tmp_path):
    model = network()
    found = fxplug.optimize(model, (image(),))

    assert not any(isinstance(part, nn.BatchNorm2d) for part in found.module.modules())
    with torch.no_grad():
        torch.testing.assert_close(found.module(image()), model(image()), rtol=1e-4, atol=1e-4)
    fxplug.save(found.module, tmp_path / "model.fxplug")
    loaded = fxplug.load(tmp_path / "model.fxplug")
    with torch.no_grad():
        torch.testing.assert_close(loaded.to(DEVICE)(image()), model(image()), rtol=1e-4, atol=1e-4)


def test_stored_and_loaded(tmp_path):
    captured = fxplug.trace(network(), (image(),))
    fxplug.save(captured, tmp_path / "model.fxplug")
    loaded = fxplug.load(tmp_path / "model.fxplug")
    places = {value.device.type for value in loaded.state_dict().values()}

    assert len(places) == 1
    with torch.no_grad():
        assert torch.equal(loaded.to(DEVICE)(image()), captured(image()))
        torch.testing.assert_close(loaded.cpu()(image().cpu()), captured(image()).cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_lowered_to_inductor():
    model = network()
    found = fxplug.optimize(model, (image(),), backend="inductor")

    with torch.no_grad():
        torch.testing.assert_close(found.module(image()), model(image()), rtol=1e-3, atol=1e-3)


def test_measured():
    measured = fxplug.profile(network(), (image(),), runs=5)

    assert measured.device.startswith("cuda")
    assert all(node.seconds > 0 for node in measured.nodes)


def test_costs_are_those_of_the_cpu():
    on_gpu = fxplug.cost(network(), (image(),))
    on_cpu = fxplug.cost(network().cpu(), (image().cpu(),))

    assert [node.multiply_adds for node in on_gpu.nodes] == [node.multiply_adds for node in on_cpu.nodes]


def test_compared_layer_by_layer():
    model = network()
    captured = fxplug.trace(model, (image(),))
    other = copy.deepcopy(captured)
    with torch.no_grad():
        next(iter(other.parameters())).add_(0.5)
    assert fxplug.compare(captured, captured, (image(),)).passed
    assert fxplug.compare(captured, other, (image(),)).first_difference is not None


def test_decomposed():
    model = network()
    captured = fxplug.trace(model, (image(),))
    found = fxplug.decompose(captured, (image(),), to="core-aten")
    with torch.no_grad():
        torch.testing.assert_close(found(image()), model(image()), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_scripted():
    model = network()
    captured = fxplug.trace(model, (image(),))
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.script(captured)(image()), model(image()))


def test_passes_run_from_the_same_random_state():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(DEVICE)
    torch.manual_seed(2)
    before = torch.cuda.get_rng_state()
    fxplug.optimize(model, (torch.ones(2, 4, device=DEVICE),))

    assert torch.equal(torch.cuda.get_rng_state(), before)

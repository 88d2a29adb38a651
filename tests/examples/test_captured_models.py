"""Every example model, captured: the same outputs and the same gradients as eager."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fxplug

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_MODELS = {
    "resnet50": ("resnet50", 177),
    "deep_recommender": ("deep_recommender", 15),
    "learning_to_paint": ("actor", 74),
    "transformer": ("transformer", 135),
}


def _load(file_name: str) -> Any:
    spec = importlib.util.spec_from_file_location(
        f"captured_example_{file_name}", _EXAMPLES / f"{file_name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _capture(root: nn.Module) -> fxplug.GraphModule:
    return fxplug.GraphModule(root, fxplug.Tracer().trace(root))


def _gradients(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    module.zero_grad()
    leaves = [value.clone().requires_grad_(value.is_floating_point()) for value in inputs]
    module(*leaves).square().mean().backward()
    found = {
        name: parameter.grad.clone()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    found.update({f"input {place}": leaf.grad for place, leaf in enumerate(leaves) if leaf.grad is not None})
    return found


@pytest.fixture(scope="module", params=_MODELS, name="example")
def _example(
    request: pytest.FixtureRequest,
) -> tuple[nn.Module, fxplug.GraphModule, tuple[torch.Tensor, ...], int]:
    file = _load(request.param)
    factory, nodes = _MODELS[request.param]
    root = getattr(file, factory)()
    return root, _capture(root), file.example_inputs(), nodes


def test_graph_has_the_known_number_of_nodes_and_is_well_formed(example: Any) -> None:
    _, captured, _, nodes = example
    assert len(captured.graph.nodes) == nodes
    captured.graph.lint()


def test_captured_module_computes_the_very_numbers_of_eager(example: Any) -> None:
    root, captured, inputs, _ = example
    with torch.no_grad():
        assert torch.equal(captured(*inputs), root(*inputs))
        assert torch.equal(fxplug.Interpreter(captured).run(*inputs), root(*inputs))


def test_captured_module_has_the_gradients_of_eager(example: Any) -> None:
    root, captured, inputs, _ = example
    expected = _gradients(root, inputs)
    found = _gradients(captured, inputs)
    assert expected.keys() == found.keys()
    assert len(expected) >= sum(1 for _ in root.parameters())
    for name, gradient in expected.items():
        assert torch.equal(gradient, found[name]), name
        assert math.isfinite(float(gradient.sum())), name


def test_captured_module_trains_as_eager_does() -> None:
    file = _load("deep_recommender")
    root = file.deep_recommender(items=300).train()
    captured = _capture(root)
    inputs = file.example_inputs(items=300)
    torch.manual_seed(3)
    expected = root(*inputs)
    torch.manual_seed(3)
    assert torch.equal(captured(*inputs), expected)
    assert captured.training

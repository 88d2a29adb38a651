"""Every example model by core operators of ATen: the same results, gradients and statistics as eager."""

from __future__ import annotations

import copy
import importlib.util
import operator
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import fxplug

ROOT = Path(__file__).resolve().parents[2]
ATEN = torch.ops.aten
EXCEPTIONS = {ATEN.copy_.default: "what the program writes to is given its value at the end"}
"""Operators that are no core ones and that stay, with the reason."""
OWN_GRADIENT = "straight-through estimator"
"""Its gradient is Python code, so that it is decomposed for inference."""
WITHOUT_GRADIENTS = {OWN_GRADIENT, "resnet50"}
"""Whose gradients are not compared; ResNet-50 takes long, and has nothing that smaller models have not."""


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"aten_of_{Path(path).stem}", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def example(name: str, factory: str) -> Any:
    file = load(f"examples/{name}.py")
    return getattr(file, factory), file.example_inputs


MODELS: dict[str, Any] = {
    model.name: (model.build, lambda model=model: model.inputs(3))
    for model in load("benchmarks/own_models.py").OWN_MODELS
}
for file_name, factory in (
    ("resnet50", "resnet50"),
    ("deep_recommender", "deep_recommender"),
    ("learning_to_paint", "actor"),
    ("transformer", "transformer"),
):
    MODELS[file_name] = example(file_name, factory)


def outcome(module: Any, inputs: tuple[Any, ...], *, gradients: bool) -> tuple[Any, Any, Any]:
    """Return results, gradients and buffers of one call."""
    module = copy.deepcopy(module)
    given = pytree.tree_map_only(torch.Tensor, torch.clone, inputs)
    leaves = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]
    if gradients:
        leaves = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
    torch.manual_seed(5)
    with torch.set_grad_enabled(gradients):
        results = module(*given)
    ends = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    if gradients:
        sum(end.float().square().mean() for end in ends if end.requires_grad).backward()
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    found.update({str(place): leaf.grad for place, leaf in enumerate(leaves)})
    state = {name: value for name, value in module.state_dict().items() if name not in found}
    return results, found, state


COPY = torch.ops.aten.copy_.default
WRITES_IN_EVALUATION: set[str] = set()
"""Models that write to what is theirs, or to an input, in evaluation mode."""


def assert_writes_back_only(module: Any) -> None:
    """Check that `copy_` gives inputs and state their values, at the end, and nothing else reads them afterwards."""
    nodes = list(module.graph.nodes)
    first = next((place for place, node in enumerate(nodes) if node.target is COPY), len(nodes))
    for node in nodes[first:-1]:
        # The clone is of a result that lies in the memory that is written to.
        assert node.target in {COPY, torch.ops.aten.clone.default} or node.op == "get_attr", (
            node.format_node()
        )
        if node.target is COPY:
            assert node.args[0].op in {"placeholder", "get_attr"}, node.format_node()
            assert set(node.users) <= {nodes[-1]}


def assert_close(actual: Any, expected: Any) -> None:
    ours, theirs = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    for mine, value in zip(ours, theirs, strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(mine, value, rtol=1e-5, atol=1e-5)
        else:
            assert mine == value


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_example_model_by_core_operators_equals_eager(name: str, training: bool) -> None:
    build, make_inputs = MODELS[name]
    torch.manual_seed(0)
    model, inputs = build().train(training), make_inputs()
    captured = fxplug.trace(model, inputs)
    with torch.set_grad_enabled(name != OWN_GRADIENT):
        found = fxplug.decompose(captured, inputs, to="core-aten")
    found.graph.lint()
    for node in found.graph.nodes:
        assert node.op in {"placeholder", "get_attr", "call_function", "output"}
        if node.op == "call_function" and node.target is not operator.getitem:
            assert torch.Tag.core in node.target.tags or node.target in EXCEPTIONS, node.format_node()
            assert node.origins
    assert_writes_back_only(found)
    # No example model writes in evaluation mode but those that are named.
    assert (
        training
        or name in WRITES_IN_EVALUATION
        or not found.graph.find_nodes(op="call_function", target=COPY)
    )
    assert found.state_dict().keys() == captured.state_dict().keys()
    for gradients in {False, name not in WITHOUT_GRADIENTS}:
        ours, theirs = (outcome(module, inputs, gradients=gradients) for module in (found, model))
        for mine, value in zip(ours, theirs, strict=True):
            if isinstance(value, dict) and isinstance(mine, dict):
                assert_close({key: mine[key] for key in value}, value)
            else:
                assert_close(mine, value)

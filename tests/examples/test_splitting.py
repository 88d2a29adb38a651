"""The example models, split, folded and extracted: the same results to the last bit."""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import fxplug

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODELS = {
    "resnet50": ("resnet50.py", lambda: torch.randn(1, 3, 64, 64)),
    "actor": ("learning_to_paint.py", lambda: torch.randn(1, 9, 128, 128)),
    "deep_recommender": ("deep_recommender.py", lambda: torch.rand(2, 17768)),
    "transformer": ("transformer.py", lambda: torch.arange(32).reshape(2, 16)),
}


@pytest.fixture(params=MODELS, scope="module")
def example(request):
    """Return a model in evaluation mode, captured, with an input and what it computes."""
    file, make_input = MODELS[request.param]
    spec = importlib.util.spec_from_file_location(f"split_{request.param}", EXAMPLES / file)
    library = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = library  # Its dataclasses look for their module there.
    spec.loader.exec_module(library)
    torch.manual_seed(0)
    model, value = getattr(library, request.param)().eval(), make_input()
    with torch.no_grad():
        return fxplug.symbolic_trace(model), value, model(value)


def check(module, value, expected):
    module.graph.lint()
    with torch.no_grad():
        torch.testing.assert_close(module(value), expected, rtol=0, atol=0)


def calls(module):
    return [node for node in module.graph.nodes if node.op.startswith("call_")]


def test_split_in_the_order_of_the_program(example):
    module, value, expected = example
    place = {node: number * 5 // len(calls(module)) for number, node in enumerate(calls(module))}
    split = fxplug.split_module(module, None, place.__getitem__)

    check(split, value, expected)
    fxplug.load_original_state_dict(split, module.state_dict())


def test_pipelines_and_groups(example):
    module, value, expected = example

    check(fxplug.split_by_size(module, 3), value, expected)
    check(fxplug.split_by(module, lambda node: node.op == "call_module", min_block_size=2), value, expected)


def test_two_pieces_are_the_whole(example):
    module, value, expected = example
    found = calls(module)
    first = fxplug.extract_subgraph(module, nodes=found[: len(found) // 2])
    second = fxplug.extract_subgraph(module, nodes=found[len(found) // 2 :])
    with torch.no_grad():
        between = first(value)
        given = dict(
            zip(
                [node.name for node in first.graph.output_node().all_input_nodes],
                _listed(between),
                strict=True,
            )
        )
        names = [node.name for node in second.graph.find_nodes(op="placeholder")]
        result = second(*(given.get(name, value) for name in names))

    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def _listed(value):
    return value if isinstance(value, tuple) else (value,)


def test_folding_and_inlining_give_it_back(example):
    module, value, expected = example
    module = fxplug.GraphModule(module, copy.deepcopy(module.graph))
    fxplug.fold_submodule(module, calls(module)[2:9], "folded")
    check(module, value, expected)
    fxplug.inline_submodule(module, "folded")
    check(module, value, expected)

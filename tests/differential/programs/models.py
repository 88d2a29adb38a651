"""Whole models through torch.fx and fxplug: those of the examples, and one of torch.nn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"compared_example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pictures(channels: int, size: int) -> tuple[Any, ...]:
    count = channels * size * size
    return (torch.linspace(-1, 1, 2 * count).reshape(2, channels, size, size),)


class Translator(nn.Module):
    """Embeddings around a whole Transformer of torch.nn."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(7, 8), nn.Embedding(5, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3))
        self.head = nn.Linear(8, 5)

    def forward(self, source, target):
        hidden = self.transformer(self.source(source), self.target(target), tgt_mask=self.mask)
        return self.head(hidden).log_softmax(-1)


PROGRAMS: dict[str, dict[str, Any]] = {
    "resnet50": {"make": example("resnet50").ResNet50, "make_inputs": lambda: pictures(3, 32)},
    "resnet50_evaluated": {
        "make": lambda: example("resnet50").ResNet50().eval(),
        "make_inputs": lambda: pictures(3, 32),
    },
    "deep_recommender": {
        "make": lambda: example("deep_recommender").deep_recommender(24).train(),
        "make_inputs": lambda: example("deep_recommender").example_inputs(0, 24),
    },
    "deep_recommender_constrained": {
        "make": lambda: example("deep_recommender").deep_recommender(24, constrained=True),
        "make_inputs": lambda: example("deep_recommender").example_inputs(1, 24),
    },
    "transformer": {
        "make": example("transformer").transformer,
        "make_inputs": example("transformer").example_inputs,
    },
    "translator": {
        "make": Translator,
        "make_inputs": lambda: (torch.tensor([[1, 2, 6, 3]]), torch.tensor([[0, 4, 1]])),
    },
}

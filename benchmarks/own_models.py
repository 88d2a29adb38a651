"""Small models of the kinds that people write, built of plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OWN_MODELS", "OwnModel", "Shortcut"]

_WIDTH = 16
_STEPS = 6
_WORDS = 50


@dataclass(frozen=True)
class OwnModel:
    """A model and what it is called with."""

    name: str
    build: Callable[[], nn.Module]
    """Makes the model with random weights."""
    inputs: Callable[[int], tuple[Tensor, ...]]
    """Makes the arguments of a call for a batch of so many."""


class Attention(nn.Module):
    """`nn.MultiheadAttention` from one sequence to another, or to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(_WIDTH, 4, batch_first=True)
        self.norm = nn.LayerNorm(_WIDTH)

    def forward(self, x: Tensor, memory: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        source = x if memory is None else memory
        attended, _ = self.attention(x, source, source, key_padding_mask=padding)
        return self.norm(x + attended)


class CausalDecoder(nn.Module):
    """A language model of two layers whose mask is as large as its input is long."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.places = nn.Parameter(torch.randn(32, _WIDTH))
        self.queries = nn.ModuleList(nn.Linear(_WIDTH, 3 * _WIDTH) for _ in range(2))
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, words: Tensor) -> Tensor:
        batch, length = words.shape
        x = self.words(words) + self.places[:length]
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        for layer in self.queries:
            query, key, value = (
                part.view(batch, length, 4, -1).transpose(1, 2) for part in layer(x).chunk(3, -1)
            )
            scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            x = x + (weights @ value).transpose(1, 2).reshape(batch, length, -1)
        return self.head(x)


class Recurrent(nn.Module):
    """Words through an LSTM or a GRU, whose last state is classified."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.cells = kind(_WIDTH, _WIDTH, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * _WIDTH, 3)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        states = torch.zeros(4, words.size(0), _WIDTH)
        start = (states, states) if isinstance(self.cells, nn.LSTM) else states
        outputs, last = self.cells(self.words(words), start)
        if isinstance(last, tuple):
            last = last[0]
        return self.head(outputs.mean(dim=1)), last


class UNet(nn.Module):
    """Down and up again, with what was seen on the way down joined in at its size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._block(3, 8), self._block(8, 16)])
        self.bottom = self._block(16, 32)
        self.up = nn.ModuleList([self._block(48, 16), self._block(24, 8)])
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        for block in self.down:
            seen.append(block(x))
            x = F.max_pool2d(seen[-1], 2)
        x = self.bottom(x)
        for block in self.up:
            skipped = seen.pop()
            x = F.interpolate(x, size=skipped.shape[-2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([x, skipped], dim=1))
        return self.head(x)


class Experts(nn.Module):
    """A mixture of experts: the best two of each token are weighed, and every expert sees every token."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(_WIDTH, 32), nn.GELU(), nn.Linear(32, _WIDTH)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        chances = self.gate(x).softmax(dim=-1)
        best, chosen = chances.topk(2, dim=-1)
        weights = torch.zeros_like(chances).scatter(-1, chosen, best / best.sum(dim=-1, keepdim=True))
        answers = torch.stack([expert(x) for expert in self.experts], dim=-1)
        load = weights.flatten(0, -2).mean(dim=0)
        return {"output": (answers * weights.unsqueeze(-2)).sum(dim=-1), "load": load, "chosen": chosen}


class Detector(nn.Module):
    """Boxes on two scales around anchors that depend on the size of the image, as a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.scales = nn.ModuleList(nn.Conv2d(8, 8, 3, stride=2, padding=1) for _ in range(2))
        self.boxes = nn.Conv2d(8, 4, 1)
        self.classes = nn.Conv2d(8, 5, 1)

    def _anchors(self, features: Tensor, stride: int) -> Tensor:
        height, width = features.shape[-2:]
        rows = torch.arange(height, device=features.device, dtype=features.dtype) * stride
        columns = torch.arange(width, device=features.device, dtype=features.dtype) * stride
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        return torch.stack([x, y, x + stride, y + stride], dim=-1).view(-1, 4)

    def forward(self, images: Tensor) -> dict[str, Tensor | list[Tensor]]:
        x, features, boxes, classes = self.stem(images), list[Tensor](), list[Tensor](), list[Tensor]()
        for level, scale in enumerate(self.scales):
            x = scale(x).relu()
            features.append(x)
            offsets = self.boxes(x).permute(0, 2, 3, 1).reshape(images.shape[0], -1, 4)
            boxes.append(self._anchors(x, 4 * 2**level) + offsets)
            classes.append(self.classes(x).flatten(2).transpose(1, 2))
        scores, labels = torch.cat(classes, dim=1).sigmoid().max(dim=-1)
        return {"boxes": torch.cat(boxes, dim=1), "scores": scores, "labels": labels, "features": features}


class Round(torch.autograd.Function):
    """Rounding whose gradient is passed straight through."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        """Return the nearest whole numbers."""
        return x.round()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
        """Return the gradient as it is."""
        return gradients[0]


class Shortcut(nn.Module):
    """A quantised layer that learns by a straight-through estimator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(Round.apply(x * 4) / 4).tanh()


def _sequences(batch: int) -> tuple[Tensor]:
    return (torch.randn(batch, _STEPS, _WIDTH),)


def _words(batch: int) -> tuple[Tensor]:
    return (torch.randint(0, _WORDS, (batch, _STEPS)),)


def _images(batch: int) -> tuple[Tensor]:
    return (torch.randn(batch, 3, 20, 28),)


def _two_sequences(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, _STEPS, _WIDTH), torch.randn(batch, _STEPS + 3, _WIDTH)


def _masked_sequences(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    padding = torch.arange(_STEPS + 3) >= torch.randint(3, _STEPS + 3, (batch, 1))
    return *_two_sequences(batch), padding


OWN_MODELS = (
    OwnModel(
        "nn.TransformerEncoderLayer",
        lambda: nn.TransformerEncoderLayer(_WIDTH, 4, 32, batch_first=True),
        _sequences,
    ),
    OwnModel(
        "nn.TransformerDecoderLayer",
        lambda: nn.TransformerDecoderLayer(_WIDTH, 4, 32, batch_first=True),
        _two_sequences,
    ),
    OwnModel("self-attention", Attention, _sequences),
    OwnModel("cross-attention", Attention, _two_sequences),
    OwnModel("cross-attention with a mask", Attention, _masked_sequences),
    OwnModel("causal decoder", CausalDecoder, _words),
    OwnModel("LSTM classifier", lambda: Recurrent(nn.LSTM), _words),
    OwnModel("GRU classifier", lambda: Recurrent(nn.GRU), _words),
    OwnModel("U-Net", UNet, _images),
    OwnModel("mixture of experts", Experts, _sequences),
    OwnModel("detector with dicts", Detector, _images),
    OwnModel("straight-through estimator", Shortcut, lambda batch: (torch.randn(batch, 8),)),
)
"""What capture is tried on."""

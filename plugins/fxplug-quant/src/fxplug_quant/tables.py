"""Tables of embeddings whose rows have 8 bits: rows are made float when they are looked up."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fxplug_quant.affine import SMALLEST_SCALE
from fxplug_quant.inference import without_backward

__all__ = ["Int8Embedding", "Int8EmbeddingBag"]


class Int8Embedding(nn.Module):
    """Computes what ``nn.Embedding`` computes, from rows of 8 bits: ``int_weight * weight_scale + weight_low``.

    Args:
        int_weight: uint8, a row for each number.
        weight_scale: float32, one per row.
        weight_low: float32, the least value of each row.
    """

    int_weight: Tensor
    weight_scale: Tensor
    weight_low: Tensor

    def __init__(self, int_weight: Tensor, weight_scale: Tensor, weight_low: Tensor) -> None:
        super().__init__()
        self.register_buffer("int_weight", int_weight)
        self.register_buffer("weight_scale", weight_scale)
        self.register_buffer("weight_low", weight_low)

    @classmethod
    def from_float(cls, embedding: nn.Embedding) -> Int8Embedding:
        """Return a table with the rounded rows of `embedding`, which is left as it is."""
        return Int8Embedding(*_rounded_rows(embedding.weight)).eval()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as in torch.nn
        """Return the rows that integers name, in float32."""
        scale, low = (
            functional.embedding(input, column[:, None]) for column in (self.weight_scale, self.weight_low)
        )
        return functional.embedding(input, self.int_weight).to(scale.dtype).mul_(scale).add_(low)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        rows, size = self.int_weight.shape
        return f"{rows}, {size}, weight=uint8 per row"


class Int8EmbeddingBag(Int8Embedding):
    """Computes what ``nn.EmbeddingBag`` computes, from rows of 8 bits.

    Args:
        int_weight: As for `Int8Embedding`.
        weight_scale: As for `Int8Embedding`.
        weight_low: As for `Int8Embedding`.
        mode: How the rows of a bag become one: ``"sum"``, ``"mean"`` or ``"max"``.
        include_last_offset: Whether the last offset is the end of the last bag.
    """

    def __init__(
        self,
        int_weight: Tensor,
        weight_scale: Tensor,
        weight_low: Tensor,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
    ) -> None:
        super().__init__(int_weight, weight_scale, weight_low)
        self.mode = mode
        self.include_last_offset = include_last_offset

    @classmethod
    def from_float(cls, embedding: nn.Embedding | nn.EmbeddingBag) -> Int8EmbeddingBag:
        """Return a table with the rounded rows of `embedding`, which is left as it is."""
        bag = cast("nn.EmbeddingBag", embedding)
        return Int8EmbeddingBag(
            *_rounded_rows(bag.weight), mode=bag.mode, include_last_offset=bag.include_last_offset
        ).eval()

    def forward(
        self,
        input: Tensor,  # noqa: A002 - as in torch.nn
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return a row for each bag of integers, in float32."""
        return without_backward(self, self.compute, input, offsets, per_sample_weights)

    def compute(self, chosen: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None) -> Tensor:
        """Return the rows of bags without a gradient."""
        rows = super().forward(chosen.reshape(-1))
        return functional.embedding_bag(
            torch.arange(len(rows), device=rows.device, dtype=chosen.dtype).view(chosen.shape),
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
        )

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return f"{super().extra_repr()}, mode={self.mode!r}"


def _rounded_rows(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.inference_mode(mode=False), torch.no_grad():
        given = weight.detach().clone()
        low, high = given.aminmax(dim=1) if given.shape[1] else (given.new_zeros(len(given)),) * 2
        scale = ((high - low) / 255).clamp_min(SMALLEST_SCALE)
        steps = ((given - low[:, None]) / scale[:, None]).round().clamp(0, 255).to(torch.uint8)
        return steps, scale, low.clone()

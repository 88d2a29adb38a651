"""Masks of attentions, as a layer that stands alone in files and exported programs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fxplug_quant.errors import QuantizationError

__all__ = ["AttentionMask"]


class AttentionMask(nn.Module):
    """Makes of the masks of an attention what is added to its products, the way ``nn.MultiheadAttention`` does.

    Args:
        heads: How many heads the attention has.
        is_causal: Whether the attention was told that ``attn_mask`` is a causal one, so that it must be there.
    """

    def __init__(self, heads: int, *, is_causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.is_causal = is_causal

    def forward(
        self, query: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor | None:
        """Return the sum of both masks, of which True is minus infinity; None where there is none.

        Raises:
            QuantizationError: There is no causal mask, or a mask has another shape than the query needs.
        """
        if self.is_causal and attn_mask is None:
            raise QuantizationError(
                "Cannot compute attention: is_causal is set, and attn_mask is None. Give the mask.",
                code="FXP-Q002",
            )
        # Those of other shapes would be broadcast, where nn.MultiheadAttention refuses them.
        batch, length = query.shape[:-3], query.shape[-2]
        if key_padding_mask is not None:
            _expect(key_padding_mask, "key_padding_mask", [(*batch, key_padding_mask.shape[-1])])
            key_padding_mask = _added(key_padding_mask, query)[..., None, None, :]
        if attn_mask is None:
            return key_padding_mask
        row = (length, attn_mask.shape[-1])
        _expect(attn_mask, "attn_mask", [row, (math.prod(batch) * self.heads, *row)])
        mask = _added(attn_mask, query)
        if mask.dim() == 3 and query.dim() == 4:
            mask = mask.unflatten(0, (-1, self.heads))
        return mask if key_padding_mask is None else mask + key_padding_mask

    def extra_repr(self) -> str:
        """Return what ``repr`` shows between the brackets."""
        return f"{self.heads} heads, is_causal={self.is_causal}"


def _expect(mask: Tensor, name: str, shapes: list[tuple[int, ...]]) -> None:
    if mask.shape not in shapes:
        raise QuantizationError(
            f"Cannot compute attention: {name} has the shape {tuple(mask.shape)}. Give one of the shape "
            f"{' or '.join(map(str, shapes))}.",
            code="FXP-Q002",
        )


def _added(mask: Tensor, query: Tensor) -> Tensor:
    if mask.is_floating_point():
        return mask
    if mask.dtype is not torch.bool:
        found = str(mask.dtype).removeprefix("torch.")
        raise QuantizationError(
            f"Cannot compute attention: a mask is {found}. Give bool or floating-point numbers.",
            code="FXP-Q002",
        )
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, -math.inf)

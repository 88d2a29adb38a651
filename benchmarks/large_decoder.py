"""A decoder with 70 billion parameters, which no memory holds: captured and costed on the meta device.

Its sizes are those of Llama 2 70B (H. Touvron et al., arXiv:2307.09288): 80 layers, 8192 features, 64 heads of which 8
have keys and values, 28,672 features inside, 32,000 words.

    python -m benchmarks.large_decoder [--length 4096]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxplug

__all__ = ["Decoder", "Sizes", "counted_by_hand", "parameters_by_hand"]


@dataclass(frozen=True)
class Sizes:
    """What a decoder is made of."""

    layers: int = 80
    width: int = 8192
    heads: int = 64
    key_heads: int = 8
    inner: int = 28672
    words: int = 32000

    @property
    def head_width(self) -> int:
        """Features of one head."""
        return self.width // self.heads


class Attention(nn.Module):
    """Causal attention with rotated queries and keys; several heads share keys and values."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        shared = sizes.key_heads * sizes.head_width
        self.query = nn.Linear(sizes.width, sizes.width, bias=False)
        self.key = nn.Linear(sizes.width, shared, bias=False)
        self.value = nn.Linear(sizes.width, shared, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return what every word gathers from those before it."""
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, -1, self.sizes.head_width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = (_rotated(part, cosine, sine) for part in (query, key))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Inner(nn.Module):
    """Two layers with a gate."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.width, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return new features of every word."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Attention and the layers inside, each added to what goes in."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention, self.inner = Attention(sizes), Inner(sizes)
        self.before, self.between = (nn.RMSNorm(sizes.width, eps=1e-5) for _ in range(2))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the features behind the layer."""
        x = x + self.attention(self.before(x), cosine, sine)
        return x + self.inner(self.between(x))


class Decoder(nn.Module):
    """From words to scores of the next word."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.words = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, eps=1e-5)
        self.head = nn.Linear(sizes.width, sizes.words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores, (batch, length, words)."""
        x = self.words(words)
        half = self.sizes.head_width // 2
        rates = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        angles = (torch.arange(words.shape[1], device=x.device)[:, None] * rates).to(x.dtype)
        angles = torch.cat([angles, angles], -1)
        cosine, sine = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return self.head(self.norm(x))


def parameters_by_hand(sizes: Sizes) -> int:
    """Return how many parameters there are."""
    shared = sizes.key_heads * sizes.head_width
    layer = 2 * sizes.width**2 + 2 * sizes.width * shared + 3 * sizes.width * sizes.inner + 2 * sizes.width
    return sizes.layers * layer + 2 * sizes.words * sizes.width + sizes.width


def counted_by_hand(sizes: Sizes, length: int) -> int:
    """Return the multiply-adds of all products of matrices for one text of so many words."""
    shared = sizes.key_heads * sizes.head_width
    layer = 2 * sizes.width**2 + 2 * sizes.width * shared + 3 * sizes.width * sizes.inner
    attention = (
        2 * length * sizes.width
    )  # For each word, as fxplug counts: masked products are computed, too.
    return length * (sizes.layers * (layer + attention) + sizes.words * sizes.width)


def main() -> None:
    """Capture and cost the decoder, and compare with what is counted by hand."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--length", type=int, default=4096)
    length = parser.parse_args().length
    sizes = Sizes()
    started = time.perf_counter()
    with torch.device("meta"):
        model = Decoder(sizes).to(torch.bfloat16).eval()
        inputs = (torch.zeros(1, length, dtype=torch.int64),)
    built = time.perf_counter()
    costs = fxplug.cost(model, inputs)
    ended = time.perf_counter()
    by_hand = counted_by_hand(sizes, length)
    print(
        f"built on the meta device in {built - started:.1f} s, captured and costed in {ended - built:.1f} s"
    )
    print(f"calls           {len(costs.nodes):,}, of which nobody knows {len(costs.unknown)}")
    print(f"parameters      {costs.parameter_bytes // 2:,}; by hand {parameters_by_hand(sizes):,}")
    print(f"multiply-adds   {costs.multiply_adds:,}; products by hand {by_hand:,}")
    print(f"parameters take {costs.parameter_bytes / 2**30:.1f} GiB")
    peak = costs.peak_node
    where = "" if peak is None else f", at {peak.name} ({peak.line})"
    print(f"activations     {(costs.peak_activation_bytes or 0) / 2**30:.2f} GiB at the most{where}")


if __name__ == "__main__":
    main()

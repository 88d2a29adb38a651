"""A small Transformer encoder that predicts, at each position of a text, the token that belongs there.

Source: A. Vaswani et al., "Attention Is All You Need", arXiv:1706.03762, as an encoder with learned positions
and GELU in the manner of J. Devlin et al., "BERT", arXiv:1810.04805. Attention is written out in plain
operations: linear layers, views and transposes, two matrix products, a softmax.

Input: `tokens`, int64, (batch, length): numbers from 0 to 999, and a length of at most 64.
Output: logits, float32, (batch, length, 1000).
Size: 860,008 parameters.

The sizes of the batch and of the text stay symbolic in a trace. The weights are random and always the same;
nothing is downloaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_VOCABULARY = 1000
_MAX_LENGTH = 64
_WIDTH = 128
_HEADS = 4
_LAYERS = 3
_DROPOUT = 0.1
_WEIGHT_SEED = 64


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention of a text to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_width).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return, for each position, a mix of the values of all positions."""
        query = self._split_heads(self.query(x))
        key = self._split_heads(self.key(x))
        value = self._split_heads(self.value(x))
        scores = torch.matmul(query, key.transpose(-2, -1)) / self.head_width**0.5
        mixed = torch.matmul(functional.softmax(scores, dim=-1), value)
        joined = mixed.transpose(1, 2).reshape(x.shape[0], x.shape[1], self.heads * self.head_width)
        return self.out(joined)


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each with dropout, a residual and a layer norm after it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's activations, of the same shape."""
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        hidden = functional.gelu(self.expand(x))
        return self.feed_forward_norm(x + self.dropout(self.contract(hidden)))


class TransformerEncoder(nn.Module):
    """Token and position embeddings, a stack of encoder layers, and a linear layer over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.position = nn.Parameter(torch.randn(_MAX_LENGTH, _WIDTH))
        self.layers = nn.ModuleList(EncoderLayer(_WIDTH, _HEADS) for _ in range(_LAYERS))
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position of a batch of texts."""
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def transformer() -> TransformerEncoder:
    """Build the model in eval mode, with random weights that are the same at every call.

    The global random state is left as it was.

    Returns:
        The model.
    """
    # Forking no device is right: only the CPU's generator is seeded, whereas torch.manual_seed would seed
    # them all.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_WEIGHT_SEED)
        model = TransformerEncoder()
        # Gains of exactly one and shifts of zero would hide a rewrite that forgets them.
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.2)
    return model.eval()


def example_inputs(seed: int = 0) -> tuple[Tensor]:
    """Make two texts of 16 tokens, the same at every call.

    The global random state is left as it was.

    Args:
        seed: Another number gives other texts.

    Returns:
        The model's only argument, int64, (2, 16).
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return (torch.randint(_VOCABULARY, (2, 16)),)

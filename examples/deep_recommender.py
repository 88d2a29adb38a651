"""NVIDIA's DeepRecommender: an autoencoder that completes a user's row of ratings.

Source: O. Kuchaiev, B. Ginsburg, "Training Deep AutoEncoders for Collaborative Filtering", arXiv:1708.01715.
The sizes are those of its Netflix experiments: 17,768 items, an encoder of 512, 512 and 1024 units, a
mirrored decoder, SELU after every layer including the last, and dropout of 0.8 between encoder and decoder.

Input: `ratings`, float32, (batch, 17768): stars from 1 to 5, and 0 where the user has not rated the item.
Output: predicted ratings, float32, (batch, 17768).
Size: 19,788,136 parameters; 9,904,488 when the decoder shares the encoder's weights.

The weights are random and always the same; nothing is downloaded.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

_ITEMS = 17_768
_HIDDEN = (512, 512, 1024)
_DROPOUT = 0.8
_RATED_ITEMS = 200
_WEIGHT_SEED = 17


class TransposedLinear(nn.Module):
    """Linear layer in the opposite direction of another one: its weights transposed, a bias of its own."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.weight = source.weight
        self.bias = nn.Parameter(torch.zeros(source.in_features))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` mapped from the other layer's outputs to its inputs."""
        return functional.linear(x, self.weight.t(), self.bias)


class AutoEncoder(nn.Module):
    """Encoder, dropout on the code, and a decoder with the encoder's widths in reverse.

    Args:
        items: Width of the input and the output.
        constrained: Whether the decoder uses the encoder's weights, transposed, instead of its own.
    """

    def __init__(self, items: int, *, constrained: bool) -> None:
        super().__init__()
        widths = list(pairwise((items, *_HIDDEN)))
        encoder = [nn.Linear(wide, narrow) for wide, narrow in widths]
        self.encoder = nn.ModuleList(encoder)
        self.dropout = nn.Dropout(_DROPOUT)
        self.decoder = nn.ModuleList(
            [TransposedLinear(layer) for layer in reversed(encoder)]
            if constrained
            else [nn.Linear(narrow, wide) for wide, narrow in reversed(widths)]
        )

    def encode(self, ratings: Tensor) -> Tensor:
        """Return the code of each user, (batch, 1024)."""
        code = ratings
        for layer in self.encoder:
            code = functional.selu(layer(code))
        return code

    def decode(self, code: Tensor) -> Tensor:
        """Return the ratings that each code stands for."""
        ratings = code
        for layer in self.decoder:
            ratings = functional.selu(layer(ratings))
        return ratings

    def forward(self, ratings: Tensor) -> Tensor:
        """Return the completed ratings of a batch of users."""
        return self.decode(self.dropout(self.encode(ratings)))


def deep_recommender(items: int = _ITEMS, *, constrained: bool = False) -> AutoEncoder:
    """Build the model in eval mode, with random weights that are the same at every call.

    The global random state is left as it was.

    Args:
        items: Number of items; fewer make a small model for a quick trial.
        constrained: Whether the decoder shares the encoder's weights.

    Returns:
        The model.
    """
    # Forking no device is right: only the CPU's generator is seeded, whereas torch.manual_seed would seed
    # them all.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_WEIGHT_SEED)
        model = AutoEncoder(items, constrained=constrained)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                nn.init.normal_(parameter, std=0.1)
            else:
                # As the authors do: with SELU, a signal keeps its scale through all layers, so the code and
                # with it the output differ from user to user as much as the ratings do.
                nn.init.xavier_uniform_(parameter)
    return model.eval()


def example_inputs(seed: int = 0, items: int = _ITEMS) -> tuple[Tensor]:
    """Make the ratings of two users, the same at every call.

    The global random state is left as it was.

    Args:
        seed: Another number gives other users.
        items: Number of items, as given to the model.

    Returns:
        The model's only argument, float32, (2, items); each user rated about 200 items, or half of them where
        there are fewer than 400.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        stars = torch.randint(1, 6, (2, items)).float()
        return (stars * (torch.rand(2, items) < min(0.5, _RATED_ITEMS / items)),)

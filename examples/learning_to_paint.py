"""The actor of Learning-to-Paint: from a canvas and a target picture, choose the next five brush strokes.

Source: Z. Huang, W. Heng, S. Zhou, "Learning to Paint With Model-based Deep Reinforcement Learning",
arXiv:1903.04411. The network is a ResNet-18 with batch norm whose stem is one strided 3x3 convolution;
activations, pooling and the sigmoid are function calls, as in the authors' program.

Input: `state`, float32, (batch, 9, 128, 128). Channels 0 to 2 are the canvas and 3 to 5 the target, both RGB
    from 0 to 1; channel 6 is the fraction of steps already taken; channels 7 and 8 are the row and column,
    from 0 to 1.
Output: float32, (batch, 65), between 0 and 1: five strokes of 13 numbers (three points with x and y, two
    radii, two transparencies, a colour).
Size: 11,209,857 parameters, 21 batch-norm layers.

The weights are random and always the same; nothing is downloaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_CANVAS_SIZE = 128
_WEIGHT_SEED = 18
_LOGIT_DEVIATION = 3.0


def _conv3x3(in_channels: int, out_channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions; its shortcut is empty where the shapes already agree."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv3x3(in_channels, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3x3(channels, channels, stride=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return functional.relu(out)


class Actor(nn.Module):
    """Stem, four stages of two blocks that each halve the picture, average pooling, linear layer, sigmoid."""

    def __init__(self, in_channels: int = 9, actions: int = 65) -> None:
        super().__init__()
        self.conv1 = _conv3x3(in_channels, 64, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, stride=2), BasicBlock(64, 64, stride=1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, stride=2), BasicBlock(128, 128, stride=1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, stride=2), BasicBlock(256, 256, stride=1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, stride=2), BasicBlock(512, 512, stride=1))
        self.fc = nn.Linear(512, actions)

    def features(self, state: Tensor) -> Tensor:
        """Return what the last layer sees of a batch of states, (batch, 512)."""
        x = functional.relu(self.bn1(self.conv1(state)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = functional.avg_pool2d(x, 4)
        return x.view(x.size(0), -1)

    def forward(self, state: Tensor) -> Tensor:
        """Return the strokes' parameters for a batch of states."""
        return torch.sigmoid(self.fc(self.features(state)))


def actor() -> Actor:
    """Build the model in eval mode, with random weights that are the same at every call.

    The global random state is left as it was.

    Returns:
        The model, its batch-norm statistics measured on data and its strokes spread over the range of the
        sigmoid.
    """
    # Forking no device is right: only the CPU's generator is seeded, whereas torch.manual_seed would seed
    # them all.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(_WEIGHT_SEED)
        model = Actor()
        size = (16, 9, _CANVAS_SIZE, _CANVAS_SIZE)
        kinds = [_states(16), torch.randn(size), torch.rand(size)]
        halves = [torch.cat([states[half::2] for states in kinds]) for half in (0, 1)]
        _measure_batch_norms(model, batches=halves)
        _separate_strokes(model, kinds)
    return model


def example_inputs(seed: int = 0) -> tuple[Tensor]:
    """Make one state of a painting under way, the same at every call.

    The global random state is left as it was.

    Args:
        seed: Another number gives another canvas, target and step.

    Returns:
        The model's only argument, float32, (1, 9, 128, 128).
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return (_states(1),)


def _measure_batch_norms(model: Actor, batches: list[Tensor]) -> None:
    """Give the batch norms random gains and shifts, and statistics averaged over the batches."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.2)
        norm.momentum = None  # a plain average; an exponential one would keep most of the initial 0 and 1
    model.train()
    for batch in batches:
        model(batch)
    model.eval()
    for norm in norms:
        norm.momentum = 0.1


def _separate_strokes(model: Actor, kinds: list[Tensor]) -> None:
    """Make the strokes depend on the state: turn the last layer away from what all states of a kind share.

    After a ReLU and an average over the picture, the features of an untrained network are one large positive
    vector plus small differences; through random weights and the sigmoid, any two states get nearly the same
    strokes (cosine above 0.99), and a rewrite that ignored its input would look right. A trained actor
    answers different pictures with different strokes. So does this one: the last layer's weights are made
    orthogonal to the mean features of each kind, then scaled until the numbers before the sigmoid use most of
    its range.
    """
    features = torch.stack([model.features(states) for states in kinds])
    shared, _ = torch.linalg.qr(features.mean(dim=1).T)
    weight = model.fc.weight
    weight -= weight @ shared @ shared.T
    weight *= _LOGIT_DEVIATION / (features @ weight.T).std(dim=1).mean()


def _states(count: int) -> Tensor:
    """Pair random canvases and targets with a step and the coordinates, as the painting environment does."""
    axis = torch.linspace(0.0, 1.0, _CANVAS_SIZE)
    row, column = torch.meshgrid(axis, axis, indexing="ij")
    return torch.cat(
        [
            _pictures(count),
            _pictures(count),
            torch.rand(count, 1, 1, 1).expand(count, 1, _CANVAS_SIZE, _CANVAS_SIZE),
            torch.stack([row, column]).expand(count, 2, _CANVAS_SIZE, _CANVAS_SIZE),
        ],
        dim=1,
    )


def _pictures(count: int) -> Tensor:
    """Blend random grids from coarse to fine, with values from 0 to 1: patches and edges of many sizes."""
    size = (_CANVAS_SIZE, _CANVAS_SIZE)
    layers = [
        functional.interpolate(torch.randn(count, 3, cells, cells), size=size, mode="bilinear")
        for cells in (3, 7, 16, 56)
    ]
    return torch.sigmoid(torch.stack(layers).sum(dim=0))

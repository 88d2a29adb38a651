"""ResNet-50 v1.5, an image classifier, written with plain PyTorch modules.

Source: K. He, X. Zhang, S. Ren, J. Sun, "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
Version 1.5 puts the stride of a down-sampling block on its 3x3 convolution instead of the first 1x1.

Input: `x`, float32, (batch, 3, height, width), normalised to about zero mean and unit variance per
    channel; 224x224 is the usual size and any size from 32x32 upwards works.
Output: logits, float32, (batch, 1000).
Size: 25,557,032 parameters, 53 batch-norm layers; a symbolic trace has 177 nodes.

The weights are random and always the same; nothing is downloaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

_IMAGE_SIZE = 224
_WEIGHT_SEED = 50


class Bottleneck(nn.Module):
    """Residual block: 1x1 reduction, 3x3 convolution, 1x1 expansion, added to the shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's activations."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += shortcut
        return self.relu(out)


class ResNet50(nn.Module):
    """Stem, four stages of bottleneck blocks (3, 4, 6, 3), global average pooling, one linear layer."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, blocks=3, stride=1)
        self.layer2 = _stage(256, 128, blocks=4, stride=2)
        self.layer3 = _stage(512, 256, blocks=6, stride=2)
        self.layer4 = _stage(1024, 512, blocks=3, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * Bottleneck.expansion, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return what the last layer sees of a batch of images, (batch, 2048)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return torch.flatten(self.avgpool(x), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        return self.fc(self.features(x))


def _stage(in_channels: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    out_channels = channels * Bottleneck.expansion
    rest = [Bottleneck(out_channels, channels) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(in_channels, channels, stride), *rest)


def resnet50() -> ResNet50:
    """Build the model in eval mode, with random weights that are the same at every call.

    The global random state is left as it was.

    Returns:
        The model, its batch-norm statistics measured on data and its logits of about unit deviation.
    """
    # Forking no device is right: only the CPU's generator is seeded, whereas torch.manual_seed would seed
    # them all.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(_WEIGHT_SEED)
        model = ResNet50()
        size = (4, 3, _IMAGE_SIZE, _IMAGE_SIZE)
        kinds = [_pictures(4), torch.randn(size), torch.rand(size)]
        halves = [torch.cat([images[half::2] for images in kinds]) for half in (0, 1)]
        _measure_batch_norms(model, batches=halves)
        _separate_logits(model, kinds)
    return model


def example_inputs(seed: int = 0) -> tuple[Tensor]:
    """Make one picture-like image, the same at every call.

    The global random state is left as it was.

    Args:
        seed: Another number gives another image.

    Returns:
        The model's only argument, float32, (1, 3, 224, 224).
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return (_pictures(1),)


def _measure_batch_norms(model: ResNet50, batches: list[Tensor]) -> None:
    """Give the batch norms random gains and shifts, and statistics averaged over the batches."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.2)
        norm.momentum = None  # a plain average; an exponential one would keep most of the initial 0 and 1
    # Training leaves the gain that ends a block small. Were it near one, 16 blocks would amplify float32
    # rounding until a correct rewrite changes the logits by 4e-4 instead of 3e-5, much like a mistake.
    for module in model.modules():
        if isinstance(module, Bottleneck):
            nn.init.uniform_(module.bn3.weight, 0.1, 0.3)
    model.train()
    for batch in batches:
        model(batch)
    model.eval()
    for norm in norms:
        norm.momentum = 0.1


def _separate_logits(model: ResNet50, kinds: list[Tensor]) -> None:
    """Make the logits depend on the image: turn the last layer away from what all images of a kind share.

    After a ReLU and an average over the image, the features of an untrained network are one large positive
    vector plus small differences; through random weights, any two images get nearly the same logits (cosine
    above 0.95), and a rewrite that ignored its input would look right. A trained classifier reads the
    differences. So does this one: its weights are made orthogonal to the mean features of each kind, then
    scaled to logits of unit deviation.
    """
    features = torch.stack([model.features(images) for images in kinds])
    shared, _ = torch.linalg.qr(features.mean(dim=1).T)
    weight = model.fc.weight
    weight -= weight @ shared @ shared.T
    weight /= (features @ weight.T).std(dim=1).mean()


def _pictures(count: int) -> Tensor:
    """Blend random grids from coarse to fine: smooth patches and edges of many sizes, as photographs have."""
    size = (_IMAGE_SIZE, _IMAGE_SIZE)
    layers = [
        functional.interpolate(torch.randn(count, 3, cells, cells), size=size, mode="bilinear")
        for cells in (3, 7, 16, 56, _IMAGE_SIZE)
    ]
    blend = torch.stack(layers).sum(dim=0)
    return blend / blend.std(dim=(2, 3), keepdim=True)

"""Building blocks of well-known architectures through torch.fx and fxplug: equal graphs, values, gradients, text."""

# Annotations are part of what is compared, so they are no text here: no `from __future__ import annotations`.
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

PROGRAMS: dict[str, dict[str, Any]] = {}


def block(make_inputs: Callable[[], tuple[Any, ...]]) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def register(kind: type[nn.Module]) -> type[nn.Module]:
        PROGRAMS[kind.__name__] = {"make": kind, "make_inputs": make_inputs}
        return kind

    return register


def rows(*sizes: int) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        count = int(torch.tensor(sizes).prod())
        return (torch.linspace(-1, 1, count).reshape(sizes),)

    return make


def tokens() -> tuple[Any, ...]:
    return (torch.tensor([[1, 2, 0, 4], [3, 0, 2, 2]]),)


# -- vision


@block(rows(2, 4, 6, 6))
class InvertedResidual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(inplace=True),
            nn.Conv2d(8, 4, 1, bias=False),
            nn.BatchNorm2d(4),
        )
        self.is_residual = True

    def forward(self, x):
        if self.is_residual:
            return x + self.layers(x)
        return self.layers(x)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels=4, squeezed=2):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.SiLU()

    def scale(self, x):
        return F.hardsigmoid(self.fc2(self.activation(self.fc1(self.pool(x)))))

    def forward(self, x):
        return self.scale(x) * x


block(rows(2, 4, 6, 6))(SqueezeExcitation)


@block(rows(2, 4, 6, 6))
class DenseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict(
            {f"layer{step}": nn.Conv2d(4 + 2 * step, 2, 3, padding=1) for step in range(3)}
        )

    def forward(self, x):
        features = [x]
        for layer in self.layers.values():
            features.append(F.relu(layer(torch.cat(features, 1))))
        return torch.cat(features, dim=1)


@block(rows(2, 4, 6, 6))
class ChannelShuffle(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Conv2d(2, 2, 1)

    @staticmethod
    def shuffle(x, groups):
        batch, channels, height, width = x.size()
        x = x.view(batch, groups, channels // groups, height, width)
        return torch.transpose(x, 1, 2).contiguous().view(batch, -1, height, width)

    def forward(self, x):
        first, second = x.chunk(2, dim=1)
        return self.shuffle(torch.cat((first, self.branch(second)), dim=1), 2)


@block(lambda: ({"low": torch.ones(1, 4, 4, 4), "high": torch.full((1, 6, 2, 2), 0.5)},))
class FeaturePyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"low": nn.Conv2d(4, 3, 1), "high": nn.Conv2d(6, 3, 1)})
        self.outer = nn.ModuleDict(
            {"low": nn.Conv2d(3, 3, 3, padding=1), "high": nn.Conv2d(3, 3, 3, padding=1)}
        )

    def forward(self, features):
        high = self.inner["high"](features["high"])
        low = self.inner["low"](features["low"])
        low = low + F.interpolate(high, size=low.shape[-2:], mode="nearest")
        return {
            "low": self.outer["low"](low),
            "high": self.outer["high"](high),
            "pool": F.max_pool2d(high, 1, 2),
        }


@block(rows(2, 4, 6, 6))
class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch1 = nn.Conv2d(4, 2, 1)
        self.branch2 = nn.Sequential(
            OrderedDict(reduce=nn.Conv2d(4, 2, 1), wide=nn.Conv2d(2, 2, (1, 3), padding=(0, 1)))
        )
        self.branch3 = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), nn.Conv2d(4, 2, 1))

    def forward(self, x):
        return torch.cat([branch(x) for branch in (self.branch1, self.branch2, self.branch3)], 1)


class Bottleneck(nn.Module):
    def __init__(self, planes, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 1)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 1)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


@block(rows(2, 4, 3, 3))
class ResidualStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(
            Bottleneck(4, nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))), Bottleneck(4)
        )

    def forward(self, x):
        return self.layer1(x)


@block(rows(1, 2, 8, 8))
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)])
        self.bottom = nn.Conv2d(2, 2, 3, padding=1)
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(2, 2, 2, stride=2), nn.ConvTranspose2d(2, 2, 2, stride=2)]
        )
        self.merge = nn.ModuleList([nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)])

    def forward(self, x):
        skipped = []
        for layer in self.down:
            x = F.relu(layer(x))
            skipped.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skipped.pop()], dim=1))
        return x


@block(rows(2, 3, 8, 8))
class PatchEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Conv2d(3, 6, 4, stride=4)
        self.class_token = nn.Parameter(torch.full((1, 1, 6), 0.5))
        self.positions = nn.Parameter(torch.linspace(0, 1, 30).reshape(1, 5, 6))

    def forward(self, x):
        x = self.projection(x).flatten(2).transpose(1, 2)
        token = self.class_token.expand(x.shape[0], -1, -1)
        return torch.cat([token, x], dim=1) + self.positions


@block(rows(1, 4, 4, 2))
class ShiftedWindows(nn.Module):
    def forward(self, x):
        x = torch.roll(x, shifts=(-1, -1), dims=(1, 2))
        batch, height, width, channels = x.shape
        windows = x.view(batch, height // 2, 2, width // 2, 2, channels).permute(0, 1, 3, 2, 4, 5)
        windows = windows.reshape(-1, 4, channels)
        scores = (windows @ windows.transpose(-2, -1)) * channels**-0.5
        return torch.roll(scores.softmax(dim=-1), shifts=1, dims=0)


@block(rows(2, 4, 5, 5))
class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4, 5, padding=2, groups=4)
        self.norm = nn.LayerNorm(4, eps=1e-6)
        self.expand = nn.Linear(4, 8)
        self.reduce = nn.Linear(8, 4)
        self.gamma = nn.Parameter(torch.full((4,), 1e-3))

    def forward(self, x):
        shortcut = x
        x = self.depthwise(x).permute(0, 2, 3, 1)
        x = self.gamma * self.reduce(F.gelu(self.expand(self.norm(x)), approximate="tanh"))
        return shortcut + x.permute(0, 3, 1, 2)


@block(rows(2, 6, 4))
class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.over_tokens = nn.Sequential(nn.Linear(6, 3), nn.GELU(), nn.Linear(3, 6))
        self.over_channels = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 4))
        self.norms = nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)])

    def forward(self, x):
        x = x + self.over_tokens(self.norms[0](x).mT).mT
        return x + self.over_channels(self.norms[1](x))


@block(rows(2, 1, 6, 6))
class DeepSupervision(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Conv2d(1, 1, 3, padding=1) for _ in range(3)])

    def forward(self, x):
        outputs = []
        for stage in self.stages:
            x = stage(x).sigmoid()
            outputs.append(x.mean((1, 2, 3)))
        return outputs, torch.stack(outputs).sum(0)


@block(rows(1, 4, 4, 4))
class SpatialTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.locate = nn.Linear(64, 6)

    def forward(self, x):
        theta = self.locate(x.flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, x.size(), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@block(rows(2, 4, 6, 6))
class NormalizationVariants(nn.Module):
    def __init__(self):
        super().__init__()
        self.group = nn.GroupNorm(2, 4)
        self.instance = nn.InstanceNorm2d(4, affine=True)
        self.layer = nn.LayerNorm([4, 6, 6], elementwise_affine=False)
        self.local = nn.LocalResponseNorm(2)

    def forward(self, x):
        return self.local(self.layer(self.instance(self.group(x))))


@block(rows(2, 6, 4))
class RootMeanSquareNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1, 4))
        self.eps = 1e-6

    def forward(self, x):
        kind = x.dtype
        x = x.to(torch.float64)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(kind)


# -- language


@block(rows(2, 5, 8))
class EinsumAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.out = nn.Linear(8, 8)
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril())

    def forward(self, x):
        batch, length, _ = x.shape
        query, key, value = self.qkv(x).reshape(batch, length, 3, 2, 4).unbind(2)
        scores = torch.einsum("blhd,bmhd->bhlm", query, key) / 2.0
        weights = scores.masked_fill(torch.logical_not(self.mask), float("-inf")).softmax(-1)
        return self.out(torch.einsum("bhlm,bmhd->blhd", weights, value).flatten(-2))


@block(rows(2, 5, 8))
class RotaryEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(8.0), 0.5 ** torch.arange(4.0))
        self.register_buffer("cosine", angles.cos().repeat(1, 2))
        self.register_buffer("sine", angles.sin().repeat(1, 2), persistent=False)

    @staticmethod
    def rotate(x):
        first, second = x[..., :4], x[..., 4:]
        return torch.cat((-second, first), dim=-1)

    def forward(self, x):
        length = x.shape[1]
        return x * self.cosine[:length] + self.rotate(x) * self.sine[:length]


@block(rows(3, 4))
class StaticMixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return sum(weights[:, index, None] * expert(x) for index, expert in enumerate(self.experts))


@block(rows(3, 4))
class SparseMixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.weights = nn.Parameter(torch.linspace(-1, 1, 48).reshape(3, 4, 4))

    def forward(self, x):
        scores, chosen = torch.topk(self.gate(x), k=2, dim=-1)
        routed = torch.bmm(self.weights[chosen].flatten(0, 1), x.repeat_interleave(2, 0).unsqueeze(-1))
        return (routed.view(-1, 2, 4) * scores.softmax(-1).unsqueeze(-1)).sum(dim=1)


@block(rows(3, 2, 4))
class UnrolledCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 3)

    def forward(self, x):
        hidden = x.new_zeros(x.size(1), 3)
        states = []
        for step in range(3):
            hidden = self.cell(x[step], hidden)
            states.append(hidden)
        return torch.stack(states), hidden


@block(rows(3, 2, 4))
class HandWrittenLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_gates = nn.Linear(4, 12)
        self.recur = nn.Linear(3, 12, bias=False)

    def forward(self, x):
        state = torch.zeros_like(x[0, :, :3]), torch.zeros_like(x[0, :, :3])
        for step in (0, 1, 2):
            hidden, cell = state
            forget, enter, leave, candidate = torch.chunk(
                self.to_gates(x[step]) + self.recur(hidden), 4, dim=1
            )
            cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            state = leave.sigmoid() * cell.tanh(), cell
        return state


@block(rows(4, 2, 4))
class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.GRU(4, 3, bidirectional=True)
        self.decode = nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0)
        self.start = nn.Parameter(torch.full((1, 1, 6), 0.25))

    def forward(self, x):
        memory, _ = self.encode(x)
        return self.decode(self.start.expand(2, memory.size(1), -1), memory)


@block(tokens)
class TiedEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4, padding_idx=0)
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        hidden = torch.tanh(self.embedding(x))
        return F.linear(hidden, self.embedding.weight, self.bias)


@block(tokens)
class TextConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(5, 4, mode="sum")
        self.words = nn.Embedding(5, 4)
        self.filters = nn.ModuleList([nn.Conv1d(4, 2, width, padding="same") for width in (1, 3)])

    def forward(self, x):
        words = self.words(x).transpose(1, 2)
        pooled = [F.relu(layer(words)).amax(-1) for layer in self.filters]
        return torch.cat([*pooled, self.embedding(x)], -1)


@block(rows(2, 5, 4))
class GatedFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.joint = nn.Linear(4, 12)
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        value, gate = self.joint(x).split(6, dim=-1)
        return self.out(value * F.silu(gate)) + F.glu(x, dim=-1).sum(-1, keepdim=True)


@block(rows(4, 4))
class Highway(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.paths = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for number, (gate, path) in enumerate(zip(self.gates, self.paths, strict=True), start=1):
            share = torch.sigmoid(gate(x) / number)
            x = share * path(x).relu() + (1 - share) * x
        return x


@block(lambda: (torch.linspace(-1, 1, 12).reshape(3, 4), torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])))
class GraphConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x, adjacency):
        closed = adjacency + torch.eye(3)
        degree = closed.sum(dim=1).pow(-0.5).diag()
        spread = degree @ closed @ degree
        return F.log_softmax(spread @ self.second(F.elu(spread @ self.first(x))), dim=1)


@block(rows(2, 5, 4))
class LatentAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.linspace(0, 1, 8).reshape(2, 4))
        self.attend = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x):
        latents = self.latents.unsqueeze(0).repeat(x.size(0), 1, 1)
        return self.attend(latents, x, x)[0], self.attend(query=latents, key=x, value=x, need_weights=True)[1]


@block(rows(2, 4, 4))
class RelativePositionBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 7))
        positions = torch.arange(4)
        self.register_buffer("index", positions[:, None] - positions[None] + 3)

    def forward(self, x):
        return (x @ x.mT + self.table[self.index]).softmax(-1)


@block(rows(2, 4))
class CosineClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
        self.log_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        cosines = F.normalize(x, dim=-1) @ F.normalize(self.weight, dim=-1).t()
        return self.log_scale.exp() * cosines


# -- training, state and sharing


@block(rows(2, 4))
class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 6)
        self.decode = nn.Linear(3, 4)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, dim=-1)
        sample = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp(), dim=-1)
        return {"reconstruction": self.decode(sample), "divergence": divergence.mean()}


@block(lambda: (*rows(2, 4)(), torch.full((2, 4), 0.25)))
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.distance = nn.PairwiseDistance(p=2)

    def forward(self, left, right):
        left, right = self.encoder(left), self.encoder(right)
        return F.cosine_similarity(left, right, dim=1), self.distance(left, right)


@block(lambda: (*rows(2, 4)(), torch.tensor([1, 3])))
class ModuleWithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.loss = nn.CrossEntropyLoss(weight=torch.ones(4), label_smoothing=0.1)

    def forward(self, x, labels):
        logits = self.linear(x)
        return self.loss(logits, labels) + F.nll_loss(F.log_softmax(logits, -1), labels, reduction="sum")


@block(rows(3, 4))
class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.keep = 0.5

    def forward(self, x):
        if not self.training:
            return x + self.linear(x)
        noise = x.new_empty((x.shape[0], 1)).bernoulli_(self.keep).div_(self.keep)
        return x + self.linear(x) * noise


@block(rows(2, 4))
class StraightThrough(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Parameter(torch.tensor(0.25))

    def forward(self, x):
        scaled = x / self.step
        rounded = scaled + (scaled.round() - scaled).detach()
        return rounded.clamp(-8, 7) * self.step


@block(rows(2, 4))
class MovingAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        with_new = x.detach().mean(0)
        self.mean.mul_(0.9).add_(with_new, alpha=0.1)
        self.count += 1
        return x - self.mean


@block(rows(2, 4))
class KeptState(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 4))

    def forward(self, x):
        change = x - self.last
        self.last.copy_(x.detach())
        return change


@block(rows(2, 4))
class NestedContainers(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict(
            {
                "left": nn.ModuleList([nn.ModuleDict({"in": nn.Linear(4, 3), "out": nn.Linear(3, 2)})]),
                "right": nn.ModuleList([nn.ModuleDict({"in": nn.Linear(4, 5), "out": nn.Linear(5, 2)})]),
            }
        )

    def forward(self, x):
        results = {}
        for name, tower in self.towers.items():
            for stage in tower:
                results[name] = stage["out"](F.leaky_relu(stage["in"](x), 0.1))
        return results


@block(rows(2, 4))
class NestedParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([torch.full((4,), float(step)) for step in range(1, 4)])
        self.groups = nn.ModuleDict(
            {
                "shifts": nn.ParameterDict({"a": torch.ones(4), "b": torch.zeros(4)}),
                "more": nn.ParameterList([torch.full((4,), 0.5)]),
            }
        )

    def forward(self, x):
        for scale in self.scales:
            x = x * scale
        for shift in self.groups["shifts"].values():
            x = x + shift
        return x - self.groups["more"][-1]


@block(rows(2, 4))
class WeightNormalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.linear(x)


@block(rows(2, 4))
class SharedAcrossBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.left = nn.Sequential(self.shared, nn.ReLU())
        self.right = nn.Sequential(nn.Tanh(), self.shared)

    def forward(self, x):
        return self.left(x) + self.right(x)


class Reciprocal(nn.Module):
    def forward(self, x):
        return 1 / (x + 2)


@block(rows(2, 4))
class InheritedForward(Reciprocal):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return super().forward(self.linear(x))

"""Modules through torch.fx and fxplug: equal graphs, equal values, equal gradients, equal state."""

# Annotations are part of what is compared, so they are no text here: no `from __future__ import annotations`.
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PROGRAMS: dict[str, dict[str, Any]] = {}


def rows(*sizes: int) -> Callable[[], tuple[Any, ...]]:
    def make() -> tuple[Any, ...]:
        count = int(torch.tensor(sizes).prod())
        return (torch.linspace(-1, 1, count).reshape(sizes),)

    return make


def program(make_inputs: Callable[[], tuple[Any, ...]]) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def register(kind: type[nn.Module]) -> type[nn.Module]:
        PROGRAMS[kind.__name__] = {"make": kind, "make_inputs": make_inputs}
        return kind

    return register


@program(rows(2, 4))
class OneLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x)


@program(rows(2, 4))
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2), nn.Tanh()))

    def forward(self, x):
        return self.layers(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.second(F.relu(self.first(x)))


@program(rows(2, 4))
class NestedBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.extra = nn.ModuleDict({"last": Block()})

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.extra["last"](x)


@program(rows(2, 4))
class SharedModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.alias = self.block

    def forward(self, x):
        return self.alias(self.block(x))


@program(rows(2, 4))
class SharedLeaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.same = self.linear

    def forward(self, x):
        return self.same(self.linear(x)) + self.linear(x)


@program(rows(2, 4))
class TiedParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(self.encode(x)) + F.linear(x, self.encode.weight) + F.linear(x, self.decode.weight)


@program(rows(2, 4))
class ParameterMaths(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.scale.exp() + self.shift - self.scale * self.shift


@program(rows(2, 4))
class ParameterList(nn.Module):
    def __init__(self):
        super().__init__()
        self.values = nn.ParameterList([torch.ones(4), torch.full((4,), 2.0)])
        self.named = nn.ParameterDict({"a": torch.full((4,), 3.0)})

    def forward(self, x):
        return x * self.values[0] + self.values[1] - self.named["a"]


@program(rows(2, 4))
class BufferRead(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, x):
        return x + self.offset


@program(rows(2, 4))
class BufferReadTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, x):
        return x * self.offset + self.offset


@program(rows(2, 4))
class BufferMaths(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.arange(4.0))

    def forward(self, x):
        return x + self.offset * 2


@program(rows(2, 4))
class CountingBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls


@program(rows(2, 4))
class PlainTensorAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = torch.arange(4.0)

    def forward(self, x):
        return x + self.plain


@program(rows(2, 3, 8, 8))
class ConvNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)


@program(rows(2, 3, 8, 8))
class EvaluatedConvNorm(ConvNorm):
    def __init__(self):
        super().__init__()
        self.eval()


@program(rows(2, 3, 8, 8))
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(36, 5)

    def forward(self, x):
        return self.head(torch.flatten(self.features(x), 1))


@program(rows(4, 8))
class DropoutModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x) * 2


@program(rows(4, 8))
class FunctionalDropout(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.3, self.training)


@program(lambda: (torch.tensor([[1, 2], [3, 0]]),))
class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 2)

    def forward(self, tokens):
        return self.linear(self.embedding(tokens).mean(1))


@program(rows(5, 2, 4))
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 3, num_layers=2)

    def forward(self, x):
        output, (hidden, cell) = self.lstm(x)
        return output, hidden + cell


@program(rows(2, 5, 8))
class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.value = nn.Linear(8, 8)

    def forward(self, x):
        batch, length, width = x.shape
        query = self.query(x).view(batch, length, 2, width // 2).transpose(1, 2)
        key = self.key(x).view(batch, length, 2, width // 2).transpose(1, 2)
        value = self.value(x).view(batch, length, 2, width // 2).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(batch, length, width)


@program(rows(2, 5, 8))
class AttentionLeaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        attended, _ = self.attention(x, x, x, need_weights=False)
        return attended


@program(rows(2, 5, 8))
class EncoderLayerLeaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


@program(rows(2, 4))
class KeywordCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.bilinear = nn.Bilinear(4, 4, 2)

    def forward(self, x):
        return self.bilinear(input1=x, input2=self.linear(input=x))


@program(rows(2, 4))
class Defaults(nn.Module):
    def forward(self, x, scale=3.0, *, shift=1.0):
        return x * scale + shift


@program(rows(2, 4))
class Annotated(nn.Module):
    def forward(self, x: Tensor, scale: float = 3.0) -> Tensor:
        return x * scale


@program(rows(2, 4))
class MethodCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def project(self, x):
        return self.linear(x) * 2

    def forward(self, x):
        return self.project(self.project(x))


@program(rows(2, 4))
class PropertyRead(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Parameter(torch.ones(4))

    @property
    def doubled(self):
        return self.base * 2

    def forward(self, x):
        return x + self.doubled


@program(rows(2, 4))
class HookedChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.register_forward_hook(lambda module, args, output: output * 3)

    def forward(self, x):
        return self.linear(x)


@program(rows(2, 4))
class HookedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.block.register_forward_hook(lambda module, args, output: output * 3)
        self.block.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def forward(self, x):
        return self.block(x)


@program(rows(2, 4))
class UnusedChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        return self.used(x)


@program(rows(2, 4))
class ChildrenNamedLikePython(nn.Module):
    def __init__(self):
        super().__init__()
        self.add_module("class", nn.Linear(4, 4))
        self.add_module("0", nn.ReLU())
        self.add_module("print", nn.Linear(4, 4))

    def forward(self, x):
        return self.print(getattr(self, "0")(getattr(self, "class")(x)))


@program(rows(2, 4))
class SequentialSlice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x):
        return self.layers[2](self.layers[1](self.layers[0](x)))


@program(rows(2, 4))
class WeightReadDirectly(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return F.linear(x, self.linear.weight, self.linear.bias) + self.linear(x)


@program(rows(2, 4))
class WeightReadInChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = ParameterMaths()
        self.child_twin = self.child

    def forward(self, x):
        return self.child(x) + self.child_twin.scale


@program(rows(2, 4))
class DictResult(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return {"logits": self.linear(x), "extras": (x, [x * 2])}


@program(rows(2, 4))
class FrozenPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.free = nn.Linear(4, 4)

    def forward(self, x):
        return self.free(self.frozen(x).detach())

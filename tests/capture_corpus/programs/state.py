"""What programs keep from call to call: attributes, buffers, containers; and their training flag."""

from __future__ import annotations

import itertools
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

from capture_corpus.corpus import program
from capture_corpus.inputs import cube, larger, one, positive, ramp, tracked, two


@program(one, rows=(12,), symbolic="TraceWarning", shape="TraceWarning", value="TraceWarning")
class CountsItsCalls(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * 2


@program(one, rows=(12,), symbolic="FXP-T055", shape="FXP-T055", value="FXP-T055")
class AnswersByItsCount(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@program(one, rows=(12,), symbolic="FXP-T009")
class BufferReassigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total = self.total + x.sum(0)
        return x + self.total


@program(one, rows=(6, 12))
class BufferAugmented(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.steps += 1
        return x / self.steps


@program(one, rows=(12,))
class BufferElementAssigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("history", torch.zeros(2, 3))

    def forward(self, x):
        self.history[1] = self.history[0]
        self.history[0] = x[0]
        return self.history.sum(0)


@program(one, rows=(13,), symbolic="TraceWarning", shape="TraceWarning", value="TraceWarning")
class KeepsWhatItSees(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x * 2)
        return x + 1


@program(one, rows=(13,), symbolic="FXP-T055", shape="FXP-T055", value="FXP-T055")
class KeepsItsLastInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        out = x if self.last is None else x + self.last
        self.last = x * 1
        return out


@program(one, rows=(13,), symbolic="TraceWarning", shape="TraceWarning", value="TraceWarning")
class KeepsByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.activations = {}
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        hidden = self.activations["hidden"] = self.inner(x)
        return hidden.relu()


@program(one, rows=(12,), symbolic="FXP-T055", shape="FXP-T055", value="FXP-T055")
class KeyValueCache(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = []

    def forward(self, x):
        self.cache.append(x)
        return torch.cat(self.cache).sum(0)


@program(
    one,
    factory=True,
    rows=(13,),
    state=lambda root: root.kept,
    symbolic="FXP-T055",
    shape="FXP-T055",
    value="FXP-T055",
)
def list_of_a_closure():
    kept = []

    def forward(x):
        kept.append(x + 1)
        return kept[-1] * 2

    forward.kept = kept
    return forward


@program(
    one,
    factory=True,
    rows=(12,),
    state=lambda root: root.__closure__[0].cell_contents,
    shape="FXP-T055",
    value="FXP-T055",
    symbolic="FXP-T055",
)
def nonlocal_counter():
    count = 0

    def forward(x):
        nonlocal count
        count += 1
        return x * count

    return forward


@program(one, factory=True, rows=(12,), symbolic="FXP-T055", shape="FXP-T055", value="FXP-T055")
def iterator_kept_outside():
    numbers = itertools.count(1)
    return lambda x: x * next(numbers)


@program(tracked, flips=True, rows=(12,))
class AsksWhetherItTrains(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        if self.training:
            return x * self.scale
        return x


@program(one, flips=True, rows=(12,))
class DropoutByFlag(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=self.training) + 1


@program(one, flips=True)
class DropoutModules(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    def forward(self, x):
        return self.layers(x)


@program(lambda: (ramp(4, 3),), flips=True, shape="FXP-T066")
class PartsOfItAreFrozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.BatchNorm1d(3).eval()
        self.norm = nn.BatchNorm1d(3, momentum=None)
        self.frozen.weight.requires_grad_(False)

    def forward(self, x):
        return self.norm(self.frozen(x))


@program(cube, flips=True, rows=(12,))
class TransformerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


@program(one, symbolic="FXP-T052")
class SwitchesItsChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        self.drop.eval()
        out = self.drop(x)
        self.drop.train()
        return out


@program(one, rows=(12,))
class PlainTensorAttribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(2.0)
        self.table = {"shift": torch.ones(3)}

    def forward(self, x):
        self.scale.mul_(2)
        return x * self.scale + self.table["shift"]


@program(one, symbolic="TraceWarning", shape="TraceWarning", value="TraceWarning")
class MakesAttributesOnce(nn.Module):
    def forward(self, x):
        if not hasattr(self, "weight_of_first_call"):
            self.weight_of_first_call = torch.full((3,), 2.0)
        return x * self.weight_of_first_call


@program(one)
class TemporaryAttribute(nn.Module):
    def forward(self, x):
        self.scratch = x * 2
        out = self.helper()
        del self.scratch
        return out

    def helper(self):
        return self.scratch + 1


@program(one, symbolic="TraceWarning", shape="TraceWarning", value="TraceWarning")
class PropertyWithAMemo(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))
        self._normed = None

    @property
    def normed(self):
        if self._normed is None:
            self._normed = self.weight.detach() / 3
        return self._normed

    def forward(self, x):
        return x @ self.normed


@program(one, rows=(12,))
def clock(x):
    return x * (0.0 if time.perf_counter() < 0 else 2.0)


@program(one, rows=(12,))
def environment_variable(x):
    return x * 2 if os.environ.get("CAPTURE_CORPUS_DOUBLES") else x * 3


@program(lambda: (ramp(2, 3), nn.BatchNorm1d(3)))
def batch_norm_by_function(x, norm):
    return F.batch_norm(x, norm.running_mean, norm.running_var, training=True)


@program(two, rows=(12,))
class ParameterWrittenByData(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x, y):
        with torch.no_grad():
            self.weight.mul_(0.5)
            self.weight.data += y[0]
        return x * self.weight


@program(positive, others=larger)
class ExponentialAverage(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        mean = x.detach().mean(0)
        self.average.copy_(torch.where(self.ready, self.average * 0.9 + mean * 0.1, mean))
        self.ready.fill_(True)
        return x - self.average

"""Plain objects that modules hold are as before when a capture ends."""

from __future__ import annotations

import types
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError, TraceWarning

X = torch.ones(2, 3)


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total = self.total + value
        self.count += 1

    @property
    def mean(self):
        return self.total / self.count


class Slots:
    __slots__ = ("count", "last")

    def __init__(self):
        self.count = 0


@dataclass
class Seen:
    parts: list = field(default_factory=list)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.space = types.SimpleNamespace(last=None, inner={"meter": Meter()})
        self.meter, self.slots, self.seen = Meter(), Slots(), Seen()
        self.pair, self.counts = ([], {"calls": 1}), [0]

    def held(self):
        meters = [vars(self.meter), vars(self.space.inner["meter"])]
        slots = {name: getattr(self.slots, name, None) for name in ("last", "count")}
        return repr(
            (self.space.last, meters, slots, self.seen, self.pair, self.counts, list(vars(self.space)))
        )


def write_space(self, x):
    self.space.last = x
    self.space.new = 1
    return x


def write_inner(self, x):
    self.space.inner["meter"].total = x
    return x


def write_meter(self, x):
    self.meter.update(x.sum())
    return x


def write_slots(self, x):
    self.slots.last = x
    self.slots.count += 1
    return x


def write_seen(self, x):
    self.seen.parts.append(x)
    return x


def write_pair(self, x):
    self.pair[0].append(x)
    self.pair[1]["calls"] = x
    return x


def write_counts(self, x):
    self.counts[0] += 1
    return x


@pytest.mark.parametrize("mode", ["symbolic", "value"])
@pytest.mark.parametrize(
    "forward", [write_space, write_inner, write_meter, write_slots, write_seen, write_pair, write_counts]
)
def test_what_objects_hold_is_put_back_and_reported(forward, mode):
    module = type("Root", (Base,), {"forward": forward})()
    before = module.held()

    with pytest.warns(TraceWarning, match="It was put back"):
        fxplug.trace(module, (X,), mode=mode)

    assert module.held() == before


def read_space(self, x):
    if self.space.last is not None:
        x = x + self.space.last
    self.space.last = x
    return x


def read_meter(self, x):
    self.meter.update(x.sum())
    return x * self.meter.mean


def read_slots(self, x):
    self.slots.count += 1
    return x * self.slots.count


def read_seen(self, x):
    self.seen.parts.append(x)
    return sum(self.seen.parts)


def read_counts(self, x):
    self.counts[0] += 1
    return x * self.counts[0]


def read_under_another_name(self, x):
    counts = self.counts
    counts[0] += 1
    return x * counts[0]


@pytest.mark.parametrize("mode", ["symbolic", "value"])
@pytest.mark.parametrize(
    "forward", [read_space, read_meter, read_slots, read_seen, read_counts, read_under_another_name]
)
def test_what_the_next_call_reads_is_refused(forward, mode):
    module = type("Root", (Base,), {"forward": forward})()
    before = module.held()

    with pytest.raises(TraceError) as refused:
        fxplug.trace(module, (X,), mode=mode)

    assert refused.value.code == "FXP-T055"
    assert module.held() == before

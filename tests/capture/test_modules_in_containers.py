"""What a program keeps in modules that the root has in lists, dicts and objects, and that are never called."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceWarning

X = torch.ones(2)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.table = 0, [0], {"calls": 0}


class Holder:
    def __init__(self):
        self.part = Part()


class Keeps(nn.Module):
    def __init__(self, kept, change):
        super().__init__()
        self.__dict__["kept"] = kept
        self.change = change

    def forward(self, x):
        return x * self.change(self.kept)


def count(part):
    part.calls += 1
    return part.calls


def count_in_list(part):
    part.seen[0] += 1
    return part.seen[0]


def count_in_dict(part):
    part.table["calls"] += 1
    return part.table["calls"]


def lengthen(part):
    part.seen.append(0)
    return len(part.seen)


HOLDERS = {
    "attribute": (Part, lambda kept: kept),
    "list": (lambda: [Part(), Part()], lambda kept: kept[1]),
    "dict": (lambda: {"part": Part()}, lambda kept: kept["part"]),
    "tuple": (lambda: (1, (Part(),)), lambda kept: kept[1][0]),
    "object": (Holder, lambda kept: kept.part),
    "below": (lambda: [nn.Sequential(Part())], lambda kept: kept[0][0]),
    "in a module": (lambda: [Keeps([Part()], count)], lambda kept: kept[0].kept[0]),
}


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("change", [count, count_in_list, count_in_dict, lengthen])
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_the_next_call_reads_is_refused_and_put_back(holder, change, mode):
    make, find = HOLDERS[holder]
    model = Keeps(make(), lambda kept: change(find(kept)))

    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(model, (X,), mode=mode, check=False)

    assert caught.value.code == "FXP-T055"
    part = find(model.kept)
    assert (part.calls, part.seen, part.table) == (0, [0], {"calls": 0})


class Tells(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = [Part(), Part()]

    def forward(self, x):
        for part in self.parts:
            part.calls = x.shape[0]
        return x * 2


@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_what_no_call_reads_is_put_back_with_a_warning(mode):
    model = Tells()

    with pytest.warns(TraceWarning, match="<Part>.*calls"):
        captured = fxplug.trace(model, (X,), mode=mode, check=False)

    assert [part.calls for part in model.parts] == [0, 0]
    assert torch.equal(captured(torch.ones(3)), model(torch.ones(3)))


class Reads(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        self.parts = [Part()]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * (self.parts[0].calls + 1)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_modules_that_are_read_alone_are_captured(mode):
    model = Reads()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = fxplug.trace(model, (X,), mode=mode)

    torch.testing.assert_close(copy.deepcopy(captured)(X), model(X), rtol=0, atol=0)

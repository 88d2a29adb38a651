"""What a program keeps in modules that the root has in lists, dicts and objects, and that are never called."""

from __future__ import annotations

import copy
import sys
import warnings
from types import ModuleType

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceWarning

numpy = pytest.importorskip("numpy")

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


# -- arrays, lists with attributes, and what a function imports where it runs


class Listed(list):
    calls = 0


class Table(numpy.ndarray):
    pass


def of_list(made):
    made.calls += 1
    return made.calls


def of_array(made):
    made[0] += 1
    return float(made[0])


STATE = {
    "a list with attributes": (Listed, of_list),
    "a subclass": (lambda: numpy.zeros(3).view(Table), of_array),
    "a masked array": (lambda: numpy.ma.zeros(3), of_array),
}


class Changes(nn.Module):
    def __init__(self, made, change):
        super().__init__()
        self.made, self.change = made, change

    def forward(self, x):
        return x * self.change(self.made)


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize(("make", "change"), STATE.values(), ids=STATE.keys())
def test_state_of_classes_of_their_own_is_refused_and_put_back(make, change, mode):
    model = Changes(make(), change)

    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(model, (X,), mode=mode, check=False)

    assert caught.value.code == "FXP-T055"
    assert change(model.made) == 1


def of_module(x):
    import state_of_program

    state_of_program.calls += 1
    return x * state_of_program.calls


def of_module_by_another_name(x):
    import state_of_program as state

    state.seen[0] += 1
    return x * state.seen[0]


def of_what_it_has(x):
    from state_of_program import seen as found

    found[0] += 1
    return x * found[0]


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("program", [of_module, of_module_by_another_name, of_what_it_has])
def test_state_of_what_a_function_imports_is_refused_and_put_back(program, mode, monkeypatch):
    module = ModuleType("state_of_program")
    module.calls, module.seen = 0, [0]
    monkeypatch.setitem(sys.modules, "state_of_program", module)

    with pytest.raises(fxplug.TraceError) as caught:
        fxplug.trace(program, (X,), mode=mode, check=False)

    assert caught.value.code == "FXP-T055"
    assert (module.calls, module.seen) == (0, [0])

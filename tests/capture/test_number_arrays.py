"""Memory with numbers that programs change in place: it is state, as lists are, and is put back."""

from __future__ import annotations

import warnings
from array import array

import pytest
import torch
from torch import nn

import fxplug
from fxplug.capture.containers import copy_of, fill, is_array, is_unchanged
from fxplug.errors import TraceError, TraceWarning

X = torch.ones(2)
MODES = [("symbolic", False), ("shape", False), ("shape", True), ("value", False), ("value", True)]
COUNTS = array("l", [0])


def of_numpy(dtype="int64"):
    numpy = pytest.importorskip("numpy")
    return numpy.zeros((2, 2), dtype=dtype)


MADE = {
    "bytearray": lambda: bytearray(2),
    "array": lambda: array("d", [0.0, 0.0]),
    "NumPy": lambda: of_numpy()[0],
    "NumPy, turned": lambda: of_numpy("float64").T[1],
}


class Counts(nn.Module):
    def __init__(self, memory):
        super().__init__()
        self.memory = memory

    def forward(self, x):
        self.memory[0] += 1
        return x * float(self.memory[0])


class OnlyCounts(Counts):
    def forward(self, x):
        self.memory[0] += 1
        return x + 1


def counts_outside(x):
    COUNTS[0] += 1
    return x * COUNTS[0]


def capture(program, mode, check):
    return fxplug.trace(program, None if mode == "symbolic" else (X,), mode=mode, check=check)


@pytest.mark.parametrize(("mode", "check"), MODES)
@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_a_count_that_answers_is_refused_and_put_back(made, mode, check):
    model = Counts(made())
    before = list(model.memory)

    with pytest.raises(TraceError, match="'memory'") as refused:
        capture(model, mode, check)

    assert refused.value.code == "FXP-T055"
    assert list(model.memory) == before


@pytest.mark.parametrize(("mode", "check"), MODES)
@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_a_count_that_answers_nothing_is_put_back_with_a_warning(made, mode, check):
    model = OnlyCounts(made())
    before = list(model.memory)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        captured = capture(model, mode, check)

    assert {entry.category for entry in said} == {TraceWarning}
    assert "'memory'" in str(said[0].message)
    assert list(model.memory) == before
    assert torch.equal(captured(X), X + 1)


@pytest.mark.parametrize(("mode", "check"), MODES)
def test_a_count_in_a_global_is_refused(mode, check):
    with pytest.raises(TraceError, match="COUNTS") as refused:
        capture(counts_outside, mode, check)

    assert refused.value.code == "FXP-T055"
    assert COUNTS[0] == 0


@pytest.mark.parametrize("made", MADE.values(), ids=MADE.keys())
def test_memory_is_filled_as_it_was(made):
    memory = made()
    memory[0], memory[1] = 3, 4
    before, held = copy_of(memory), list(memory)
    assert is_unchanged(memory, before)
    memory[0] = 9
    assert not is_unchanged(memory, before)
    if isinstance(memory, (bytearray, array)):
        memory.append(7)

    fill(memory, before)

    assert list(memory) == held


def test_what_is_only_read_is_none_of_it():
    numpy = pytest.importorskip("numpy")
    still = numpy.zeros(2)
    still.flags.writeable = False

    assert is_array(numpy.zeros(2))
    assert not any(map(is_array, (still, [1], torch.ones(1))))


@pytest.mark.parametrize("dtype", ["uint8", "float64", "datetime64[s]", "object"])
def test_changes_of_large_arrays_are_found(dtype):
    numpy = pytest.importorskip("numpy")
    large = numpy.zeros((1 << 20) + 1, "uint8").astype(dtype)
    for memory in (large, large[::-1], large[1:].reshape(2, -1).T):
        before = copy_of(memory)
        assert is_unchanged(memory, before)
        memory.flat[-1] = 1
        assert not is_unchanged(memory, before)
        memory.flat[-1] = 0


class CountsInTable(nn.Module):
    def __init__(self, change):
        super().__init__()
        numpy = pytest.importorskip("numpy")
        self.table, self.make, self.change = numpy.zeros(200_000), torch.from_numpy, change

    def forward(self, x):
        return x * self.change(self)


def by_element(module):
    module.table[0] += 1
    return module.table[0]


def as_a_whole(module):
    module.table += 1
    return module.table[3]


def through_tensor(module):
    tensor = module.make(module.table)
    tensor.add_(1)
    return tensor[0]


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("change", [by_element, as_a_whole, through_tensor])
def test_a_large_array_that_goes_on_from_call_to_call_is_refused(change, mode):
    with pytest.raises(TraceError) as caught:
        fxplug.trace(CountsInTable(change), (torch.ones(2),), mode=mode, check=False)
    assert caught.value.code in {"FXP-T051", "FXP-T055", "FXP-T061"}


class SharesMemory(nn.Module):
    def __init__(self, change):
        super().__init__()
        numpy = pytest.importorskip("numpy")
        self.table, self.change = numpy.ones(3, "float32"), change
        self.register_buffer("tensor", torch.from_numpy(self.table)[1:])

    def forward(self, x):
        return x * self.change(self)


def change_of_array(module):
    module.table += 1
    return module.tensor.sum()


def change_of_tensor(module):
    module.tensor.add_(1)
    return float(module.table[1])


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
@pytest.mark.parametrize("change", [change_of_array, change_of_tensor])
def test_an_array_and_a_tensor_of_one_memory_are_not_changed(change, mode):
    with pytest.raises(TraceError) as caught:
        fxplug.trace(SharesMemory(change), (X,), mode=mode, check=False)
    assert caught.value.code in {"FXP-T055", "FXP-T061"}


@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_an_array_and_a_tensor_of_one_memory_are_read(mode):
    model = SharesMemory(lambda module: module.tensor.sum() * float(module.table[0]))

    captured = fxplug.trace(model, (X,), mode=mode)

    assert torch.equal(captured(X), model(X))

"""The check of a capture starts each run from one state, and leaves everything as it was before the capture."""

from __future__ import annotations

import random
from collections import UserDict, deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze.elsewhere import tensors_elsewhere
from fxplug.api import MismatchError
from fxplug.api.checking import check_capture
from fxplug.capture.randomness import RandomStates
from fxplug.errors import TraceError

X = torch.ones(2)
modes = pytest.mark.parametrize("mode", ["value", "shape"])


class Box:
    def __init__(self):
        self.kept = torch.zeros(2)
        self.listed = [torch.zeros(2)]
        self.named = {"a": torch.zeros(2)}


@dataclass(frozen=True)
class Frozen:
    kept: torch.Tensor = field(default_factory=lambda: torch.zeros(2))


class Slots:
    __slots__ = ("kept",)

    def __init__(self):
        self.kept = torch.zeros(2)


def closing_over():
    kept = torch.zeros(2)
    return lambda: kept


def with_default(kept=[torch.zeros(2)]):  # noqa: B006, B008 - as programs do
    return kept[0]


class Adds(nn.Module):
    """Adds one to a tensor that it keeps somewhere, and uses it."""

    shared = torch.zeros(2)

    def __init__(self, holder, find):
        super().__init__()
        self.holder = holder
        self.find = find

    def forward(self, x):
        kept = self.find(self.holder)
        kept.add_(1)
        return x + kept


PLACES = {
    "object": (Box, lambda held: held.kept),
    "list of an object": (Box, lambda held: held.listed[0]),
    "dict of an object": (Box, lambda held: held.named["a"]),
    "object in a list": (lambda: [Box()], lambda held: held[0].kept),
    "dataclass": (Frozen, lambda held: held.kept),
    "slots": (Slots, lambda held: held.kept),
    "namespace": (lambda: SimpleNamespace(kept=torch.zeros(2)), lambda held: held.kept),
    "user dict": (lambda: UserDict(kept=torch.zeros(2)), lambda held: held["kept"]),
    "deque": (lambda: deque([torch.zeros(2)]), lambda held: held[0]),
    "set": (lambda: {torch.zeros(2)}, lambda held: next(iter(held))),
    "closure": (closing_over, lambda held: held()),
    "default": (lambda: with_default, lambda held: held()),
    "class": (lambda: Adds, lambda held: held.shared),
}


@modes
@pytest.mark.parametrize(("make", "find"), PLACES.values(), ids=PLACES)
def test_tensors_that_are_kept_anywhere_are_put_back_after_each_run(make, find, mode):
    program = Adds(make(), find)
    kept = find(program.holder)
    before = kept.clone()
    captured = fxplug.trace(program, (X,), mode=mode)

    assert find(program.holder) is kept
    assert torch.equal(kept, before)
    wanted = [before + number + X for number in (1, 2)]
    assert [torch.equal(captured(X), one) for one in wanted] == [True, True]
    with torch.no_grad():
        kept.copy_(before)


@modes
def test_memory_sizes_and_history_come_back_too(mode):
    box = Box()
    box.view = box.kept[:1]

    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.box = box

        def forward(self, x):
            self.box.kept.copy_(self.box.kept + x)
            self.box.listed[0].data = self.box.listed[0] + 1
            self.box.named["a"].resize_(4).zero_()
            return x + self.box.kept + self.box.listed[0]

    fxplug.trace(Writes(), (torch.ones(2, requires_grad=True),), mode=mode)
    assert box.kept.tolist() == box.listed[0].tolist() == box.named["a"].tolist() == [0, 0]
    assert box.kept.is_leaf
    assert not box.kept.requires_grad
    assert box.view.data_ptr() == box.kept.data_ptr()


@modes
def test_modules_that_the_program_keeps_in_objects_are_put_back(mode):
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = SimpleNamespace(norm=nn.BatchNorm1d(2))

        def forward(self, x):
            return self.inner.norm(torch.stack([x, x + 1]))

    program = Holds()
    fxplug.trace(program, (X,), mode=mode)
    norm = program.inner.norm
    assert norm.num_batches_tracked == 0
    assert norm.running_mean.tolist() == [0, 0]


COUNTED = torch.zeros(2)


@fxplug.wrap
def counted(x):
    COUNTED.add_(1)
    return x + COUNTED


@fxplug.wrap
def scaled(x):
    return x * random.random()


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) * 2


@modes
@pytest.mark.parametrize("root", [Calls(counted), lambda x: counted(x) * 2], ids=["module", "function"])
def test_what_calls_that_stay_calls_write_to_is_put_back(root, mode):
    captured = fxplug.trace(root, (X,), mode=mode)
    assert COUNTED.tolist() == [0, 0]
    assert captured(X).tolist() == [4, 4]
    COUNTED.zero_()


@modes
def test_calls_that_stay_calls_draw_the_same_numbers_in_both_runs(mode):
    states = random.getstate(), torch.get_rng_state()
    captured = fxplug.trace(Calls(scaled), (X,), mode=mode)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert not torch.equal(captured(X), captured(X))


class Draws(nn.Module):
    def forward(self, x):
        return x * random.random()


@modes
def test_so_do_modules_that_stay_calls(mode, manager_with):
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Draws()

        def forward(self, x):
            return self.inner(x) + 1

    manager = manager_with(fxplug_is_leaf_module=lambda module: True if isinstance(module, Draws) else None)
    captured = fxplug.trace(Holds(), (X,), mode=mode, manager=manager)
    assert [node.target for node in captured.graph.find_nodes(op="call_module")] == ["inner"]


@modes
@pytest.mark.parametrize("order", ["before", "behind"])
def test_what_the_program_draws_itself_beside_such_a_call_is_refused(order, mode):
    def draws(x):
        first = random.random() if order == "before" else 0
        x = scaled(x)
        return x + first + (random.random() if order == "behind" else 0)

    state = random.getstate()
    with pytest.raises(TraceError) as caught:
        fxplug.trace(draws, (X,), mode=mode)
    assert caught.value.code == "FXP-T053"
    assert random.getstate() == state


def test_draws_inside_of_kept_calls_are_told_from_others():
    states = RandomStates()
    with states.kept():
        random.random()
    assert states.restore() == []
    states = RandomStates()
    random.random()
    with states.kept():
        pass
    assert states.restore() == ["random"]


def test_what_a_run_leaves_in_such_tensors_is_compared():
    box = Box()

    def adds(x):
        box.kept.add_(1)
        return x + 1

    captured = fxplug.trace(adds, (X,))
    for node in captured.graph.find_nodes(op="call_method", target="add_"):
        captured.graph.erase_node(node)
    captured.recompile()
    program = Adds(box, lambda held: held.kept)
    program.forward = adds
    with pytest.raises(MismatchError, match=r"in tensor _tensor_constant0"):
        check_capture(program, captured, (X,), {})
    assert box.kept.tolist() == [0, 0]


def test_where_guards_do_not_hold_for_other_values_the_program_does_not_run():
    box = Box()

    def branches(x):
        if x.sum() > 2.01:
            box.kept.add_(1)
        return x + 1

    fxplug.trace(branches, (X,), mode="value")
    assert box.kept.tolist() == [0, 0]


def test_what_the_program_refuses_for_other_values_it_may_refuse():
    def strict(x):
        if not torch.equal(x, torch.ones(2)):
            raise ValueError("not these")
        return x + 1

    fxplug.trace(strict, (X,), mode="value", on_guard_failure="ignore")


def test_only_what_belongs_to_the_program_is_looked_into():
    large = [torch.zeros(1)] * 1001
    box = Box()
    box.kept = large
    inside = SimpleNamespace(module=nn.Linear(1, 1))

    def finds(x):
        return x, box, inside, nn.functional, COUNTED

    found = {id(tensor) for tensor in tensors_elsewhere(finds)}
    wanted = [box.listed[0], box.named["a"], inside.module.weight, inside.module.bias, COUNTED]
    assert found == set(map(id, wanted))


def test_defaults_that_hold_tensors_are_refused_by_name():
    def adds(x, offsets=[torch.zeros(2)]):  # noqa: B006, B008 - as programs do
        return x + offsets[0]

    with pytest.raises(TraceError, match="'offsets' has a tensor in its default") as caught:
        fxplug.symbolic_trace(adds)
    assert caught.value.code == "FXP-T012"


@modes
def test_attributes_of_functions_are_put_back_and_so_is_what_requires_a_gradient(mode):
    def adds(x):
        adds.kept.add_(1)
        adds.kept.requires_grad_()
        return x + adds.kept

    adds.kept = torch.zeros(2)
    fxplug.trace(adds, (X,), mode=mode)
    assert adds.kept.tolist() == [0, 0]
    assert not adds.kept.requires_grad


def test_tensors_that_are_too_large_to_be_state_are_left_out(monkeypatch):
    monkeypatch.setattr("fxplug.analyze.elsewhere._LARGEST", 8)
    found = tensors_elsewhere(lambda x: x + SMALL.kept + SMALL.large)
    assert [tensor.shape for tensor in found] == [(2,)]


SMALL = SimpleNamespace(kept=torch.zeros(2), large=torch.zeros(3))

"""What a program changes while it is traced: containers, training flags, and what it keeps from call to call."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections import OrderedDict, defaultdict, deque
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import GuardError, TraceError, TraceWarning

MAKE = {
    "list": lambda: [1, 2],
    "dict": lambda: {"a": 1},
    "ordered": lambda: OrderedDict(a=1, b=2),
    "default": lambda: defaultdict(list, a=[1]),
    "set": lambda: {1, 2},
    "deque": lambda: deque([1, 2], maxlen=2),
    "nested": lambda: {"a": [1]},
}
CHANGE = {
    "list": lambda held, x: held.append(x),
    "dict": lambda held, x: held.update(a=x),
    "ordered": lambda held, x: held.move_to_end("a"),
    "default": lambda held, x: held["b"].append(x),
    "set": lambda held, x: held.add(3),
    "deque": lambda held, x: held.append(x),
    "nested": lambda held, x: held["a"].append(x),
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", MAKE)
def test_containers_are_as_before(capture, kind, fails):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.held = MAKE[kind]()

        def forward(self, x):
            CHANGE[kind](self.held, x)
            if fails:
                raise LookupError
            return x * 2

    root = Root()
    held, before = root.held, copy.deepcopy(root.held)
    if fails:
        with pytest.raises(LookupError):
            capture(root)
    else:
        with pytest.warns(
            TraceWarning, match="forward changed what is in the attribute 'held'. It was put back"
        ):
            capture(root)
    assert root.held is held
    assert held == before
    assert list(held) == list(before)


def test_containers_that_do_not_change_are_not_reported(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.sizes = [1, 2]
            self.names = {"a": [1]}

        def forward(self, x):
            return x * self.sizes[0] * len(self.names)

    assert capture(Root())(torch.ones(1)).item() == 1


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class RemembersItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        out = x if self.last is None else x + self.last
        self.last = x * 1
        return out


class Collects(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = []

    def forward(self, x):
        self.cache.append(x)
        return torch.cat(self.cache)


class InAHelper(Counts):
    def forward(self, x):
        return self._next(x)

    def _next(self, x):
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize("kind", [Counts, RemembersItsInput, Collects, InAHelper])
def test_state_by_which_the_next_call_answers_is_refused(capture, kind):
    root = nn.Sequential(kind())
    before = copy.deepcopy(vars(root[0]))
    with pytest.raises(TraceError, match=r"attribute '0\.(calls|last|cache)'.*buffers.*\[FXP-T055\]$"):
        capture(root)
    assert {name: vars(root[0])[name] for name in before if not name.startswith("_")} == {
        name: value for name, value in before.items() if not name.startswith("_")
    }


def test_state_is_refused_in_a_forward_that_asks_for_a_mask_too(capture):
    class Masked(RemembersItsInput):
        def forward(self, x, mask=None):
            out = x if self.last is None else x + self.last
            self.last = x * 1
            return out if mask is None else out * mask

    with pytest.raises(TraceError, match=r"attribute '0\.last'.*\[FXP-T055\]$"):
        capture(nn.Sequential(Masked()))


def test_counter_that_nothing_reads_is_only_reported(capture):
    class Root(Counts):
        def forward(self, x):
            self.calls += 1
            return x * 2

    with pytest.warns(TraceWarning, match="'calls'"):
        capture(Root())


def test_table_made_of_parameters_is_only_reported(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.table = None

        def forward(self, x):
            if self.table is None:
                self.table = self.weight.detach() * 2
            return x * self.table

    with pytest.warns(TraceWarning, match="'table'"):
        module = capture(Root())
    assert module(torch.ones(3)).tolist() == [2, 2, 2]


def test_noise_that_is_drawn_once_is_refused(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.noise = None

        def forward(self, x):
            if self.noise is None:
                self.noise = torch.rand(3)
            return x * self.noise

    with pytest.raises(TraceError, match=r"\[FXP-T055\]$"):
        capture(Root())


# -- training


class Drops(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, self.training)


class DropsInAHelper(nn.Module):
    def forward(self, x):
        return self._drop(x)

    def _drop(self, x):
        return F.dropout(x, 0.5, self.training)


def helper(module, x):
    return F.dropout(x, 0.5, module.training)


class DropsInAFunction(nn.Module):
    def forward(self, x):
        return helper(self, x)


class AsksInAProperty(nn.Module):
    @property
    def chance(self):
        return 0.5 if self.training else 0.0

    def forward(self, x):
        return F.dropout(x, self.chance)


class AsksInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(Drops())

    def forward(self, x):
        return self.body(x)


ASKING = [Drops, DropsInAHelper, DropsInAFunction, AsksInAProperty, AsksInside]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ASKING)
def test_program_that_asked_whether_it_is_trained_keeps_to_the_answer(capture, kind, training):
    module = capture(kind().train(training))
    assert module.graph.captured_training is training
    module(torch.ones(3))
    with pytest.raises(GuardError, match="training"):
        module.train(not training)(torch.ones(3))
    module.train(training)(torch.ones(3))


@pytest.mark.parametrize(
    "remake",
    [
        copy.deepcopy,
        lambda module: pickle.loads(pickle.dumps(module)),
        lambda module: fxplug.Transformer(module).transform(),
        fxplug.symbolic_trace,
        lambda module: fxplug.symbolic_trace(nn.Sequential(module).eval()),
    ],
    ids=["deepcopy", "pickle", "Transformer", "traced again", "traced inside"],
)
def test_answer_survives(capture, remake):
    module = remake(capture(Drops().eval()).eval()).eval()
    module(torch.ones(3))
    with pytest.raises(GuardError):
        module.train()(torch.ones(3))


def test_answer_survives_a_file(capture, tmp_path):
    fxplug.save(capture(Drops()), tmp_path / "module.fxplug")
    module = fxplug.load(tmp_path / "module.fxplug")
    module(torch.ones(3))
    with pytest.raises(GuardError):
        module.eval()(torch.ones(3))


def test_program_that_did_not_ask_runs_in_both_modes(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x) + 1

    module = capture(Root())
    assert module.graph.captured_training is None
    assert module.eval()(torch.ones(2)).tolist() == [2, 2]


def test_switch_inside_the_program_is_refused(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            self.norm.eval()
            x = self.norm(x)
            self.norm.train()
            return x

    root = Root()
    with pytest.raises(TraceError, match=r"forward sets 'norm\.training', at .*\[FXP-T052\]$"):
        capture(root)
    assert root.norm.training


def test_views_that_are_written_one_after_another_are_as_before():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("whole", torch.zeros(3))
            self.part = self.whole[:2]

        def forward(self, x):
            self.whole.add_(1)
            self.part.mul_(2)
            return x + self.whole

    root = Root()
    fxplug.trace(root, (torch.ones(3),))
    assert root.whole.tolist() == [0.0, 0.0, 0.0]
    assert root.part.data_ptr() == root.whole.data_ptr()


class Freezes(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        self.inner.requires_grad_(False)
        return self.inner(x)


def test_the_check_leaves_parameters_with_the_gradients_that_they_had():
    module = Freezes()
    fxplug.trace(module, (torch.ones(2, 3),), mode="value")

    assert all(parameter.requires_grad for parameter in module.parameters())


class Renormalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.bag = nn.Embedding(5, 3, max_norm=0.1), nn.EmbeddingBag(5, 3, max_norm=0.1)
        self.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, index):
        found = nn.functional.embedding(index, self.weight, max_norm=0.1)
        return self.table(index) + self.bag(index[None]) + found


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_lookups_that_renormalise_leave_the_weights_as_they_were(mode, check, training):
    model, index = Renormalised().train(training), torch.tensor([1, 2])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    captured = fxplug.trace(model, (index,), mode=mode, check=check)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    found = captured(index)
    assert not torch.equal(model.table.weight, before["table.weight"])  # As eager does.
    torch.testing.assert_close(found, model(index))


class CacheOfKeys(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = nn.Linear(2, 2)
        self.register_buffer("cache", torch.zeros(2, 4, 2))

    def forward(self, x):
        self.cache[:, :2] = self.keys(x)
        return self.cache.sum(1)


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("check", [False, True])
def test_a_buffer_that_is_written_with_a_gradient_has_none_afterwards(mode, check):
    model, x = CacheOfKeys(), torch.randn(2, 2, 2)
    captured = fxplug.trace(model, (x,), mode=mode, check=check)
    assert model.cache.is_leaf
    assert not model.cache.requires_grad
    assert not model.cache.any()
    with torch.no_grad():
        torch.testing.assert_close(captured(x), model(x))


class _ByRows(nn.Module):
    """Keeps a table for each number of rows."""

    def __init__(self, key):
        super().__init__()
        self.tables = {}
        self.key = key

    def forward(self, x):
        key = self.key(x)
        if key not in self.tables:
            self.tables[key] = torch.arange(x.shape[0]).float()
        return x + self.tables[key]


@pytest.mark.parametrize("mode", ["value", "shape"])
@pytest.mark.parametrize("key", [lambda x: x.shape[0], lambda x: tuple(x.shape)], ids=["size", "sizes"])
def test_a_cache_by_size_is_refused_until_it_is_filled(key, mode):
    model, x = _ByRows(key), torch.rand(3)
    with pytest.raises(TraceError, match=r"'tables' of _ByRows.*call the program before") as refused:
        fxplug.trace(model, (x,), mode=mode, on_guard_failure="recapture")
    assert refused.value.code == "FXP-T055"
    assert model.tables == {}

    model(x)
    model(torch.rand(5))
    captured = fxplug.trace(model, (x,), mode=mode)

    torch.testing.assert_close(captured(x), model(x))
    with pytest.raises(fxplug.GuardError, match=r"x\.shape"):
        captured(torch.rand(5))
    assert sorted(model.tables, key=str) == sorted([key(x), key(torch.rand(5))], key=str)
    assert all(
        type(part) is int for kept in model.tables for part in (kept if type(kept) is tuple else (kept,))
    )


def _sending():
    value = 1
    while True:
        value += (yield value) or 1


def _started():
    generator = _sending()
    next(generator)
    return generator.send


@pytest.mark.parametrize(
    "make",
    [
        lambda: itertools.count(1).__next__,
        lambda: iter(range(1, 9)).__next__,
        lambda: [4, 3, 2].pop,
        lambda: deque([4, 3, 2]).popleft,
        lambda: partial(_started(), None),
    ],
    ids=["count", "iterator", "list", "deque", "generator"],
)
@pytest.mark.parametrize("mode", ["symbolic", "value"])
def test_a_method_of_python_that_a_module_holds_keeps_state(make, mode):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.step, self.scale = make(), {"a": 2}.get

        def forward(self, x):
            return x * self.step() * self.scale("a")

    with pytest.raises(TraceError) as refused:
        fxplug.trace(Counting(), (torch.ones(1),) if mode == "value" else None, mode=mode, check=False)
    assert refused.value.code == "FXP-T055"

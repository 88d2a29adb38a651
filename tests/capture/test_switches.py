"""Classes that say themselves what ``train()`` and ``eval()`` mean for their parts."""

from __future__ import annotations

import copy
import importlib
import pickle
import random
import sys
import threading

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import GuardError, TraceError

X = torch.rand(3, 2)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.norm(self.layer(x))


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.norm = Frozen(), nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(self.block(x))


class Never(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.eval()

    def train(self, mode=True):
        return super().train(False)

    def forward(self, x):
        return self.norm(x) * (2 if self.training else 3)


def modes_of(module, switch):
    getattr(module, switch)()
    return {path: part.training for path, part in module.named_modules() if type(part) is not nn.Module}


def check_modes(root, captured):
    for switch in ("train", "eval", "train"):
        wanted, found = modes_of(root, switch), modes_of(captured, switch)
        assert found == {path: wanted[path] for path in found}
        assert "norm" in found


@pytest.mark.parametrize("kind", [Frozen, Around, Never])
def test_what_is_captured_is_switched_as_the_program_is(capture_as, kind):
    root = kind()
    check_modes(copy.deepcopy(root), capture_as(root))


def test_a_program_is_in_the_modes_that_it_was_in(capture_as):
    root = Around()
    root.block.layer.eval()
    before = {path: part.training for path, part in root.named_modules()}
    capture_as(root)
    assert {path: part.training for path, part in root.named_modules()} == before


def loaded(module, folder):
    fxplug.save(module, folder / "module.fxp")
    return fxplug.load(folder / "module.fxp")


def imported(name, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setitem(sys.modules, name, None)
    del sys.modules[name]
    return importlib.import_module(name)


COPIES = {
    "copy": lambda module, _: copy.copy(module),
    "deepcopy": lambda module, _: copy.deepcopy(module),
    "pickle": lambda module, _: pickle.loads(pickle.dumps(module)),
    "load": loaded,
    "transform": lambda module, _: fxplug.Transformer(module).transform(),
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_are_switched_as_the_program_is(how, tmp_path):
    root = Around()
    check_modes(copy.deepcopy(root), COPIES[how](fxplug.symbolic_trace(root), tmp_path))


@pytest.mark.parametrize("kind", [Around, Never])
def test_packages_are_switched_as_the_program_is(kind, tmp_path, monkeypatch):
    captured = fxplug.symbolic_trace(kind())
    captured.to_folder(tmp_path / f"folder_{kind.__name__}")
    fxplug.export_python(captured, tmp_path / f"package_{kind.__name__}")
    made = imported(f"folder_{kind.__name__}", tmp_path, monkeypatch).FxModule()
    check_modes(kind(), made)
    check_modes(kind(), imported(f"package_{kind.__name__}", tmp_path, monkeypatch).load())


def test_parts_are_switched_as_the_program_is():
    captured = fxplug.symbolic_trace(Around())
    split = fxplug.split_module(captured, captured, lambda node: 0 if "block" in str(node.target) else 1)
    split.train()
    norms = {path: part.training for path, part in split.named_modules() if isinstance(part, nn.BatchNorm1d)}
    assert sorted((path.partition(".")[2], training) for path, training in norms.items()) == [
        ("block.norm", False),
        ("norm", True),
    ]


def test_a_submodule_that_is_written_into_its_caller_is_switched_as_before():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = fxplug.symbolic_trace(Frozen())

        def forward(self, x):
            return self.inner(x)

    captured = fxplug.symbolic_trace(Outer())
    assert not captured.train().get_submodule("inner.norm").training


class Merged(nn.Module):
    """As adapters of low rank do: the weight holds what was learned while it is evaluated."""

    def __init__(self):
        super().__init__()
        self.layer, self.is_merged = nn.Linear(2, 2), False

    def train(self, mode=True):
        super().train(mode)
        if mode is self.is_merged:
            self.layer.weight.data += -1 if mode else 1
            self.is_merged = not mode
        return self

    def forward(self, x):
        return self.layer(x)


@pytest.mark.parametrize("training", [True, False])
def test_a_program_that_changes_its_weights_is_guarded(capture_as, training):
    root = Merged().train(training)
    weight = root.layer.weight.detach().clone()
    captured = capture_as(root)
    assert torch.equal(root.layer.weight, weight)
    assert (root.training, root.is_merged) == (training, not training)
    captured.train(training)(torch.ones(1, 2))
    with pytest.raises(GuardError, match=f"self.training is {training}"):
        captured.train(not training)(torch.ones(1, 2))


def test_a_program_that_changes_in_the_mode_that_it_is_in_is_refused(capture_as):
    class Freezing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def train(self, mode=True):
            self.layer.weight.requires_grad_(False)
            return super().train(mode)

        def forward(self, x):
            return self.layer(x)

    root = Freezing()
    with pytest.raises(TraceError, match=r"train\(\) of it changes whether its parameters require") as info:
        capture_as(root)
    assert info.value.code == "FXP-T052"
    assert root.layer.weight.requires_grad
    capture_as(root.train()).train()


def test_an_eval_that_does_something_else_than_train_is_guarded(capture_as):
    class Sampling(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout()

        def eval(self):
            super().eval()
            self.drop.train()
            return self

        def forward(self, x):
            return self.drop(x)

    captured = capture_as(Sampling())
    captured.eval()
    with pytest.raises(GuardError):
        captured(torch.ones(1, 2))


def test_a_switch_that_fails_leaves_the_program_in_its_mode(capture_as):
    class Closed(nn.Module):
        def train(self, mode=True):
            if mode:
                raise RuntimeError
            return super().train(mode)

        def forward(self, x):
            return x + 1

    captured = capture_as(Closed().eval())
    with pytest.raises(GuardError):
        captured.train()(torch.ones(2))


class _Beside(nn.Module):
    """Does something besides switching its modules; what that is, a test says."""

    def __init__(self, also):
        super().__init__()
        self.layer, self.cache, self.calls = nn.Linear(2, 2), {"seen": 1}, 0
        self.teacher = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))]
        self.also = also

    def train(self, mode=True):
        super().train(mode)
        if hasattr(self, "also"):
            self.also(self, mode)
        return self

    def forward(self, x):
        return self.layer(x)


def _bump():
    CALLS.append(1)


CALLS = []
HARMLESS = {
    "a module that is no part": lambda model, mode: model.teacher[0].train(mode),
    "an empty cache": lambda model, mode: setattr(model, "cache", {}),
    "a counter": lambda model, mode: setattr(model, "calls", model.calls + 1),
    "a text": lambda model, mode: setattr(model, "mode", "train" if mode else "eval"),
}
REFUSED = {
    "gradients": lambda model, mode: torch.set_grad_enabled(False),
    "a dtype": lambda model, mode: torch.set_default_dtype(torch.float64),
    "a seed": lambda model, mode: random.seed(7),
    "a global": lambda model, mode: _bump(),
    "a freeze": lambda model, mode: model.layer.weight.requires_grad_(False),
}


def _state_of(model):
    teacher = [part.training for part in model.teacher[0].modules()]
    around = torch.is_grad_enabled(), torch.get_default_dtype(), random.getstate(), len(CALLS)
    return teacher, around, model.cache, model.calls, model.layer.weight.requires_grad


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", HARMLESS)
def test_what_a_switch_does_besides_is_not_done_by_a_capture(capture_as, name, training):
    model = nn.Module.train(_Beside(HARMLESS[name]), training)
    before = _state_of(model)

    captured = capture_as(model)

    assert _state_of(model) == before
    for mode in (True, False):
        assert torch.equal(captured.train(mode)(X), model.layer(X))


def test_a_cache_that_is_empty_and_stays_so_may_be_another_one(capture_as):
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.cache = nn.Linear(2, 2), {}

        def train(self, mode=True):
            self.cache = {}
            return super().train(mode)

        def forward(self, x):
            return self.layer(x) + len(self.cache)

    model = Caching()
    held = model.cache

    captured = capture_as(model)

    assert model.cache is held
    assert torch.equal(captured.eval()(X), model.layer(X))


@pytest.mark.parametrize("name", REFUSED)
def test_a_switch_that_changes_what_is_around_the_program_is_refused(capture_as, name):
    model = nn.Module.train(_Beside(REFUSED[name]))
    before = _state_of(model)

    with pytest.raises(TraceError) as info:
        capture_as(model)

    assert info.value.code == "FXP-T052"
    assert _state_of(model) == before


def test_modules_that_cannot_be_copied_keep_to_their_mode(capture_as):
    model = Frozen()
    model.lock = threading.Lock()

    captured = capture_as(model)

    assert torch.equal(captured(X), model(X))
    with pytest.raises(GuardError):
        captured.eval()(X)


def test_a_graph_into_which_a_program_is_copied_switches_as_it_does():
    captured = fxplug.symbolic_trace(Frozen())
    graph = fxplug.Graph()
    graph.output(graph.graph_copy(captured.graph, {}))
    again = fxplug.GraphModule(captured, graph)

    assert [again.train(mode).norm.training for mode in (True, False)] == [False, False]


# -- programs that switch their parts themselves


class Freezes(nn.Module):
    """Keeps a part of it in eval mode, whatever it is in itself."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        self.body.eval()
        return self.head(self.body(x))


class FreezesNorms(Freezes):
    def forward(self, x):
        for part in self.body.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.eval()
        return self.head(self.body(x))


class FreezesByTheFlag(Freezes):
    def forward(self, x):
        self.body[1].training = False
        return self.head(self.body(x))


class AlwaysTrains(Freezes):
    def forward(self, x):
        self.body.train()
        return self.head(self.body(x))


class FreezesBehind(Freezes):
    def forward(self, x):
        result = self.head(self.body(x))
        self.body.eval()
        return result


SWITCHING = [Freezes, FreezesNorms, FreezesByTheFlag, AlwaysTrains, FreezesBehind]
STARTS = {
    "new": lambda root: root,
    "in eval": lambda root: root.eval(),
    "called before": lambda root: (root(torch.rand(5, 4)), root)[1],
}


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("mode", ["shape", "value"])
@pytest.mark.parametrize("kind", SWITCHING)
def test_parts_that_the_program_switches_are_switched_in_every_call(kind, mode, start):
    root = STARTS[start](kind())
    expected = copy.deepcopy(root)
    flags = [part.training for part in root.modules()]
    module = copy.deepcopy(fxplug.trace(root, (torch.rand(5, 4),), mode=mode))

    assert [part.training for part in root.modules()] == flags
    for mode_of_call in (None, None, True, True, False, True):
        if mode_of_call is not None:
            module.train(mode_of_call)
            expected.train(mode_of_call)
        x = torch.rand(5, 4)
        torch.testing.assert_close(module(x), expected(x))
        torch.testing.assert_close(module.get_submodule("body.1").running_mean, expected.body[1].running_mean)


@pytest.mark.parametrize("kind", SWITCHING)
def test_without_examples_parts_have_to_be_what_the_program_switches_them_to(kind):
    with pytest.raises(TraceError, match=r"forward sets 'body.*training'.*\[FXP-T\d+\]$"):
        fxplug.symbolic_trace(STARTS["in eval" if kind is AlwaysTrains else "new"](kind()))
    root = kind().train(kind is AlwaysTrains)
    module = fxplug.symbolic_trace(root)

    x = torch.rand(5, 4)
    torch.testing.assert_close(module(x), root(x))
    with pytest.raises(GuardError, match=r"self\.body(\.1)?\.training is"):
        module.train(not module.training)(x)


def test_switching_the_root_to_what_it_is_asks_for_its_mode(capture_as_root):
    class SwitchesItself(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            self.eval()
            return self.drop(x)

    module = capture_as_root(SwitchesItself().eval())

    assert torch.equal(module(torch.ones(3, 4)), torch.ones(3, 4))
    with pytest.raises(GuardError, match=r"self\..*training is False"):
        module.train()(torch.ones(3, 4))


@pytest.fixture(params=["symbolic", "shape", "value"])
def capture_as_root(request):
    inputs = None if request.param == "symbolic" else (torch.rand(5, 4),)
    return lambda root: fxplug.trace(root, inputs, mode=request.param)

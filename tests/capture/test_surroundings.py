"""What a program asks besides its inputs is guarded: flags of modules, kinds of weights, modes of torch."""

import copy
import importlib
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxplug
from fxplug import GuardError
from fxplug.errors import GuardWarning
from fxplug.storage.inspection import summarize

X = torch.arange(6.0).reshape(2, 3) + 0.5
MODES = ("symbolic", "shape", "value")


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


def capture(root, mode, **options):
    if mode == "symbolic":
        return fxplug.trace(root, **options)
    return fxplug.trace(root, (X,), mode=mode, **options)


def texts(module):
    return [guard.text for guard in module.guards]


# -- flags of modules


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight * (2 if self.training else 3)


class Plain(nn.Module):
    def forward(self, x):
        return x * (2 if self.training else 3)


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


class ReadsFlagOfPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x) * (2 if self.inner.training else 3)


def drops(module, x):
    return F.dropout(x, 0.5, module.training)


class HandsItselfOver(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return drops(self.inner, self.inner(x))


@pytest.mark.parametrize("make", [lambda: Outer(Scales()), ReadsFlagOfPart, HandsItselfOver])
@pytest.mark.parametrize("training", [True, False])
def test_part_that_is_switched_on_its_own_is_another_program(mode, make, training):
    module = capture(make().train(training), mode)

    module(X)
    module.inner.train(not training)
    with pytest.raises(GuardError, match=rf"captured for self\.inner\.training is {training}"):
        module(X)
    module.inner.train(training)
    module(X)


def test_part_further_out_switches_what_is_in_it(mode):
    module = capture(nn.Sequential(Outer(Scales()), Outer(Plain())), mode)
    module.get_submodule("0").eval()

    with pytest.raises(GuardError, match=r"self\.0\.inner\.training is True"):
        module(X)


@pytest.mark.parametrize("inner", [Scales, Plain])
def test_part_in_a_mode_of_its_own_is_switched_with_the_whole(mode, inner):
    root = Outer(inner())
    root.inner.eval()
    module = capture(root, mode)

    assert torch.equal(module(X), root(X))
    with pytest.raises(GuardError, match=r"self\.inner\.training is False"):
        module.train()(X)


def test_parts_have_the_modes_that_they_had(mode):
    module = capture(Outer(Scales()).eval(), mode)

    assert not module.inner.training


def test_layers_that_stay_calls_are_switched_at_will(mode):
    root = nn.Sequential(nn.BatchNorm1d(3), Outer(Scales()))
    module = capture(root, mode)
    module.get_submodule("0").eval()

    assert torch.equal(module(X), root(X))
    assert texts(module) == ["self.training is True", "self.1.inner.training is True"]


def test_attribute_of_another_object_is_no_flag(mode):
    class Settings:
        training = True

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.settings = Settings()

        def forward(self, x):
            return x * (2 if self.settings.training else 3)

    module = capture(Root(), mode)
    assert texts(module) == []
    assert torch.equal(module.eval()(X), X * 2)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_part_that_the_program_switches_itself_is_in_the_mode_that_it_says(mode):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Scales()

        def forward(self, x):
            self.inner.eval()
            x = self.inner(x)
            self.inner.train()
            return x

    module = capture(Root(), mode)

    for _ in range(2):
        assert torch.equal(module(X), X * 3)


@pytest.mark.parametrize("policy", ["eager", "recapture"])
def test_what_runs_instead_has_its_parts_in_the_same_modes(mode, policy):
    root = Outer(Scales())
    module = capture(root, mode, on_guard_failure=policy)

    for training in (False, True, False):
        module.inner.train(training)
        assert torch.equal(module(X), X * (2 if training else 3) + 1)
    assert root.inner.training
    module.inner.train()
    module.eval()
    assert torch.equal(module(X), X * 3 + 1)


def test_guard_may_warn_or_be_ignored(mode):
    module = capture(Outer(Scales()), mode, on_guard_failure="warn")
    module.inner.eval()
    with pytest.warns(GuardWarning, match=r"self\.inner\.training is True"):
        module(X)

    module = capture(Outer(Scales()), mode, on_guard_failure="ignore")
    module.inner.eval()
    assert torch.equal(module(X), X * 2 + 1)


REMAKES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "transformed": lambda module: fxplug.Transformer(module).transform(),
    "traced again": fxplug.symbolic_trace,
    "another graph module": lambda module: fxplug.GraphModule(module, copy.deepcopy(module.graph)),
}


@pytest.mark.parametrize("remake", REMAKES)
def test_flags_of_parts_survive(mode, remake):
    module = REMAKES[remake](capture(Outer(Scales()), mode))

    assert "self.inner.training is True" in texts(module)
    module(X)
    module.inner.eval()
    with pytest.raises(GuardError, match=r"self\.inner\.training"):
        module(X)


def test_flags_of_parts_survive_in_another_program(mode):
    module = fxplug.symbolic_trace(nn.Sequential(capture(Outer(Scales()), mode)))

    module(X)
    module.get_submodule("0.inner").eval()
    with pytest.raises(GuardError, match=r"self\.0\.inner\.training"):
        module(X)


def test_flags_of_parts_survive_a_file(mode, tmp_path):
    root = Outer(Plain())
    root.inner.eval()
    fxplug.save(capture(root, mode), tmp_path / "module.fxp")
    module = fxplug.load(tmp_path / "module.fxp")

    assert torch.equal(module(X), root(X))
    assert texts(module)[-2:] == ["self.training is True", "self.inner.training is False"]
    assert summarize(tmp_path / "module.fxp").guards[-1] == "self.inner.training is False"
    with pytest.raises(GuardError, match=r"self\.inner\.training"):
        module.train()(X)


def test_flags_of_parts_survive_an_export(mode, tmp_path, monkeypatch):
    fxplug.export_python(capture(nn.Sequential(Outer(Scales())), mode), tmp_path / "exported_flags")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("exported_flags").load()

    module(X)
    dict(module.named_modules())["0.inner"].eval()
    with pytest.raises(ValueError, match=r"captured for self\.0\.inner\.training is True"):
        module(X)
    sys.modules.pop("exported_flags")


def test_flags_of_an_inlined_part_are_guarded():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            outer = Outer(Scales())
            self.part = fxplug.GraphModule(outer, fxplug.Tracer().trace(outer))

        def forward(self, x):
            return self.part(x) * 2

    class KeepsParts(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return module_qualified_name == "part"

    root = Holds()
    module = fxplug.GraphModule(root, KeepsParts().trace(root))
    fxplug.passes.inline_submodule(module, "part")

    assert texts(module) == [
        "self.training is True",
        "self.part.training is True",
        "self.part.inner.training is True",
    ]
    module(X)
    module.part.inner.eval()
    with pytest.raises(GuardError, match=r"self\.part\.inner\.training"):
        module(X)

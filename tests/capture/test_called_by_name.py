"""What a program asks in methods and functions that it finds in containers, by walks, and by getattr."""

from __future__ import annotations

import datetime
import os
import queue
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import is_grad_enabled as grad_asked
from torch import nn

from fxplug.errors import GuardError, TraceError, TraceWarning

X = torch.linspace(1, 2, 6).reshape(2, 3)


def ask_grad(x):
    return x * 2 if torch.is_grad_enabled() else x * 3


def ask_training(module, x):
    return x * 2 if module.training else x * 3


def ask_clock(x):
    return x * time.time()


class Part(nn.Module):
    """Asks in what is not its forward."""

    def __init__(self, ask):
        super().__init__()
        self.ask = ask
        self.inner = nn.Dropout()

    def compute(self, x):
        return self.ask(x)

    def flagged(self, x):
        return x * 2 if self.training else x * 3

    @property
    def factor(self):
        return 2 if self.inner.training else 3

    def forward(self, x):
        return self.flagged(x)


class Plain:
    """The same in an object."""

    def __init__(self, ask, part=None):
        self.ask = ask
        self.part = part

    def compute(self, x):
        return self.ask(x)

    def flagged(self, x):
        return x * 2 if self.part.training else x * 3

    def flagged_by_name(self, x):
        part = self.part
        return x * 2 if part.training else x * 3


class Root(nn.Module):
    """Runs a way through what it holds."""

    def __init__(self, hold, run):
        super().__init__()
        hold(self)
        self.__dict__["run"] = run

    def forward(self, x):
        return self.run(self, x)


def in_list_of_modules(root, ask):
    root.parts = nn.ModuleList([Part(ask)])


def in_dict_of_modules(root, ask):
    root.parts = nn.ModuleDict({"0": Part(ask)})


def in_list(root, ask):
    root.parts = [Plain(ask)]


def in_nested_dict(root, ask):
    root.parts = {"0": [Plain(ask)]}


def as_function(root, ask):
    root.parts = [ask]


def as_part(root, ask):
    root.part = Part(ask)


HOLDERS = {
    "a list of modules": (in_list_of_modules, lambda root, x: root.parts[0].compute(x)),
    "a dict of modules": (in_dict_of_modules, lambda root, x: next(iter(root.parts.values())).compute(x)),
    "a list": (in_list, lambda root, x: root.parts[0].compute(x)),
    "a loop": (in_list, lambda root, x: sum(part.compute(x) for part in root.parts)),
    "a nested dict": (in_nested_dict, lambda root, x: root.parts["0"][0].compute(x)),
    "a list of functions": (as_function, lambda root, x: root.parts[0](x)),
    "a name that is worked out": (as_part, lambda root, x: getattr(root.part, "comp" + "ute")(x)),
    "children": (as_part, lambda root, x: next(root.children()).compute(x)),
    "named modules": (as_part, lambda root, x: dict(root.named_modules())["part"].compute(x)),
    "a submodule by its path": (as_part, lambda root, x: root.get_submodule("part").compute(x)),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_modes_that_are_asked_for_somewhere_are_guarded(capture_unchecked, holder):
    hold, run = HOLDERS[holder]
    root = Root(lambda root: hold(root, ask_grad), run)
    module = capture_unchecked(root)

    assert torch.equal(module(X), root(X))
    with torch.no_grad(), pytest.raises(GuardError, match="is_grad_enabled"):
        module(X)


@pytest.mark.parametrize("holder", HOLDERS)
def test_clocks_that_are_asked_somewhere_are_told_of(capture_unchecked, holder):
    hold, run = HOLDERS[holder]

    with pytest.warns(TraceWarning, match=r"time\.time"):
        capture_unchecked(Root(lambda root: hold(root, ask_clock), run))


@pytest.mark.parametrize(
    ("value", "refused"), [(os.urandom, "FXP-T053"), (lambda _: str(datetime.datetime.now()), None)]
)
def test_other_questions_to_the_world_are_heard_in_objects_of_a_list(capture_unchecked, value, refused):
    root = Root(lambda root: in_list(root, lambda x: x * len(value(1))), HOLDERS["a list"][1])

    if refused is None:
        with pytest.warns(TraceWarning, match="now"):
            capture_unchecked(root)
        return
    with pytest.raises(TraceError) as caught:
        capture_unchecked(root)
    assert caught.value.code == refused


FLAGS = {
    "a forward that is called by its name": lambda root, x: root.part.forward(x),
    "a property": lambda root, x: x * root.part.factor,
    "a list of modules": lambda root, x: root.parts[0].flagged(x),
    "a loop": lambda root, x: next(part.flagged(x) for part in root.parts),
    "a name that is worked out": lambda root, x: getattr(root.part, "flag" + "ged")(x),
    "a method that is held": lambda root, x: root.held(x),
    "methods that are held": lambda root, x: root.several[0](x),
    "an object that holds it": lambda root, x: root.object.flagged(x),
    "an object that gives it a name": lambda root, x: root.object.flagged_by_name(x),
    "children": lambda root, x: next(part for part in root.children() if isinstance(part, Part)).flagged(x),
    "a submodule by its path": lambda root, x: root.get_submodule("part").flagged(x),
}


def hold_part(root):
    root.part = Part(None)
    root.parts = nn.ModuleList([root.part])
    root.held = root.part.flagged
    root.several = [root.part.flagged]
    root.object = Plain(None, root.part)


@pytest.mark.parametrize("way", FLAGS)
def test_flags_that_are_read_in_methods_are_guarded(capture_unchecked, way):
    root = Root(hold_part, FLAGS[way])
    module = capture_unchecked(root)

    assert torch.equal(module(X), X * 2)
    assert any(guard.text.endswith("training is True") for guard in module.guards)
    with pytest.raises(GuardError, match="training"):
        module.eval()(X)


class FirstFarAway(nn.Module):
    """Holds an object twice: as far away as one looks, which is too far for what it holds, and then nearer by."""

    def __init__(self):
        super().__init__()
        self.part = Part(None)
        held = SimpleNamespace(inner=self.part)
        self.places = [SimpleNamespace(a=SimpleNamespace(b=SimpleNamespace(c=held))), held]

    def forward(self, x):
        held = self.places[0].a.b.c, self.places[1]
        return held[1].inner.flagged(x)


def test_what_is_found_far_away_first_is_looked_into_where_it_is_nearer_by(capture_unchecked):
    module = capture_unchecked(FirstFarAway())

    assert torch.equal(module(X), X * 2)
    with pytest.raises(GuardError, match="training"):
        module.eval()(X)


def test_a_global_counter_that_an_object_in_a_list_goes_on_with_is_refused(capture_unchecked):
    with pytest.raises(TraceError) as caught:
        capture_unchecked(Root(lambda root: in_list(root, count), HOLDERS["a list"][1]))

    assert caught.value.code == "FXP-T055"
    assert COUNTS == [0]


COUNTS = [0]


def count(x):
    COUNTS[0] += 1
    return x * COUNTS[0]


KEPT = {
    "an attribute": lambda root, x: x * 2 if root.ask() else x * 3,
    "a list": lambda root, x: x * 2 if root.asks[0]() else x * 3,
    "a name of its own": lambda root, x: x * 2 if grad_asked() else x * 3,
    "torch's own module": lambda root, x: x * 2 if torch._C.is_grad_enabled() else x * 3,
    "a name that is worked out": lambda root, x: x * 2 if getattr(torch, "is_grad_" + "enabled")() else x * 3,
}


@pytest.mark.parametrize("way", KEPT)
def test_functions_that_tell_of_modes_are_heard_where_they_are_kept(capture_unchecked, way):
    def hold(root):
        root.ask, root.asks = torch.is_grad_enabled, [torch.is_grad_enabled]

    root = Root(hold, KEPT[way])
    module = capture_unchecked(root)

    assert torch.equal(module(X), X * 2)
    with torch.no_grad(), pytest.raises(GuardError, match="is_grad_enabled"):
        module(X)


@pytest.mark.parametrize(
    ("ask", "other"),
    [
        (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
        (lambda: torch.get_default_device().type, lambda: torch.set_default_device("meta")),
        (torch.is_inference_mode_enabled, None),
        (lambda: torch.is_autocast_enabled("cpu"), None),
        (
            torch.are_deterministic_algorithms_enabled,
            lambda: torch.use_deterministic_algorithms(True),
        ),
    ],
    ids=["dtype", "device", "inference mode", "autocast", "deterministic"],
)
def test_each_mode_is_guarded_where_an_object_asks(capture_unchecked, ask, other):
    answers = {str(ask()): 2}
    root = Root(lambda root: in_list(root, lambda x: x * answers.get(str(ask()), 3)), HOLDERS["a list"][1])
    module = capture_unchecked(root)

    assert torch.equal(module(X), X * 2)
    before = torch.get_default_dtype(), torch.get_default_device()
    try:
        if other is not None:
            other()
        around = (
            torch.inference_mode()
            if "inference" in str(ask)
            else torch.autocast("cpu", enabled=other is None)
        )
        with around, pytest.raises(GuardError):
            module(X)
    finally:
        torch.set_default_dtype(before[0])
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)


def test_what_is_named_but_never_asked_is_not_guarded(capture_unchecked):
    def run(root, x):
        return x * 3 if root.checkpoints and torch.is_grad_enabled() else x * 2

    module = capture_unchecked(Root(lambda root: setattr(root, "checkpoints", False), run))

    with torch.no_grad():
        assert torch.equal(module(X), X * 2)


def test_what_is_named_in_a_function_that_imports_torch_is_not_guarded_either(capture_unchecked):
    def run(root, x):
        import torch

        def inner():
            return root.checkpoints and torch.is_grad_enabled()

        return x * 3 if inner() or (root.checkpoints and torch.is_grad_enabled()) else x * 2

    module = capture_unchecked(Root(lambda root: setattr(root, "checkpoints", False), run))

    with torch.no_grad():
        assert torch.equal(module(X), X * 2)


def test_what_torch_asks_itself_is_not_guarded(capture_unchecked):
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(3, 1)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    module = capture_unchecked(Attends().eval())

    assert not any("torch." in guard.text for guard in module.guards)


def test_functions_of_torch_are_themselves_again_behind_a_capture(capture_unchecked):
    before = torch.is_grad_enabled, torch.get_default_device.__code__, torch._C.is_grad_enabled
    capture_unchecked(Root(lambda root: in_list(root, ask_grad), HOLDERS["a list"][1]))

    assert before == (torch.is_grad_enabled, torch.get_default_device.__code__, torch._C.is_grad_enabled)


def asks_when_scripted(x):
    if torch.is_grad_enabled():
        return x * 2
    return x * 3


def test_functions_that_ask_for_modes_can_be_compiled_by_torchscript_meanwhile(capture_unchecked):
    scripted = queue.SimpleQueue()  # What it holds is not put back.

    class Compiles(nn.Module):
        def forward(self, x):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                scripted.put(torch.jit.script(globals()["asks_when_" + "scripted"]))
            return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        capture_unchecked(Compiles())

    function = scripted.get_nowait()
    assert torch.equal(function(X), X * 2)
    with torch.no_grad():
        assert torch.equal(function(X), X * 3)

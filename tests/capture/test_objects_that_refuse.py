"""Objects, classes and modules that refuse to be looked at are captured, or refused with a code."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import TraceError

ONE, TWO = torch.ones(2, 3), torch.full((4, 3), 2.0)
MODES = ["symbolic", "shape", "value"]


def capture(root, mode, **named):
    return fxplug.trace(root, None if mode == "symbolic" else (ONE,), mode=mode, **named)


class Nested(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


def sequences(depth):
    root = nn.Linear(3, 3)
    for _ in range(depth):
        root = nn.Sequential(root)
    return root


def modules(depth):
    root = nn.Linear(3, 3)
    for _ in range(depth):
        root = Nested(root)
    return root


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [sequences, modules])
def test_modules_that_lie_deep_in_one_another_are_captured(make, mode):
    limit = sys.getrecursionlimit()
    root = make(150)
    captured = capture(root, mode)

    assert torch.equal(captured(TWO), root(TWO))
    assert sys.getrecursionlimit() == limit


def test_a_program_that_comes_to_no_end_is_told_so():
    def endless(x):
        return endless(x + 1)

    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        fxplug.symbolic_trace(endless)
    assert sys.getrecursionlimit() == limit


ENDLESS = """
import threading

import torch
from torch import nn

import fxplug


class Endless(nn.Module):
    def forward(self, x):
        return self(x) + 1


def trace():
    for examples in (None, (torch.ones(2),)):
        try:
            fxplug.trace(Endless(), examples)
        except RecursionError:
            print("told")


threading.stack_size(1 << 20)
thread = threading.Thread(target=trace)
thread.start()
thread.join()
"""


def test_a_program_that_comes_to_no_end_in_a_thread_with_a_small_stack_is_told_so():
    found = subprocess.run([sys.executable, "-c", ENDLESS], check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["told", "told"]


class Thing:
    scale = 2.0


GONE = weakref.proxy(Thing())


class HoldsWhatIsGone(nn.Module):
    def __init__(self):
        super().__init__()
        thing = Thing()  # It is gone when this ends.
        self.gone = weakref.proxy(thing)
        self.all_gone = [weakref.proxy(Thing())]
        self.by_name = {"gone": weakref.proxy(Thing())}

    def forward(self, x):
        for gone in (self.gone, self.all_gone[0], self.by_name["gone"], GONE):
            try:
                x = x * gone.scale
            except ReferenceError:
                x = x + 1
        return x


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("check", [True, False])
def test_references_to_what_is_gone_are_as_the_program_finds_them(mode, check):
    root = HoldsWhatIsGone()
    captured = capture(root, mode, check=check)

    assert torch.equal(captured(TWO), TWO + 4)


class CountsThroughAReference(nn.Module):
    def __init__(self):
        super().__init__()
        self.thing = Thing()
        self.reference = weakref.proxy(self.thing)

    def forward(self, x):
        self.reference.scale += 1
        return x * self.reference.scale


@pytest.mark.parametrize("mode", MODES)
def test_state_behind_a_weak_reference_is_state(mode):
    with pytest.raises(TraceError, match=r"\[FXP-T055\]$"):
        capture(CountsThroughAReference(), mode)


def refuses(name):
    def refuse(*_: object, **__: object):
        raise RuntimeError(name)

    value = property(refuse) if name in {"__class__", "__dict__"} else refuse
    return type("Refuses", (), {name: value})()


REFUSED = [
    *("__bool__", "__call__", "__class__", "__contains__", "__dict__", "__eq__", "__getattr__"),
    *("__getattribute__", "__getitem__", "__hash__", "__iter__", "__len__", "__repr__", "__setattr__"),
]


class Holds(nn.Module):
    def __init__(self, value):
        super().__init__()
        vars(self)["held"] = value
        self.parts = [value]

    def forward(self, x):
        _ = self.held, self.parts[0]
        return x + 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REFUSED)
def test_objects_whose_methods_raise_are_passed_along(name, mode):
    captured = capture(Holds(refuses(name)), mode)

    assert torch.equal(captured(TWO), TWO + 1)


def container_that_refuses(kind, name):
    def refuse(*_: object):
        raise RuntimeError(name)

    made = type("Refuses", (kind,), {name: refuse})
    return made({1: 2}) if kind is dict else made([1]) if name == "__len__" else made()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["__iter__", "__len__"])
@pytest.mark.parametrize("kind", [list, tuple, set, dict])
def test_containers_whose_methods_raise_are_passed_along(kind, name, mode):
    captured = capture(Holds(container_that_refuses(kind, name)), mode)

    assert torch.equal(captured(TWO), TWO + 1)


class LoggedList(list):
    def __iter__(self):
        raise RuntimeError("use the index")


class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = LoggedList()

    def forward(self, x):
        self.seen.append(1)
        return x * len(self.seen)


@pytest.mark.parametrize("mode", MODES)
def test_what_such_a_list_is_given_is_state(mode):
    root = Appends()
    with pytest.raises(TraceError, match=r"\[FXP-T055\]$"):
        capture(root, mode)
    assert len(root.seen) == 0


class HidesItsAttributes:
    """Keeps its attributes where Python does, behind a property that refuses them."""

    @property
    def __dict__(self):
        raise RuntimeError("no")


class CountsInHiding(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = HidesItsAttributes()
        self.hidden.count = 0

    def forward(self, x):
        self.hidden.count += 1
        return x * self.hidden.count


@pytest.mark.parametrize("mode", MODES)
def test_state_behind_a_table_that_refuses_is_state(mode):
    root = CountsInHiding()
    with pytest.raises(TraceError, match=r"\[FXP-T055\]$"):
        capture(root, mode)
    assert root.hidden.count == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("module", [None, 5])
def test_classes_of_no_module_are_captured(module, mode):
    made = {"__module__": module}
    scaled = type("Scaled", (), {**made, "__call__": lambda self, x: x * 2})
    layer = type("Layer", (nn.Module,), {**made, "forward": lambda self, x: x * 3})

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled, self.layer, self.kind = scaled(), layer(), scaled

        def forward(self, x):
            return self.layer(self.scaled(x)) + isinstance(self.scaled, self.kind)

    for root in (Root(), layer()):
        assert torch.equal(capture(root, mode)(TWO), root(TWO))


class RefusesNames(type):
    def __getattr__(cls, name: str):
        raise RuntimeError(name)


class Named(metaclass=RefusesNames):
    pass


@pytest.mark.parametrize("mode", MODES)
def test_classes_whose_metaclass_refuses_names_are_captured(mode):
    assert torch.equal(capture(Holds(Named), mode)(TWO), TWO + 1)


class PitchShift(nn.modules.lazy.LazyModuleMixin, nn.Module):
    """Makes its kernel of the first input, as one of torchaudio does."""

    kernel: nn.UninitializedParameter

    def __init__(self):
        super().__init__()
        self.kernel = nn.UninitializedParameter()

    def initialize_parameters(self, x):
        if self.has_uninitialized_params():
            self.kernel.materialize((x.shape[-1],))
            with torch.no_grad():
                self.kernel.fill_(2.0)

    def forward(self, x):
        return x * self.kernel


class MakesItsOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.UninitializedParameter()

    def forward(self, x):
        if isinstance(self.weight, nn.UninitializedParameter):
            self.weight.materialize((x.shape[-1],))
            with torch.no_grad():
                self.weight.fill_(2.0)
        return x * self.weight


class InAList(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.parts = [module]

    def forward(self, x):
        return self.parts[0](x)


def make_lazy_layer():
    return nn.LazyLinear(3)


def as_it_is(module):
    return module


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [PitchShift, MakesItsOwn, make_lazy_layer])
@pytest.mark.parametrize("around", [as_it_is, Nested, InAList])
def test_modules_without_sizes_that_would_be_run_are_refused_until_they_have_some(around, make, mode):
    torch.manual_seed(0)
    root = around(make())
    if mode == "symbolic" and around is Nested and make is make_lazy_layer:
        assert capture(root, mode)(TWO).shape == TWO.shape  # A layer of torch that stays one call.
        return
    with pytest.raises(TraceError, match=r"no size yet.*\[FXP-T069\]$"):
        capture(root, mode)
    root.eval()(TWO)
    assert torch.equal(capture(root, mode)(TWO), root(TWO))

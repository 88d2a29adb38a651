"""What a forward assigns to its modules while it is traced."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import fxplug
from fxplug.capture import Proxy
from fxplug.errors import TraceError, TraceWarning


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("offset", torch.full((3,), 5.0))


class AugmentedCounter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return x * self.count


class ReassignedCounter(AugmentedCounter):
    def forward(self, x):
        self.count = self.count + 1
        return x * self.count


def test_augmented_buffer_is_updated_by_each_call(capture):
    root = AugmentedCounter()
    module = capture(root)

    assert isinstance(root.count, torch.Tensor)
    results = [module(torch.ones(1)) for _ in range(3)]
    assert not any(isinstance(result, Proxy) for result in results)
    assert [result.item() for result in results] == [1, 2, 3]
    assert root.count.item() == 3


def test_assigned_buffer_is_refused_and_stays_a_tensor(capture):
    root = ReassignedCounter()
    with pytest.raises(
        TraceError, match=r"forward assigned 'count', which is part of the module's state.*\[FXP-T009\]$"
    ):
        capture(root)

    assert isinstance(root.count, torch.Tensor)
    assert root.count.item() == 0


def test_assigned_buffer_of_a_leaf_stays_a_tensor(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            self.norm.running_mean = x.mean(0)
            return self.norm(x)

    root = Root()
    with contextlib.suppress(TraceError):
        capture(root)
    assert isinstance(root.norm.running_mean, torch.Tensor)


@pytest.mark.parametrize("fails", [True, False])
def test_what_forward_registers_first_is_taken_back_and_reported(capture, fails):
    class Root(nn.Module):
        def forward(self, x):
            self.register_buffer("mask", torch.ones(3))
            self.added = nn.ReLU()
            if fails:
                raise TraceError("as it is")
            return x * self.mask

    root = Root()
    with pytest.raises(TraceError):
        capture(root)
    assert list(root._buffers) == []
    assert list(root._modules) == []


class Lazy(nn.Module):
    """Makes a table when it is first needed, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(3.0)
        return x + self.table


def test_attribute_that_forward_assigns_is_put_back_with_a_warning(capture):
    root = Lazy()
    with pytest.warns(TraceWarning, match="forward assigned the attribute 'table'. It was put back"):
        capture(root)

    assert root.table is None


def test_warning_points_to_the_caller(capture):
    with pytest.warns(TraceWarning) as caught:
        capture(Lazy())
    assert caught[0].filename.endswith("conftest.py")


@pytest.mark.filterwarnings("ignore:While tracing, forward assigned:fxplug.errors.TraceWarning")
def test_tensor_that_forward_keeps_for_later_is_part_of_the_captured_program(capture):
    assert capture(Lazy())(torch.zeros(3)).tolist() == [0, 1, 2]


def test_training_flags_are_put_back_everywhere(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            self.eval()
            return self.norm(x)

    root = Root()
    with pytest.raises(TraceError, match=r"'training'.*\[FXP-T052\]$"):
        capture(root)
    assert root.training
    assert root.norm.training


def test_what_forward_assigns_is_taken_back_after_a_failure(capture):
    class Root(Stateful):
        def forward(self, x):
            self.later = x
            self.training = False
            raise LookupError

    root = Root()
    before = {**vars(root)}, {**root._parameters}, {**root._buffers}
    with pytest.raises(LookupError):
        capture(root)
    assert ({**vars(root)}, {**root._parameters}, {**root._buffers}) == before


class Reordering(nn.Module):
    """Takes out what is registered, and puts it in again; its neighbour is the very same object."""

    def __init__(self):
        super().__init__()
        self.w = self.v = nn.Parameter(torch.ones(2))
        self.a = self.b = nn.ReLU()
        self.first = self.second = None

    def forward(self, x):
        for table, name in ((self._parameters, "w"), (self._modules, "a"), (vars(self), "first")):
            table[name] = table.pop(name)
        return self.b(x)


def test_the_order_of_attributes_is_put_back():
    module = Reordering()
    tables = vars(module), module._parameters, module._modules
    before = [list(table) for table in tables]
    fxplug.symbolic_trace(module)

    assert [list(table) for table in tables] == before


class TakesOver(nn.Module):
    """Assigns attributes past `nn.Module`, in a method that no forward names."""

    calls = 0

    def forward(self, x):
        self.calls = self.calls + 1
        return x * self.calls


class ByClass(TakesOver):
    def __setattr__(self, name, value):
        if name == "calls":
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)


class ByProperty(TakesOver):
    calls = property(lambda self: getattr(self, "made", 0), lambda self, value: self._keep(value))

    def _keep(self, value):
        vars(self)["made"] = value


@pytest.mark.parametrize(
    "options",
    [{"mode": "symbolic"}]
    + [{"mode": mode, "check": check} for mode in ("shape", "value") for check in (True, False)],
    ids=str,
)
@pytest.mark.parametrize("kind", [ByClass, ByProperty])
def test_assignments_that_a_class_takes_into_its_hands_are_put_back_and_refused(kind, options):
    root = nn.Sequential(kind())
    before = dict(vars(root[0]))
    with pytest.raises(TraceError, match=rf"of {kind.__name__} that its next call reads.*\[FXP-T055\]$"):
        fxplug.trace(root, (torch.ones(3),), **options)

    assert vars(root[0]) == before


class Doubling(nn.Module):
    def forward(self, x):
        return x * 2


class LetsGo(nn.Module):
    """Removes the hook of its layer in a function of torch, which names nothing."""

    def __init__(self):
        super().__init__()
        self.layer = Doubling()
        self.handle = self.layer.register_forward_hook(lambda *_: None)

    def forward(self, x):
        result = self.layer(x)
        with self.handle:
            return result * 2


def test_hook_that_is_removed_is_put_back(capture):
    root = LetsGo()
    before = dict(root.layer._forward_hooks)
    with contextlib.suppress(TraceError):
        capture(root)

    assert before
    assert root.layer._forward_hooks == before


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_what_a_hook_of_all_modules_assigns_to_a_layer_is_put_back(mode):
    root = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = [dict(vars(module)) for module in root.modules()]
    handle = register_module_forward_hook(lambda module, *_: setattr(module, "calls", 1))
    try:
        with pytest.warns(TraceWarning, match="forward assigned the attribute 'calls'"):
            fxplug.trace(root, (torch.ones(1, 2),), mode=mode, check=False)
    finally:
        handle.remove()

    assert [vars(module) for module in root.modules()] == before
    assert fxplug.trace(root, (torch.ones(1, 2),), mode=mode)(torch.ones(3, 2)).shape == (3, 2)


@pytest.mark.parametrize("mode", ["shape", "value"])
def test_what_the_hook_of_a_layer_assigns_to_it_is_put_back(mode):
    root = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    root[0].register_forward_hook(lambda module, *_: setattr(module, "calls", 1))
    with contextlib.suppress(TraceError):
        fxplug.trace(root, (torch.ones(1, 2),), mode=mode, check=False)

    assert not hasattr(root[0], "calls")

"""Operators that are given functions of the program: choices, loops, maps and scans, around what the functions hold."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as mapped

import fxplug
from fxplug.errors import TraceError
from fxplug.semantics import internals

# What torch itself says of how it compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(1.5))

    def scaled(self, x):
        return self.one(x) * self.scale

    def shifted(self, x):
        return self.other(x) + self.shift


class OfLayers(Model):
    def forward(self, x):
        return torch.cond(x.sum() > 0, self.one, self.other, (x,))


class OfLayersByName(Model):
    def forward(self, x):
        return torch.cond(pred=x.sum() > 0, true_fn=self.one, false_fn=self.shifted, operands=(x,))


class OfMethods(Model):
    def forward(self, x):
        return torch.cond(x.sum() > 0, self.scaled, self.shifted, (x,))


class OfClosures(Model):
    def forward(self, x):
        double = x * 2
        return torch.cond(x.sum() > 0, lambda v: self.one(v) + double, lambda v: v.sin() * double, (x,))


class WithoutOperands(Model):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda: self.one(x), lambda: self.scaled(x) - x)


class OfAPart(Model):
    def forward(self, x):
        return torch.cond(x.sum() > 0, self.one, lambda v: v * self.scale, (x,))


class OfChoices(Model):
    def forward(self, x):
        def positive(v):
            return torch.cond(v.max() > 1, self.one, lambda u: u * 2, (v,))

        return torch.cond(x.sum() > 0, positive, self.other, (x,))


class OfADict(Model):
    def forward(self, x):
        def negative(values):
            return self.other(values["y"]), values["x"].mean()

        first, second = torch.cond(
            x.sum() > 0, lambda v: (self.one(v["x"]), v["x"].sum()), negative, ({"x": x, "y": x + 1},)
        )
        return first * second


class Maps(Model):
    def forward(self, x):
        return mapped(lambda row: row * self.shift, x.detach())


class MapsWithMore(Model):
    def forward(self, x):
        return mapped(lambda row, scale: row * scale * 2, x.detach(), self.shift)


class Scans(Model):
    def forward(self, x):
        start = torch.zeros(3)
        last, rows = scan(lambda carry, row: (carry + row * self.shift, carry * 2 + row), start, x.detach())
        return last + rows


class ScansInATree(Model):
    def forward(self, x):
        return associative_scan(lambda one, other: one + other * self.shift, x, 0, combine_mode="generic")


KINDS = [
    OfLayers,
    OfLayersByName,
    OfMethods,
    OfClosures,
    WithoutOperands,
    OfAPart,
    OfChoices,
    OfADict,
    Maps,
    MapsWithMore,
    Scans,
    ScansInATree,
]


def gradients_of(module, x):
    module.zero_grad()
    x = x.clone().requires_grad_()
    result = module(x)
    if result.requires_grad:
        result.square().sum().backward()
    weights = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
    return result.detach(), x.grad, weights


@pytest.mark.parametrize(("mode", "check"), [("value", True), ("shape", False)])
@pytest.mark.parametrize("kind", KINDS)
def test_functions_are_made_again_around_what_they_hold(kind, mode, check):
    root = kind()
    module = fxplug.trace(root, (torch.randn(4, 3),), mode=mode, check=check)
    copied, expected = copy.deepcopy(module), copy.deepcopy(root)
    with torch.no_grad():
        for one in (copied, expected):
            for weight in (*one.parameters(), *one.buffers()):
                weight.mul_(2).add_(0.25)
    again = fxplug.trace(module, (torch.randn(4, 3),), mode=mode, check=check)

    for one, other in ((module, root), (copied, expected), (again, root)):
        for x in (torch.rand(4, 3) * 2, -torch.rand(6, 3)):
            torch.testing.assert_close(gradients_of(one, x), gradients_of(other, x))


class Loops(Model):
    def forward(self, x):
        with torch.no_grad():
            count, result = while_loop(
                lambda count, _: count < 3,
                lambda count, value: (count + 1, self.one(value) + x),
                (torch.zeros((), dtype=torch.int64), x + 1),
            )
        return result * count


class LoopsByValue(Model):
    def forward(self, x):
        with torch.no_grad():
            return while_loop(lambda v: v.norm() < 100, lambda v: (v * 2 + self.shift,), (x + 1,))[0]


@pytest.mark.parametrize("kind", [Loops, LoopsByValue])
def test_loops_run_what_their_functions_hold(kind):
    root = kind()
    module = fxplug.trace(root, (torch.rand(4, 3),))

    for one, other in ((module, root), (copy.deepcopy(module), copy.deepcopy(root))):
        for x in (torch.rand(4, 3), torch.rand(2, 3) + 40):
            torch.testing.assert_close(one(x), other(x))


@pytest.mark.parametrize("check", [True, False], ids=["with a check", "without"])
def test_loops_that_torch_cannot_follow_without_data_are_refused_in_its_words(check):
    with pytest.raises(
        TraceError, match=r"(?s)torch cannot do without data what Loops.*mode='value'.*\[FXP-T066\]$"
    ):
        fxplug.trace(Loops(), (torch.rand(4, 3),), mode="shape", check=check)


def changes_a_list(x):
    seen = [x]
    return torch.cond(x.sum() > 0, lambda v: (seen.append(v), v + seen[0])[1], torch.sin, (x,)) + len(seen)


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_functions_of_choices_that_change_what_they_share_are_refused(mode):
    with pytest.raises(TraceError, match=r"Cannot record a call of cond.*\[FXP-T054\]$"):
        fxplug.trace(changes_a_list, (-torch.rand(4, 3) if mode == "shape" else torch.rand(4, 3),), mode=mode)


@pytest.mark.parametrize(
    "operator", [mapped, scan, associative_scan], ids=["map", "scan", "associative scan"]
)
def test_without_examples_functions_that_hold_modules_are_refused(operator):
    class Root(Model):
        def forward(self, x):
            if operator is mapped:
                return mapped(self.one, x)
            if operator is scan:
                return scan(lambda carry, row: (carry + self.one(row), row), torch.zeros(3), x)
            return associative_scan(lambda one, other: one + self.one(other), x, 0)

    with pytest.raises(
        TraceError, match=r"Cannot record a call of (map|scan|associative_scan).*\[FXP-T054\]$"
    ):
        fxplug.symbolic_trace(Root())


def test_maps_of_constant_functions_are_captured_without_examples():
    captured = fxplug.symbolic_trace(lambda x: mapped(lambda row: row * 2, x) + 1)
    x = torch.rand(3, 2)
    assert torch.equal(captured(x), x * 2 + 1)


def test_choices_work_behind_a_capture_that_was_the_first_to_make_one():
    # In a process of its own: what torch compiles first decides.
    source = """
        import torch, fxplug, warnings

        warnings.simplefilter("ignore")

        def program(x):
            return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))

        module = fxplug.trace(program, (torch.ones(3),))
        for x in (torch.ones(3), -torch.ones(3)):
            assert torch.equal(module(x), program(x))

        def other(x):
            return x - 1 if torch.is_autocast_enabled("cpu") else x.to(torch.get_default_dtype())

        assert torch.equal(torch.compile(other, backend="eager", fullgraph=True)(x), x)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(source)], check=True, timeout=300)


def test_what_torch_compiles_in_another_way_is_not_compiled_under_a_trace(monkeypatch):
    compiled = []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    function = torch.compile(lambda x: x + 1, backend=backend)
    monkeypatch.setattr(internals, "COMPILES_CHOICES", None)  # As in older releases.

    assert internals.without_compiling(function)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert not compiled
    function(torch.ones(2))
    assert compiled

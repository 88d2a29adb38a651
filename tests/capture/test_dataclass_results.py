"""Dataclasses that a program makes and returns, and whose constructors do more than to keep their fields."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import fxplug

WAYS = [("symbolic", True), *((mode, check) for mode in ("value", "shape") for check in (True, False))]


def captured(program, x, mode, *, check):
    return (
        fxplug.symbolic_trace(program)
        if mode == "symbolic"
        else fxplug.trace(program, (x,), mode=mode, check=check)
    )


@dataclass
class Plain:
    value: torch.Tensor
    scale: float = 2.0
    names: list = field(default_factory=list)


@dataclass
class Shifted:
    value: torch.Tensor

    def __post_init__(self):
        self.value = self.value + 1


@dataclass
class Counted:
    value: torch.Tensor
    names: list = field(default_factory=list)

    def __post_init__(self):
        self.names.append("made")


@dataclass(frozen=True)
class Frozen:
    value: torch.Tensor

    def __post_init__(self):
        object.__setattr__(self, "value", self.value * 2)


@dataclass(init=False)
class OwnConstructor:
    value: torch.Tensor

    def __init__(self, given, factor=2):
        self.value = given * factor


@dataclass
class OtherConstructor:
    value: torch.Tensor

    def __init__(self, given):
        self.value = given * 2


@dataclass
class Assigns:
    value: torch.Tensor

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 2)


@dataclass(slots=True)
class Slotted:
    value: torch.Tensor


class Derived(Plain):
    def __init__(self, value):
        super().__init__(value * 3, 4.0)


def with_another_attribute(x):
    made = Plain(x)
    made.beside = x * 5
    return made


def without_a_field(x):
    made = Plain(x * 2)
    del made.scale
    made.__dict__.pop("names")
    return made


def replaced(x):
    return dataclasses.replace(Shifted(x), value=x * 7)


def copied(x):
    return copy.copy(Shifted(x))


PROGRAMS = {
    "plain": Plain,
    "shifted": Shifted,
    "counted": Counted,
    "frozen": Frozen,
    "own constructor": OwnConstructor,
    "other constructor": OtherConstructor,
    "assigns": Assigns,
    "slotted": Slotted,
    "derived": Derived,
    "another attribute": with_another_attribute,
    "without a field": without_a_field,
    "replaced": replaced,
    "copied": copied,
}


def described(value):
    names = [*getattr(value, "__dict__", {})] or [one.name for one in dataclasses.fields(value)]
    return type(value), {name: str(getattr(value, name)) for name in names}


@pytest.mark.parametrize(("mode", "check"), WAYS)
@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_what_a_constructor_has_done_is_done_once(make, mode, check):
    def program(x):
        return make(x)

    module = captured(program, torch.ones(2), mode, check=check)
    for x in (torch.ones(2), torch.full((2,), 3.0)):
        assert described(module(x)) == described(program(x))
        assert described(copy.deepcopy(module)(x)) == described(program(x))


def test_a_class_that_keeps_its_fields_is_called_as_ever():
    module = fxplug.symbolic_trace(lambda x: Plain(x * 2))

    assert module.graph.output_node().args[0].target is Plain


@pytest.mark.parametrize("mode", ["value", "shape"])
def test_an_input_of_such_a_class_that_is_returned_is_not_made_again(mode):
    module = fxplug.trace(lambda made: made, (Shifted(torch.ones(2)),), mode=mode, check=False)

    assert torch.equal(module(Shifted(torch.ones(2))).value, torch.full((2,), 2.0))


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = Counted(torch.ones(2))

    def forward(self, x):
        return x * 2, self.kept


@pytest.mark.parametrize(("mode", "check"), WAYS)
def test_an_object_that_a_module_keeps_is_as_it_is(mode, check):
    module = captured(Keeps(), torch.ones(2), mode, check=check)

    assert module(torch.ones(2))[1].names == ["made"]

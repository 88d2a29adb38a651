"""Dataclasses that a program makes and returns, and whose constructors do more than to keep their fields."""

from __future__ import annotations

import copy
import dataclasses
import sys
import types
import weakref
from collections import OrderedDict
from dataclasses import InitVar, dataclass, field

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


@dataclass
class Made:
    value: torch.Tensor

    def __new__(cls, value):
        made = object.__new__(cls)
        made.beside = 5
        return made


@dataclass
class Asked:
    value: torch.Tensor

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        return found + 1 if name == "value" else found


@dataclass
class Wants:
    value: torch.Tensor
    unkept: InitVar[int]


class OneMore:
    """Keeps what it is given under its own name, one more than that."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, holder, owner=None):
        return 0 if holder is None else vars(holder)[self.name]

    def __set__(self, holder, value):
        vars(holder)[self.name] = value + 1


@dataclass
class Converts:
    value: OneMore = OneMore()


@dataclass
class Doubles:
    value: torch.Tensor


Doubles.value = property(lambda self: self.single * 2, lambda self, value: setattr(self, "single", value + 1))


class Hidden:
    __slots__ = ("hidden",)


@dataclass
class BesideASlot(Hidden):
    value: torch.Tensor

    def __post_init__(self):
        self.hidden = self.value * 5


@dataclass
class FullDict(dict):
    value: torch.Tensor

    def __post_init__(self):
        self["value"] = self.value


@dataclass
class ShiftedDict(dict):
    value: torch.Tensor

    def __post_init__(self):
        self.value = self["key"] = self.value + 1


@dataclass
class PlainDict(dict):
    value: torch.Tensor


@dataclass
class FixedDict(dict):
    value: torch.Tensor
    fixed: int = field(init=False, default=3)


@dataclass
class PlainList(list):
    value: torch.Tensor


@dataclass
class FailedError(Exception):
    value: torch.Tensor

    def __post_init__(self):
        self.value = self.value + 1


@dataclass
class Number(float):
    value: torch.Tensor

    def __new__(cls, value):
        return float.__new__(cls, 2.5)

    def __post_init__(self):
        self.value = self.value + 1


class OwnNumber(int):
    def __new__(cls, value):
        return int.__new__(cls, 2)


@dataclass
class PlainNumber(OwnNumber):
    value: str

    def __post_init__(self):
        self.value += "!"


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


# -- what a class does when it is looked at, and what stands where no field is


def wants(x):
    return Wants(x, 3)


def held(value):
    """Return what is in an object, past what its class does when it is asked."""
    found = dict(vars(value))
    if isinstance(value, Hidden):
        found["hidden"] = value.hidden
    return type(value), {name: str(part) for name, part in found.items()}


@pytest.mark.parametrize(("mode", "check"), WAYS)
@pytest.mark.parametrize("make", [Made, Asked, wants, Converts, Doubles, BesideASlot])
def test_an_object_has_what_it_had_whatever_its_class_does(make, mode, check):
    def program(x):
        return make(x)

    module = captured(program, torch.ones(2), mode, check=check)
    for x in (torch.ones(2), torch.full((2,), 3.0)):
        assert held(module(x)) == held(program(x))


def test_an_object_whose_class_wants_arguments_is_compared_in_others():
    module = fxplug.trace(lambda x: {"made": [Plain(Made(x))]}, (torch.ones(2),))

    assert held(module(torch.zeros(2))["made"][0].value) == held(Made(torch.zeros(2)))


# -- containers, numbers and exceptions with fields


@pytest.mark.parametrize(("mode", "check"), WAYS)
def test_a_container_with_fields_that_is_the_same_when_made_anew_is_a_call(mode, check):
    module = captured(lambda x: FullDict(x * 2), torch.ones(2), mode, check=check)

    made = module(torch.full((2,), 3.0))
    assert type(made) is FullDict
    assert list(made) == ["value"]
    assert made["value"] is made.value


def dict_with_another_key(x):
    made = PlainDict(x)
    made["key"] = x * 2
    return made


def dict_with_another_attribute(x):
    made = PlainDict(x)
    made.beside = x * 2
    return made


def list_with_an_element(x):
    made = PlainList(x)
    made.append(x * 2)
    return made


@pytest.mark.parametrize(("mode", "check"), WAYS)
@pytest.mark.parametrize(
    "make",
    [
        ShiftedDict,
        FixedDict,
        FailedError,
        Number,
        dict_with_another_key,
        dict_with_another_attribute,
        list_with_an_element,
    ],
)
def test_an_object_that_holds_more_than_attributes_and_cannot_be_made_anew_is_refused(make, mode, check):
    def program(x):
        return make(x)

    with pytest.raises(fxplug.TraceError, match=r"of the dataclass .*fxplug\.wrap") as raised:
        captured(program, torch.ones(2), mode, check=check)

    assert raised.value.code == "FXP-T006"


class ModelOutput(OrderedDict):
    """Stands for the class of results of Transformers: a dict of those fields that are not None."""

    def __post_init__(self):
        given = ((one.name, getattr(self, one.name)) for one in dataclasses.fields(self))
        self.update((name, value) for name, value in given if value is not None)

    def to_tuple(self):
        return tuple(self.values())


@dataclass
class Prediction(ModelOutput):
    logits: object = None
    loss: object = None

    def to_tuple(self):
        return (self.logits,)


@pytest.fixture
def transformers(monkeypatch):
    """Let the class that stands for the one of Transformers be found where that one is."""
    module = types.ModuleType("transformers.utils.generic")
    module.ModelOutput = ModelOutput
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(("mode", "check"), WAYS)
def test_a_result_of_a_library_is_a_call_unless_it_has_another_attribute(mode, check):
    def program(x):
        return Prediction(x * 2)

    def with_another(x):
        made = Prediction(x * 2)
        made.beside = x
        return made

    made = captured(program, torch.ones(2), mode, check=check)(torch.full((2,), 3.0))
    assert (type(made), list(made), vars(made).keys()) == (Prediction, ["logits"], {"logits", "loss"})
    with pytest.raises(fxplug.TraceError, match="of the dataclass") as raised:
        captured(with_another, torch.ones(2), mode, check=check)
    assert raised.value.code == "FXP-T006"


@pytest.mark.parametrize(("mode", "check"), WAYS)
def test_a_number_with_plain_fields_stands_in_the_graph_itself(mode, check):
    module = captured(lambda x: (x * 2, PlainNumber("made")), torch.ones(2), mode, check=check)

    number = module(torch.ones(2))[1]
    assert (type(number), int(number), number.value) == (PlainNumber, 2, "made!")


# -- what is found in the attributes beside the fields


def within_itself(x):
    made = Plain(x)
    made.within = [made]
    return made


@pytest.mark.parametrize(("mode", "check"), WAYS)
def test_an_object_that_holds_itself_in_another_attribute_is_refused(mode, check):
    with pytest.raises(fxplug.TraceError, match="contains itself") as raised:
        captured(within_itself, torch.ones(2), mode, check=check)

    assert raised.value.code == "FXP-T006"


class Elsewhere:
    """Keeps what it is given in a place of its own."""

    def __init__(self):
        self.kept = weakref.WeakKeyDictionary()

    def __get__(self, holder, owner=None):
        return 0 if holder is None else self.kept[holder]

    def __set__(self, holder, value):
        self.kept[holder] = value + 1


@dataclass(eq=False)
class KeptElsewhere:
    value: Elsewhere = Elsewhere()


@pytest.mark.parametrize(("mode", "check"), WAYS)
def test_a_field_that_is_kept_elsewhere_is_refused(mode, check):
    def program(x):
        return KeptElsewhere(x)

    with pytest.raises(fxplug.TraceError) as raised:
        captured(program, torch.ones(2), mode, check=check)

    assert raised.value.code == "FXP-T055"

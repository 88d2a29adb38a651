"""Enums, namedtuples, dataclasses and modules of classes that the caller names; nothing of them is run."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.storage import load, save


class Color(enum.Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796 - another name for the same member
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass(frozen=True)
class Options:
    color: Color
    sizes: Any = ()

    def __post_init__(self):
        if self.color is None:
            raise AssertionError("the constructor was called")


@dataclasses.dataclass(slots=True)
class Slotted:
    text: str = "x"


class Scaled(nn.Module):
    def __init__(self):
        raise AssertionError("the constructor was called")

    def forward(self, x):
        return x * self.weight * self.options.sizes[0]


NAMES = ("Color", "Level", "Bits", "Point", "Options", "Slotted", "Scaled")
ALLOW = [f"{__name__}:{name}" for name in NAMES]


def returning(value):
    graph = Graph()
    graph.output(graph.call_function(torch.add, (graph.placeholder("x"), 1), {"out": value}))
    return GraphModule(nn.Module(), graph)


def argument(module):
    (node,) = module.graph.find_nodes(op="call_function")
    return node.kwargs["out"]


@pytest.mark.parametrize(
    "value",
    [
        Color.RED,
        pytest.param(Color.CRIMSON, id="alias"),
        Level.LOW,
        Point(1, 2),
        Point([Color.BLUE], Point(-0.0, None)),
        Options(Color.BLUE, (1, torch.float32, slice(None))),
        Slotted("é"),
    ],
)
def test_a_value_of_an_allowed_class_comes_back(tmp_path, value):
    save(returning(value), tmp_path / "m.fxplug", allow=ALLOW)
    found = argument(load(tmp_path / "m.fxplug", allow=ALLOW))

    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_a_node_inside_of_a_namedtuple_stays_one(tmp_path):
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(Point(x, [x]))
    save(GraphModule(nn.Module(), graph), tmp_path / "m.fxplug", allow=ALLOW)
    loaded = load(tmp_path / "m.fxplug", allow=ALLOW)

    assert loaded(3) == Point(3, [3])
    assert list(loaded.graph.find_nodes(op="placeholder")[0].users) == [loaded.graph.output_node()]


@pytest.mark.parametrize("value", [Color.RED, Point(1, 2), Options(Color.RED), Slotted()])
def test_a_class_must_be_allowed_both_times(tmp_path, value):
    name = f"{__name__}:{type(value).__qualname__}"
    with pytest.raises(StorageError, match="Allow it when saving and again when loading") as caught:
        save(returning(value), tmp_path / "m.fxplug")
    assert name in str(caught.value)

    save(returning(value), tmp_path / "m.fxplug", allow=ALLOW)
    with pytest.raises(StorageError, match="is not among the functions that a file may name"):
        load(tmp_path / "m.fxplug")


def test_what_is_no_member_and_no_field_is_refused(tmp_path):
    with pytest.raises(
        StorageError, match=r"<Bits.*> is no member of its own of Bits\. Name it in the class\."
    ):
        save(returning(Bits.A | Bits.B), tmp_path / "m.fxplug", allow=ALLOW)
    options = Options(Color.RED)
    object.__setattr__(options, "more", 1)
    with pytest.raises(
        StorageError, match=r"a Options has 'more', which is no field of the class\. Make it a field\."
    ):
        save(returning(options), tmp_path / "m.fxplug", allow=ALLOW)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"$enum": [ALLOW[0], "GREEN"]},
            "has no member 'GREEN'. Use the version of it that the file was written",
        ),
        ({"$enum": [ALLOW[3], "x"]}, "has no member 'x'."),
        ({"$enum": [ALLOW[0], {"$list": []}]}, "has no member []."),
        ({"$enum": [ALLOW[0]]}, "a value has 1 parts where 2 were expected."),
        ({"$enum": ["os:system", "x"]}, "'os:system' is not among the functions that a file may name."),
        ({"$fields": [ALLOW[3], [["x", 1]]]}, "does not have the fields ['x']."),
        ({"$fields": [ALLOW[3], [["y", 1], ["x", 1]]]}, "does not have the fields ['y', 'x']."),
        ({"$fields": [ALLOW[4], [["color", 1], ["sizes", 1], ["__class__", 1]]]}, "does not have the fields"),
        ({"$fields": [ALLOW[0], []]}, "does not have the fields []."),
        ({"$fields": ["torch:relu", []]}, "does not have the fields []."),
        ({"$fields": 3}, "A value with fields is a int where list was expected."),
        ({"$fields": ["builtins:tuple", []]}, "does not have the fields []."),
    ],
)
def test_hostile_values_of_classes_are_refused(stored, data, text):
    stored.node("relu", args=[data])

    message = stored.refusal(allow=ALLOW)
    assert message.startswith("Cannot load 'FILE': node 'relu': ")
    assert text in message


def test_a_module_of_an_allowed_class_is_kept_without_its_constructor(tmp_path):
    scaled = Scaled.__new__(Scaled)
    nn.Module.__init__(scaled)
    scaled.weight = nn.Parameter(torch.tensor([2.0]))
    scaled.options = Options(Color.RED, (3,))
    graph = Graph()
    graph.output(graph.call_module("part", (graph.placeholder("x"),)))
    module, path = GraphModule({"part": scaled}, graph), tmp_path / "m.fxplug"

    with pytest.raises(StorageError, match="name the class when saving and again when loading"):
        save(module, path)
    save(module, path, allow=ALLOW)
    loaded = load(path, allow=ALLOW)

    assert type(loaded.part) is Scaled
    assert loaded(torch.ones(1)).tolist() == [6.0]
    with pytest.raises(StorageError) as caught:
        load(path)
    assert f"allow it: load(..., allow=['{__name__}:Scaled'])" in str(caught.value)

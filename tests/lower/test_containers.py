"""Containers of results are made in PyTorch: they are no fallback, and cut no partition."""

from __future__ import annotations

import dataclasses
import operator
import sys
import types
from collections import OrderedDict, namedtuple
from typing import NamedTuple

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import ConfigError
from fxplug.execute import GraphModule
from fxplug.ir import UNKNOWN, Graph, effects
from fxplug.lower import Backend, Choices, Profile, Support, lower, lowered_partitions, plan_lowering
from fxplug.semantics.constructors import only_holds

X = torch.linspace(-1, 1, 6).reshape(2, 3)
GET = operator.getitem
Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - as people write it


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    states: tuple = ()


@dataclasses.dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor
    notes: list = dataclasses.field(default_factory=list)


class Sparse(NamedTuple):
    values: torch.Tensor
    weight: object = None


class ModelOutput(OrderedDict):
    """Stands for the class of results of Transformers: a dict of those fields that are not None."""

    def __post_init__(self):
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        first, *others = given.values()
        if isinstance(first, dict) and all(value is None for value in others):
            given = dict(first)
        self.update((name, value) for name, value in given.items() if value is not None)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self):
        return tuple(self.values())


@dataclasses.dataclass
class Prediction(ModelOutput):
    logits: object = None
    loss: object = None
    states: object = None


class Doubling(Prediction):
    """Does more than it has to."""

    def __getitem__(self, key):
        return super().__getitem__(key) * 2


@pytest.fixture
def transformers(monkeypatch):
    """Let the class that stands for the one of Transformers be found where that one is."""
    module = types.ModuleType("transformers.utils.generic")
    module.ModelOutput = ModelOutput
    monkeypatch.setitem(sys.modules, module.__name__, module)


@dataclasses.dataclass
class Scaled:
    """Computes when it is made."""

    logits: torch.Tensor

    def __post_init__(self):
        self.logits = self.logits * 2


def derived(base, **methods):
    """Return a class that does more than what it derives from."""
    return type("Derived", (base,), methods)


class Part(nn.Module):
    """What an engine is: it takes and gives tensors alone, and its results are new."""

    def __init__(self, program):
        super().__init__()
        self.program = program

    def forward(self, *inputs):
        assert all(isinstance(value, torch.Tensor) for value in inputs)
        made = self.program(*(value.clone() for value in inputs))
        results = made if isinstance(made, tuple) else (made,)
        assert all(type(value) is torch.Tensor for value in results)
        return made if not isinstance(made, tuple) else tuple(value.clone() for value in made)


class Tensors(Backend):
    """Runs functions of torch, and what works on their results; knows no classes."""

    def __init__(self, *refused):
        self.refused = refused

    def supports(self, node, context):
        if isinstance(node.target, type):
            return Support(ok=False, reason="it is a class")
        if node.name in self.refused:
            return Support(ok=False, reason="not here")
        value = context.values.get(node.args[0]) if node.args else None
        known = isinstance(value, torch.Tensor) or not context.values
        return Support(known, "it takes no tensor")

    def compile(self, subgraph, example_inputs, options):
        return Part(subgraph)

    def profile(self, example_inputs):
        return Profile.of(example_inputs)


def graph_of(write):
    """Return a module whose graph `write` has written, from one input."""
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(write(graph, x))
    return GraphModule(nn.Module(), graph)


def check(module, *, partitions=1, backend=None):
    """Lower strictly; return the lowered module, whose results are those of the module for other inputs, too."""
    lowered = lower(module, backend or Tensors(), (X,), name="tensors", strict=True)
    assert len(lowered.report.partitions) == partitions
    assert len(lowered_partitions(lowered.module)) == partitions
    assert lowered.report.coverage == 1.0
    assert lowered.report.eager == ()
    for x in (X, X + 1):
        assert repr(lowered.module(x.clone())) == repr(module(x.clone()))
    return lowered


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: {"out": a, "aux": b},
        lambda a, b: OrderedDict(out=a, aux=b),
        lambda a, b: OrderedDict([("out", a), ("aux", b)]),
        lambda a, b: (a, [b, {"b": a}]),
        Pair,
        lambda a, b: Output(a, states=(a, b)),
        lambda a, b: Frozen(logits=b),
        lambda a, b: OrderedDict(all=OrderedDict(out=a), pair=Pair(a, Output(b))),
    ],
    ids=["dict", "keywords", "pairs", "nested", "named tuple", "dataclass", "frozen", "deep"],
)
def test_what_a_program_returns_may_be_in_any_container(make):
    class Model(nn.Module):
        def forward(self, x):
            a = x.exp()
            return make(a, a.tanh())

    module = fxplug.trace(Model(), (X,))
    lowered = check(module)
    assert type(lowered.module(X)) is type(Model()(X))
    names = {node.name for node in module.graph.nodes if isinstance(node.target, type)}
    assert not names & {node.name for node in lowered.report.nodes}


def read_by_key(graph, x):
    made = graph.call_function(OrderedDict, ([("a", graph.call_function(torch.exp, (x,))), ("b", x)],))
    return graph.call_function(torch.tanh, (graph.call_function(GET, (made, "a")),))


def read_by_place(graph, x):
    made = graph.call_function(tuple, ([x, graph.call_function(torch.exp, (x,))],))
    return graph.call_function(torch.tanh, (graph.call_function(GET, (made, -1)),))


def read_by_name(graph, x):
    made = graph.call_function(Output, (), {"logits": graph.call_function(torch.exp, (x,))})
    return graph.call_function(torch.tanh, (graph.call_function(getattr, (made, "logits")),))


def read_of_named_tuple(graph, x):
    made = graph.call_function(Pair, (x, graph.call_function(torch.exp, (x,))))
    first = graph.call_function(getattr, (made, "right"))
    return graph.call_function(torch.add, (first, graph.call_function(GET, (made, 1))))


def read_of_nested(graph, x):
    inner = graph.call_function(dict, (), {"a": graph.call_function(torch.exp, (x,))})
    outer = graph.call_function(dict, ([("inner", inner), ("pair", (x, [inner]))],))
    deep = graph.call_function(GET, (graph.call_function(GET, (outer, "pair")), 1))
    found = graph.call_function(GET, (graph.call_function(GET, (deep, 0)), "a"))
    other = graph.call_function(GET, (graph.call_function(GET, (outer, "inner")), "a"))
    return graph.call_function(torch.add, (found, other))


def read_of_a_part(graph, x):
    made = graph.call_function(tuple, ([x, graph.call_function(torch.exp, (x,))],))
    part = graph.call_function(GET, (made, slice(1, None)))
    return graph.call_function(torch.tanh, (graph.call_function(GET, (part, 0), name="read"),))


def returned_too(graph, x):
    made = graph.call_function(dict, (), {"a": graph.call_function(torch.exp, (x,))})
    return made, graph.call_function(torch.tanh, (graph.call_function(GET, (made, "a")),))


@pytest.mark.parametrize(
    "write",
    [read_by_key, read_by_place, read_by_name, read_of_named_tuple, read_of_nested, returned_too],
)
def test_a_container_in_the_middle_cuts_no_partition(write):
    module = graph_of(write)
    text, version = str(module.graph), module.graph.version

    check(module)
    assert (str(module.graph), module.graph.version) == (text, version)


def read_of_prediction(graph, x, kind=Prediction):
    """Read by name, by key and by place, where a field between the two that are given is None."""
    given = {"logits": graph.call_function(torch.exp, (x,)), "states": graph.call_function(torch.sin, (x,))}
    made = graph.call_function(kind, (), given)
    found = graph.call_function(getattr, (made, "logits"))
    for read in (GET, "states"), (GET, 1), (GET, 0):
        found = graph.call_function(torch.add, (found, graph.call_function(read[0], (made, read[1]))))
    return found


@pytest.mark.usefixtures("transformers")
def test_results_of_transformers_are_containers():
    check(graph_of(read_of_prediction))


@pytest.mark.usefixtures("transformers")
def test_a_result_that_does_more_is_a_call_as_any_other():
    assert only_holds(Prediction)
    assert not only_holds(Doubling)


@pytest.mark.usefixtures("transformers")
def test_the_only_field_of_a_result_may_be_taken_apart():
    def write(graph, x):
        parts = graph.call_function(dict, (), {"logits": graph.call_function(torch.exp, (x,))})
        made = graph.call_function(Prediction, (parts,))
        return graph.call_function(torch.tanh, (graph.call_function(GET, (made, "logits")),))

    module = graph_of(write)
    lowered = lower(module, Tensors(), (X,), name="tensors")
    assert torch.equal(lowered.module(X + 1), module(X + 1))


def test_without_transformers_its_results_are_calls_as_any_other():
    assert not only_holds(Prediction)


def test_fields_that_a_named_tuple_fills_itself_are_read_of_it():
    def write(graph, x):
        made = graph.call_function(Sparse, (graph.call_function(torch.exp, (x,)),))
        return graph.call_function(torch.tanh, (graph.call_function(getattr, (made, "values")),))

    module = graph_of(write)
    lowered = lower(module, Tensors(), (X,), name="tensors")
    assert torch.equal(lowered.module(X + 1), module(X + 1))


def test_a_part_of_a_container_is_taken_from_it():
    module = graph_of(read_of_a_part)
    lowered = lower(module, Tensors(), (X,), name="tensors")

    assert torch.equal(lowered.module(X + 1), module(X + 1))
    assert [node.name for node in lowered.report.eager] == ["getitem", "read"]


def test_a_container_behind_what_stays_is_no_part_of_the_rest():
    def write(graph, x):
        made = graph.call_function(dict, (), {"a": graph.call_function(torch.exp, (x,), name="kept")})
        return graph.call_function(torch.tanh, (graph.call_function(GET, (made, "a")),))

    lowered = lower(graph_of(write), Tensors("kept"), (X,), name="tensors")

    assert [node.name for node in lowered.report.nodes if not node.partition] == ["kept"]
    assert len(lowered.report.partitions) == 1
    torch.testing.assert_close(lowered.module(X), X.exp().tanh())


def test_a_container_that_is_changed_is_read_where_the_program_reads_it():
    def write(graph, x):
        made = graph.call_function(dict, (), {"a": graph.call_function(torch.exp, (x,))})
        graph.call_function(operator.setitem, (made, "a", graph.call_function(torch.tanh, (x,))))
        return graph.call_function(torch.neg, (graph.call_function(GET, (made, "a")),))

    def write_inner(graph, x):
        inner = graph.call_function(dict, (), {"a": graph.call_function(torch.exp, (x,))})
        outer = graph.call_function(tuple, ([inner],))
        found = graph.call_function(GET, (outer, 0))
        graph.call_function(operator.setitem, (found, "a", x))
        return graph.call_function(torch.neg, (graph.call_function(GET, (inner, "a")),))

    for written, expected in ((write, -X.tanh()), (write_inner, -X)):
        lowered = lower(graph_of(written), Tensors(), (X,), name="tensors")
        assert torch.equal(lowered.module(X), expected)
        assert lowered.report.eager


def fill(container):
    """Change a container, and return a tensor."""
    container["a"] = container["a"] * 10
    return container["b"].neg()


def test_a_container_that_is_changed_by_what_returns_a_tensor_is_read_where_the_program_reads_it():
    def write_dict(graph, x):
        parts = {"a": graph.call_function(torch.exp, (x,)), "b": graph.call_function(torch.tanh, (x,))}
        made = graph.call_function(dict, (), parts)
        filled = graph.call_function(fill, (made,))
        return graph.call_function(torch.add, (filled, graph.call_function(GET, (made, "a"))))

    def write_list(graph, x):
        parts = (graph.call_function(torch.exp, (x,)), graph.call_function(torch.tanh, (x,)))
        made = graph.call_function(list, (parts,))
        last = graph.call_method("pop", (made,))
        return graph.call_function(torch.sub, (last, graph.call_function(GET, (made, -1))))

    for write in (write_dict, write_list):
        module = graph_of(write)
        lowered = lower(module, Tensors("fill", "pop"), (X,), name="tensors")
        assert torch.equal(lowered.module(X), module(X))


class Doubled:
    """Gives twice of what it is given, and 1 where it is read of the class."""

    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, instance, owner=None):
        return 1 if instance is None else getattr(instance, self.name) * 2

    def __set__(self, instance, value):
        setattr(instance, self.name, value)


@dataclasses.dataclass
class Converted:
    logits: torch.Tensor = Doubled()


@dataclasses.dataclass
class Given:
    """Keeps less than it is given."""

    logits: torch.Tensor
    scale: dataclasses.InitVar[object] = 7


def written_like_pythons_own():
    """Return a dataclass whose constructor looks like one that Python has written, as under ``python -c``."""
    names = {}
    exec("def __init__(self, logits):\n    self.logits = logits\n    print(logits)", names)
    return dataclasses.dataclass(init=False)(
        type("Told", (), {"__annotations__": {"logits": object}, "__init__": names["__init__"]})
    )


def test_what_a_constructor_takes_and_does_not_keep_is_read_of_the_class():
    def write(graph, x):
        made = graph.call_function(Given, (graph.call_function(torch.exp, (x,)), x))
        found = [graph.call_function(getattr, (made, name)) for name in ("logits", "scale")]
        return graph.call_function(torch.mul, tuple(found), name="product")

    lowered = lower(graph_of(write), Tensors("product"), (X,), name="tensors")
    assert torch.equal(lowered.module(X), X.exp() * 7)


def test_what_computes_when_it_is_made_is_asked_of_the_backend():
    def write(graph, x):
        return graph.call_function(Scaled, (graph.call_function(torch.exp, (x,)),), name="made")

    report = plan_lowering(graph_of(write), Tensors(), "tensors", (X,))
    assert [(node.name, node.reason) for node in report.unsupported] == [("made", "it is a class")]


@pytest.mark.parametrize("kind", [tuple, list])
def test_taking_a_tensor_apart_is_no_container(kind):
    def write(graph, x):
        return graph.call_function(kind, (graph.call_function(torch.exp, (x,)),), name="made")

    report = plan_lowering(graph_of(write), Tensors(), "tensors", (X,))
    assert [node.name for node in report.unsupported] == ["made"]


def test_what_is_written_in_place_before_it_is_put_into_a_container_lowers_whole():
    def write(graph, x):
        first = graph.call_function(torch.exp, (x,))
        view = graph.call_method("view", (first, 3, 2))
        graph.call_method("mul_", (view, 2))
        return graph.call_function(OrderedDict, ([("out", first), ("view", view)],))

    check(graph_of(write))


def test_without_example_inputs_containers_are_no_fallback_either():
    report = plan_lowering(graph_of(read_by_key), Tensors(), "tensors")

    assert report.coverage == 1.0
    assert len(report.partitions) == 1


def test_nodes_that_the_user_names_are_left_as_they_are():
    module = graph_of(read_by_key)
    (read,) = [node.name for node in module.graph.nodes if node.target is GET]
    (made,) = [node.name for node in module.graph.nodes if node.target is OrderedDict]
    report = plan_lowering(module, Tensors(), "tensors", (X,), choices=Choices(pins={read: ""}))

    assert [(node.name, node.reason) for node in report.nodes if not node.partition] == [
        (read, "it is pinned to PyTorch")
    ]
    assert len(report.partitions) == 2
    with pytest.raises(
        ConfigError, match=f"Cannot pin node '{made}' to 'tensors': it only puts values into a"
    ):
        plan_lowering(module, Tensors(), "tensors", (X,), choices=Choices(pins={made: "tensors"}))
    assert (
        len(plan_lowering(module, Tensors(), "tensors", (X,), choices=Choices(pins={made: ""})).partitions)
        == 1
    )


def test_a_class_that_is_said_to_do_more_is_a_call_as_any_other():
    module = graph_of(read_by_name)
    effects.register_target(Output, UNKNOWN)
    try:
        report = plan_lowering(module, Tensors(), "tensors", (X,))
    finally:
        effects.unregister_target(Output)

    assert "it is a class" in [node.reason for node in report.unsupported]


def test_a_program_of_containers_alone_is_returned_as_it_is():
    module = graph_of(lambda graph, x: graph.call_function(dict, (), {"a": x}))
    lowered = lower(module, Tensors(), (X,), name="tensors", strict=True)

    assert lowered.module is module
    assert lowered.report.nodes == ()


@pytest.mark.parametrize(
    "kind",
    [
        derived(Pair, __init__=lambda self, *_: None),
        derived(Pair, __getitem__=lambda self, number: number),
        derived(Pair, __getattribute__=lambda self, name: name),
        derived(Pair, left=property(lambda self: self[1])),
        derived(Pair, left=5),
        derived(Output, __getattribute__=lambda self, name: name),
        derived(Output, __del__=lambda self: None),
        Converted,
        written_like_pythons_own(),
    ],
    ids=[
        *("init", "getitem", "getattribute", "property", "hidden", "getattribute of a dataclass", "del"),
        *("descriptor", "own constructor"),
    ],
)
def test_classes_that_do_more_or_hold_something_else_are_calls_as_any_other(kind):
    assert only_holds(Pair)
    assert only_holds(Output)
    assert only_holds(derived(Pair, both=lambda self: self[:]))
    assert not only_holds(kind)

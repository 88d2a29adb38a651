"""The data form of a graph, and pickling, which goes through it."""

from __future__ import annotations

import collections
import contextlib
import copy
import operator
import pickle
import sys
import typing

import pytest

from fxplug.errors import FxplugError, StorageError
from fxplug.ir import (
    Graph,
    ModuleScope,
    NodeRef,
    Origin,
    RegionEntry,
    SourceLine,
    graph_from_data,
    graph_to_data,
    immutable_dict,
    immutable_list,
)


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


class Grown(Point):
    """A namedtuple that is made from one value."""

    __slots__ = ()

    def __new__(cls, x):
        return super().__new__(cls, x, x + 1)


SCOPE = ModuleScope("layer.0", "model.Layer", ModuleScope("", "model.Model"))


class Layer:
    """A class that can be pickled by name."""


class Generator:
    """A code generator that can be pickled."""

    def __eq__(self, other):
        return type(other) is Generator

    __hash__ = None


def build():
    graph = Graph()
    x = graph.placeholder("x", int)
    y = graph.placeholder("y", default_value=[1, 2])
    weight = graph.get_attr("layer.weight")
    call = graph.call_function(operator.add, (x, weight), {"k": [y, {"j": slice(x, None)}]}, name="total")
    call.region = (RegionEntry(contextlib.nullcontext, (1,)), RegionEntry(contextlib.suppress))
    call.origins = (Origin(SourceLine("model.py", 3, "forward"), module=SCOPE, made_by="fuse"),)
    method = graph.call_method("relu", (call, Point(x, 3)), type_expr="Tensor")
    module = graph.call_module("layer.0", (method,))
    graph.output((module, {"y": y}))
    return graph


def restored_by_data(graph):
    return graph_from_data(graph_to_data(graph))


def restored_by_pickle(graph):
    return pickle.loads(pickle.dumps(graph))


def find(graph, name):
    return next(node for node in graph.nodes if node.name == name)


each_way = pytest.mark.parametrize(
    "restore", [restored_by_data, restored_by_pickle, copy.copy], ids=["data", "pickle", "copy"]
)


@each_way
def test_a_restored_graph_equals_the_original(restore):
    graph = build()

    other = restore(graph)

    assert str(other) == str(graph)
    for ours, theirs in zip(graph.nodes, other.nodes, strict=True):
        assert ours is not theirs
        assert (ours.op, ours.name, ours.target, ours.type) == (
            theirs.op,
            theirs.name,
            theirs.target,
            theirs.type,
        )
        assert (ours.region, ours.meta, ours.stack_trace) == (theirs.region, theirs.meta, theirs.stack_trace)
        assert [used.name for used in ours.all_input_nodes] == [used.name for used in theirs.all_input_nodes]
        assert [user.name for user in ours.users] == [user.name for user in theirs.users]
    assert type(find(other, "total").kwargs) is immutable_dict
    assert type(find(other, "total").kwargs["k"]) is immutable_list
    assert type(find(other, "relu").args[1]) is Point
    other.lint()


@each_way
def test_origins_are_restored_decoded(restore):
    (origin,) = find(restore(build()), "total").origins

    assert origin.source() == SourceLine("model.py", 3, "forward")
    assert origin.made_by == "fuse"
    assert origin.module.stack() == {"": ("", "model.Model"), "layer.0": ("layer.0", "model.Layer")}


@each_way
def test_edits_of_a_restored_graph_stay_there(restore):
    graph = build()
    find(graph, "x").meta["note"] = {"list": [1], "set": {1}}
    before = str(graph)

    other = restore(graph)
    find(other, "total").args = (1, 2)
    find(other, "x").meta["note"]["list"].append(2)
    find(other, "x").meta["note"]["set"].add(2)

    assert str(graph) == before
    assert find(graph, "x").meta == {"note": {"list": [1], "set": {1}}}


@each_way
def test_notes_may_name_nodes_that_come_later(restore):
    graph = build()
    find(graph, "x").meta["partners"] = [find(graph, "output"), {"call": find(graph, "total")}]

    other = restore(graph)

    assert find(other, "x").meta["partners"] == [find(other, "output"), {"call": find(other, "total")}]
    assert find(graph, "x").meta["partners"][0] is find(graph, "output")


def test_nodes_are_numbered_in_the_data():
    data = graph_to_data(build())

    assert data["version"] == 1
    assert [entry["name"] for entry in data["nodes"]] == [node.name for node in build().nodes]
    assert data["nodes"][3]["args"] == (NodeRef(0), NodeRef(2))
    assert data["nodes"][3]["kwargs"] == {"k": [NodeRef(1), {"j": slice(NodeRef(0), None)}]}
    assert type(data["nodes"][3]["kwargs"]) is dict


def test_making_the_data_changes_nothing():
    graph = build()
    before, version = str(graph), graph.version

    graph_to_data(graph)

    assert (str(graph), graph.version) == (before, version)


def test_a_pickled_graph_keeps_what_was_lifted_and_which_parameters_are_keyword_only():
    graph = build()
    graph.lifted["w"] = [1, 2]
    graph.keyword_only = frozenset({"y"})

    other = restored_by_pickle(graph)

    assert other.lifted == {"w": [1, 2]}
    assert other.keyword_only == {"y"}


def test_a_large_graph_is_pickled_without_recursion():
    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(3000):
        node = graph.call_function(operator.neg, (node,))

    assert len(restored_by_pickle(graph).nodes) == 3001


def test_another_version_is_refused():
    with pytest.raises(StorageError) as caught:
        graph_from_data({"version": 99, "nodes": []})

    assert str(caught.value) == (
        "Cannot restore a graph: its data has version 99, this fxplug reads 1. [FXP-S000]"
    )


@pytest.mark.parametrize("index", [3, 4, 99, -1])
def test_a_reference_to_a_node_that_does_not_come_earlier_is_refused(index):
    data = graph_to_data(build())
    data["nodes"][3]["args"] = (NodeRef(index),)

    with pytest.raises(StorageError) as caught:
        graph_from_data(data)

    assert str(caught.value) == (
        f"Cannot restore a graph: node 3 refers to node {index}, which does not come earlier. [FXP-S009]"
    )


@pytest.mark.parametrize("name", ["x", "class", "a b", "", "é"])
def test_a_taken_or_invalid_name_is_refused(name):
    data = graph_to_data(build())
    data["nodes"][3]["name"] = name

    with pytest.raises(StorageError) as caught:
        graph_from_data(data)

    assert str(caught.value) == (
        f"Cannot restore a graph: the name {name!r} is taken or not a valid name. [FXP-S008]"
    )


def drop(key):
    return lambda entry: entry.pop(key)


@pytest.mark.parametrize(
    "damage",
    [
        *[drop(key) for key in ("op", "target", "args", "kwargs", "type", "meta", "region", "origins")],
        lambda entry: entry.update(op="call"),
        lambda entry: entry.update(name=5),
        lambda entry: entry.update(args=3),
        lambda entry: entry.update(kwargs=[1]),
        lambda entry: entry.update(args=(NodeRef("0"),)),
        lambda entry: entry.update(origins=[{}]),
        lambda entry: entry.update(region=3),
    ],
    ids=[
        "no-op",
        "no-target",
        "no-args",
        "no-kwargs",
        "no-type",
        "no-meta",
        "no-region",
        "no-origins",
        "op",
        "name",
        "args",
        "kwargs",
        "ref",
        "origins",
        "region",
    ],
)
def test_malformed_data_is_refused_as_such(damage):
    data = graph_to_data(build())
    damage(data["nodes"][3])

    with pytest.raises(StorageError):
        graph_from_data(data)


def test_a_pickled_graph_keeps_its_code_generator_and_tracer():
    graph = Graph(tracer_cls=Layer, tracer_extras={"k": 1})
    graph.set_codegen(Generator())

    other = restored_by_pickle(graph)

    assert other._codegen == Generator()
    assert (other._tracer_cls, other._tracer_extras) == (Layer, {"k": 1})


@pytest.mark.parametrize("kind", ["erased", "foreign"])
def test_notes_that_name_a_node_outside_the_graph_do_not_stop_pickling(kind):
    graph = build()
    stranger = (
        Graph().placeholder("stranger") if kind == "foreign" else graph.call_function(operator.neg, (1,))
    )
    find(graph, "x").meta["made_from"] = stranger
    if kind == "erased":
        graph.erase_node(stranger)

    with contextlib.suppress(FxplugError):
        assert str(restored_by_pickle(graph)) == str(graph)


def test_notes_keep_the_classes_of_their_containers():
    graph = build()
    find(graph, "x").meta["note"] = collections.OrderedDict(a=1)

    assert type(find(restored_by_pickle(graph), "x").meta["note"]) is collections.OrderedDict


@pytest.mark.parametrize("value", [sys.version_info, Grown(1)], ids=["structseq", "own-constructor"])
def test_notes_may_hold_tuples_of_any_class(value):
    graph = build()
    find(graph, "x").meta["note"] = value

    assert graph_to_data(graph)["nodes"][0]["meta"]["note"] == value


def test_notes_stay_editable_inside_tuples():
    graph = build()
    find(graph, "x").meta["note"] = ([1],)

    other = restored_by_pickle(graph)
    find(other, "x").meta["note"][0].append(2)

    assert find(other, "x").meta["note"] == ([1, 2],)


def test_a_graph_traced_from_a_local_class_can_be_pickled():
    class Local:
        pass

    graph = build()
    find(graph, "x").origins = (Origin(None, module=ModuleScope("", Local)),)

    assert str(restored_by_pickle(graph)) == str(graph)


def test_a_class_in_the_module_stack_becomes_its_name_in_the_data():
    graph = build()
    find(graph, "x").origins = (Origin(None, module=ModuleScope("", Layer)),)

    data = graph_to_data(graph)

    assert data["nodes"][0]["origins"] == [
        {"frames": [], "modules": [["", f"{__name__}.Layer"]], "made_by": None}
    ]


def transform(lines):
    return [line.replace("total", "sum_of_both") for line in lines]


def test_a_pickled_graph_keeps_its_transformers():
    graph = build()
    graph.on_generate_code(lambda _: transform)

    other = restored_by_pickle(graph)

    assert other.code_transformer is transform


def test_a_tracer_that_cannot_be_found_again_is_no_hindrance():
    class Local:
        pass

    assert restored_by_pickle(Graph(tracer_cls=Local))._tracer_cls is None


class Loose(list):
    """A list with attributes of its own."""


class Row(tuple):  # noqa: SLOT001 - it has attributes
    """A tuple with attributes and a constructor of its own."""

    def __new__(cls, *elements):
        return super().__new__(cls, elements)


def loose(*elements):
    value = Loose(elements)
    value.note = "kept"
    return value


def row(*elements):
    value = Row(*elements)
    value.note = "kept"
    return value


NOTES = {
    "dict": lambda node: {"k": node},
    "key": lambda node: {node: 1},
    "nested": lambda node: [({"k": [node]},)],
    "set": lambda node: {node},
    "frozenset": lambda node: frozenset({node}),
    "ordered": lambda node: collections.OrderedDict(k=node),
    "default": lambda node: collections.defaultdict(list, k=node),
    "namedtuple": lambda node: Point(node, 1),
    "own constructor": lambda node: Grown.__new__(Grown, 1)._replace(x=node),
    "list": lambda node: loose(node, 1),
    "tuple": lambda node: row(node, 1),
    "immutable list": lambda node: immutable_list([node]),
    "immutable dict": lambda node: immutable_dict(k=node),
}


@pytest.mark.parametrize("kind", NOTES)
@pytest.mark.parametrize("restore", [copy.deepcopy, restored_by_pickle, restored_by_data])
def test_nodes_in_notes_are_replaced_whatever_holds_them(restore, kind):
    if restore is restored_by_pickle and kind in {"own constructor", "tuple"}:
        pytest.skip("Python calls their constructors with other arguments than they take")
    make = NOTES[kind]
    graph = build()
    graph.output_node().meta["note"] = make(find(graph, "x"))
    other = restore(graph)

    note, expected = other.output_node().meta["note"], make(find(other, "x"))
    assert note == expected
    assert type(note) is type(expected)
    assert getattr(note, "note", None) == getattr(expected, "note", None)


def test_notes_under_a_node_that_is_gone_are_left_out():
    graph = build()
    stranger = Graph().placeholder("stranger")
    find(graph, "x").meta["note"] = {stranger: 1, "k": stranger, None: 2}

    assert graph_to_data(graph)["nodes"][0]["meta"]["note"] == {"k": None, None: 2}


# -- nodes by themselves


def test_a_node_is_pickled_with_its_graph():
    graph = Graph()
    first = graph.call_function(operator.neg, (graph.placeholder("x"),))
    second = graph.call_function(operator.neg, (first,))
    nodes, other, again = pickle.loads(pickle.dumps(([second, first], graph, second)))

    assert [node.name for node in nodes] == ["neg_1", "neg"]
    assert again is nodes[0]
    assert all(node.graph is other and node in list(other.nodes) for node in nodes)
    assert nodes[0].args == (nodes[1],)


def test_a_node_that_was_erased_is_not_pickled_and_named():
    graph = Graph()
    node = graph.call_function(operator.neg, (1,))
    graph.erase_node(node)

    with pytest.raises(FxplugError, match=r"Cannot copy or pickle node 'neg'.*Drop the reference"):
        pickle.dumps(node)

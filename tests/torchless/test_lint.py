"""Every finding of lint, and graphs in which it finds nothing."""

from __future__ import annotations

import operator
import types

import pytest

from fxplug.errors import VerificationError
from fxplug.ir import Graph, check_structure, find_structure_faults


@pytest.fixture
def graph():
    graph = Graph()
    x = graph.placeholder("x")
    call = graph.call_function(operator.neg, (x,))
    graph.output(call)
    return graph


def parts(graph):
    return tuple(graph.nodes)


def faults(graph, root=None):
    return list(find_structure_faults(graph, root))


def test_a_sound_graph_has_no_faults(graph):
    graph.lint()
    Graph().lint()

    assert faults(graph) == []


def test_all_faults_are_reported_at_once(graph):
    _x, call, _output = parts(graph)
    call._name = "x"
    graph.placeholder("late")

    with pytest.raises(VerificationError) as caught:
        graph.lint()

    assert caught.value.findings == ("two nodes are named 'x'", "node 'late' stands behind the output")
    assert str(caught.value) == (
        "The graph is not well formed:\n"
        "  - two nodes are named 'x'\n"
        "  - node 'late' stands behind the output [FXP-G004]"
    )


def test_an_unknown_opcode_is_found(graph):
    parts(graph)[1]._op = "call"

    assert faults(graph) == ["node 'neg' has the unknown opcode 'call'"]


def test_a_function_that_cannot_be_called_is_found(graph):
    parts(graph)[1].target = "neg"

    assert faults(graph) == ["node 'neg' calls 'neg', which is not callable"]


@pytest.mark.parametrize("op", ["placeholder", "get_attr", "call_method", "call_module", "output"])
def test_a_target_that_is_no_text_is_found(graph, op):
    call = parts(graph)[1]
    call.op = op

    assert f"node 'neg' ({op}) has the target {operator.neg!r}, which is not a string" in faults(graph)


def test_a_use_before_the_definition_is_found(graph):
    x, call, _ = parts(graph)
    x.prepend(call)

    assert faults(graph) == ["node 'neg' uses 'x' before it is computed"]


def test_a_node_that_uses_itself_is_found(graph):
    call = parts(graph)[1]
    call.args = (call,)

    assert faults(graph) == ["node 'neg' uses 'neg' before it is computed"]


def test_a_node_of_another_graph_is_found(graph):
    x, call, _ = parts(graph)
    stranger = Graph().placeholder("stranger")
    call._args, call._inputs = (stranger,), (stranger,)
    stranger.users[call] = None
    del x.users[call]

    assert faults(graph) == ["node 'neg' uses 'stranger', which belongs to another graph"]


def test_a_user_that_is_not_known_is_found(graph):
    x, _, _ = parts(graph)
    x.users.clear()

    assert faults(graph) == ["node 'x' does not know its user 'neg'"]


def test_a_user_that_does_not_use_is_found(graph):
    x, _, output = parts(graph)
    x.users[output] = None

    assert faults(graph) == ["node 'x' lists 'output' as a user, which does not use it"]


def test_inputs_that_do_not_agree_with_the_arguments_are_found(graph):
    _x, call, _ = parts(graph)
    call._args = (1,)

    assert faults(graph) == ["the input list of node 'neg' does not agree with its arguments"]


def test_nodes_behind_the_output_are_found(graph):
    graph.output(None)

    assert faults(graph) == ["node 'output_1' stands behind the output"]


def test_a_parameter_without_default_behind_one_with_default_is_found(graph):
    x, _, _ = parts(graph)
    with graph.inserting_before(x):
        graph.placeholder("first", default_value=1)

    assert faults(graph) == ["placeholder 'x' has no default, but stands behind 'first', which has one"]


PARAMETERS = {
    "default last": ["a", "b=1", "c=2"],
    "starred last": ["a", "b=1", "*args", "**kwargs"],
    "keyword only": ["a", "*args", "k=1", "**kwargs"],
    "keyword only without default": ["a", "*args", "k", "**kwargs"],
}


def with_parameters(parameters):
    graph = Graph()
    for parameter in parameters:
        name, _, default = parameter.partition("=")
        graph.create_node("placeholder", name, (int(default),) if default else ())
    graph.output(None)
    return graph


@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=list(PARAMETERS))
def test_parameters_that_python_accepts_are_sound(run, parameters):
    graph = with_parameters(parameters)

    graph.lint()
    graph.python_code()


def test_a_keyword_only_parameter_needs_no_default(run):
    graph = with_parameters(["a=1", "k"])
    graph.keyword_only = frozenset({"k"})
    assert run(graph, k=3) is None  # Python accepts it.

    graph.lint()


def test_a_parameter_behind_a_starred_one_needs_no_default(run):
    graph = with_parameters(["a=1", "*args", "k"])
    assert run(graph, k=3) is None  # Python accepts it.

    graph.lint()


@pytest.mark.parametrize("later", ["b", "*b"])
def test_a_parameter_behind_a_keyword_only_one_is_found(later):
    graph = with_parameters(["k", later])
    graph.keyword_only = frozenset({"k"})

    assert faults(graph)


@pytest.mark.parametrize(
    "parameters",
    [
        ["*a", "*b"],
        ["**a", "**b"],
        ["**a", "b"],
        ["**a", "*b"],
        ["*a=1"],
        ["**a=1"],
        ["a", "a"],
        ["a", "*a"],
        ["class"],
    ],
    ids=" ".join,
)
def test_parameters_that_python_refuses_are_found(parameters):
    assert faults(with_parameters(parameters))


def test_an_output_without_a_value_is_found():
    graph = Graph()
    graph.create_node("output", "output")

    assert faults(graph) == ["output 'output' has 0 arguments; it must have one"]


# -- paths


class Module(types.SimpleNamespace):
    """Stands for a module."""


def root():
    def layer(value):
        return value

    layer.weight = 3
    return Module(layer=layer, number=5, **{"a b": Module(c=layer)})


def test_paths_that_exist_on_the_root_are_sound(graph):
    with graph.inserting_before(parts(graph)[1]):
        graph.get_attr("layer.weight")
        graph.get_attr("number")
        graph.call_module("layer", (1,))
        graph.call_module("a b.c", (1,))

    assert faults(graph, root()) == []


@pytest.mark.parametrize(
    ("op", "path", "fault"),
    [
        ("get_attr", "layer.bias", "but layer has no attribute 'bias'"),
        ("get_attr", "missing", "but the root has no attribute 'missing'"),
        ("call_module", "layer.inner.first", "but layer has no attribute 'inner'"),
        ("get_attr", "", "but the root has no attribute ''"),
        ("get_attr", "a b.x", "but a b has no attribute 'x'"),
    ],
    ids=["attribute", "first", "inner", "empty", "space"],
)
def test_a_path_that_does_not_exist_is_found(graph, op, path, fault):
    with graph.inserting_before(parts(graph)[1]):
        node = graph.create_node(op, path, name="n")

    assert faults(graph, root()) == [f"node {node.name!r} refers to {path!r}, {fault}"]
    assert faults(graph) == []


def test_calling_what_is_no_module_is_found(graph):
    with graph.inserting_before(parts(graph)[1]):
        graph.call_module("number")

    assert faults(graph, root()) == ["node 'number' calls 'number', which is a int and not a module"]


def test_lint_asks_the_owning_module(graph):
    with graph.inserting_before(parts(graph)[1]):
        graph.get_attr("missing")
    owner = root()
    graph.lint()

    graph.owning_module = owner

    with pytest.raises(VerificationError, match="the root has no attribute 'missing'"):
        graph.lint()
    with pytest.raises(VerificationError):
        check_structure(graph, owner)


def test_a_node_that_says_it_belongs_to_another_graph_is_found(graph):
    parts(graph)[1].graph = Graph()

    assert "node 'neg' stands in this graph, but says that it belongs to another" in faults(graph)

"""A function with nested parameters around a graph with flat inputs."""

from __future__ import annotations

import inspect
import operator
import pickle

import pytest

from fxplug.codegen import CodeGen, PyTreeCodeGen, TreeParameter, compile_code
from fxplug.errors import CodegenError, GraphError
from fxplug.ir import Graph


def flatten(values):
    """Take apart one pair and one dict with the key "a"."""
    (first, second), named = values
    return [first, second, named["a"]]


def unflatten(outputs):
    return {"result": outputs[0]}


PARAMETERS = (
    TreeParameter("pair", leaves=2),
    TreeParameter("scale", default=3),
    TreeParameter("named", leaves=1, default={"a": 10}),
)


@pytest.fixture
def graph():
    """(pair, scale=3, named={"a": 10}) -> {"result": (pair[0] - pair[1]) * scale + named["a"]}."""
    made = Graph()
    first, second = made.placeholder("pair_1"), made.placeholder("pair_2")
    scale, extra = made.placeholder("scale", default_value=3), made.placeholder("named_1", default_value=None)
    product = made.call_function(operator.mul, (made.call_function(operator.sub, (first, second)), scale))
    made.output([made.call_function(operator.add, (product, extra))])
    made.set_codegen(PyTreeCodeGen(PARAMETERS, flatten, unflatten))
    made.lint()
    return made


def compiled(graph):
    return compile_code(graph.python_code()).function


def test_function_takes_and_gives_structures(graph):
    function = compiled(graph)

    assert function(None, (5, 2)) == {"result": 19}
    assert function(None, pair=(5, 2), named={"a": 1}, scale=2) == {"result": 7}
    assert str(inspect.signature(function)) == "(self, pair, scale=3, named={'a': 10})"


def test_source(graph):
    assert graph.python_code().src.splitlines() == [
        "def forward(self, pair, scale = 3, named = _fxp_default_named):",
        "    pair_1, pair_2, named_1, = _fxp_flatten_inputs((pair, named,));  pair = named = None",
        "    sub = pair_1 - pair_2;  pair_1 = pair_2 = None",
        "    mul = sub * scale;  sub = scale = None",
        "    add = mul + named_1;  mul = named_1 = None",
        "    return _fxp_unflatten_output([add])",
    ]


def test_values_are_processed_alike(graph):
    assert graph.process_inputs((5, 2)) == (5, 2, 3, 10)
    assert graph.process_inputs((5, 2), 4, {"a": 1}) == (5, 2, 4, 1)
    assert graph.process_outputs([7]) == {"result": 7}


def test_result_may_stay_flat(graph):
    graph.set_codegen(PyTreeCodeGen(PARAMETERS, flatten))

    assert compiled(graph)(None, (5, 2)) == [19]
    assert graph.process_outputs([7]) == [7]


def test_parameters_by_keyword_and_with_stars():
    graph = Graph()
    one, rest = graph.placeholder("one"), graph.placeholder("*rest")
    last = graph.placeholder("last_1")
    options = graph.placeholder("**options")
    graph.output((one, rest, last, options))
    parameters = (
        TreeParameter("one"),
        TreeParameter("rest", "*"),
        TreeParameter("last", leaves=1, keyword_only=True),
        TreeParameter("options", "**"),
    )
    graph.set_codegen(PyTreeCodeGen(parameters, lambda values: [values[0][0]]))
    function = compiled(graph)

    assert function(None, 1, 2, 3, last=[4], x=5) == (1, (2, 3), 4, {"x": 5})
    assert str(inspect.signature(function)) == "(self, one, *rest, last, **options)"


def test_keyword_only_parameters_get_their_star():
    graph = Graph()
    first, second = graph.placeholder("one_1"), graph.placeholder("two")
    graph.keyword_only = frozenset({"one_1", "two"})
    graph.output((first, second))
    parameters = (TreeParameter("one", leaves=1, keyword_only=True), TreeParameter("two", keyword_only=True))
    graph.set_codegen(PyTreeCodeGen(parameters, lambda values: values[0]))

    assert str(inspect.signature(compiled(graph))) == "(self, *, one, two)"
    assert compiled(graph)(None, one=[1], two=2) == (1, 2)


def test_structure_without_leaves_is_checked():
    graph = Graph()
    graph.output(1)
    seen = []
    graph.set_codegen(
        PyTreeCodeGen([TreeParameter("empty", leaves=0)], lambda values: seen.append(values) or [])
    )

    assert compiled(graph)(None, {}) == 1
    assert seen == [({},)]


def test_no_global_is_hidden_by_a_parameter(graph):
    (sub,) = graph.find_nodes(op="call_function", target=operator.sub)
    sub.target = max
    parameters = (TreeParameter("max", leaves=2), *PARAMETERS[1:])
    graph.set_codegen(PyTreeCodeGen(parameters, flatten, unflatten))

    assert compiled(graph)(None, (5, 2)) == {"result": 25}


def test_names_of_its_own_avoid_the_parameters(graph):
    parameters = (TreeParameter("_fxp_flatten_inputs", leaves=2), *PARAMETERS[1:])
    graph.set_codegen(PyTreeCodeGen(parameters, flatten, unflatten))

    assert compiled(graph)(None, (5, 2)) == {"result": 19}


def test_graph_with_other_inputs_is_refused(graph):
    with graph.inserting_before(next(iter(graph.nodes))):
        graph.placeholder("more")
    with pytest.raises(
        CodegenError, match=r"stand for 4 inputs.*the 5 inputs \['more', 'pair_1', .*set_codegen"
    ):
        graph.python_code()
    graph.set_codegen(CodeGen())
    graph.python_code()


def test_parameter_called_self_is_refused(graph):
    graph.set_codegen(PyTreeCodeGen((TreeParameter("self", leaves=2), *PARAMETERS[1:]), flatten))
    with pytest.raises(CodegenError, match="none may be named 'self'"):
        graph.python_code()


def test_wrong_number_of_values(graph):
    with pytest.raises(GraphError, match="no value was given for the parameter 'pair'"):
        graph.process_inputs()
    with pytest.raises(
        GraphError, match=r"1 values too many were given for the parameters \['pair', 'scale'"
    ):
        graph.process_inputs((1, 2), 3, {"a": 1}, 4)


def test_generator_is_pickled_with_the_graph(graph):
    loaded = pickle.loads(pickle.dumps(graph))

    assert compiled(loaded)(None, (5, 2)) == {"result": 19}

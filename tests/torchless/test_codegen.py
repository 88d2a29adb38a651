"""Generated source: what it says and what running it does."""

from __future__ import annotations

import contextlib
import inspect
import operator
import sys
import types

import pytest

from fxplug.codegen import CodeGen, Parameter, compile_code, last_uses, signature_of
from fxplug.errors import CodegenError, FxplugError
from fxplug.ir import Graph, PythonCode, RegionEntry


def source(graph):
    return graph.python_code().src


def lines(graph):
    return [line.strip() for line in source(graph).splitlines()[1:]]


# -- the whole function


def test_a_graph_becomes_a_function_with_one_statement_for_each_node():
    graph = Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr("layer.weight")
    total = graph.call_function(operator.add, (x, weight))
    method = graph.call_method("relu", (total, 1), {"inplace": True})
    module = graph.call_module("layer.0", (method,), {"key": x})
    graph.output((module, {"k": total}))

    assert source(graph) == (
        "def forward(self, x):\n"
        "    layer_weight = self.layer.weight\n"
        "    add = x + layer_weight;  layer_weight = None\n"
        "    relu = add.relu(1, inplace = True)\n"
        '    layer_0 = getattr(self.layer, "0")(relu, key = x);  relu = x = None\n'
        "    return (layer_0, {'k': add})\n"
    )


def test_an_empty_graph_returns_nothing(run):
    assert source(Graph()) == "def forward(self):\n    pass\n"
    assert run(Graph()) is None


def test_a_graph_without_output_runs(run):
    seen = []
    graph = Graph()
    graph.call_function(seen.append, (graph.placeholder("x"),))

    assert run(graph, 3) is None
    assert seen == [3]


def test_generating_changes_nothing():
    graph = Graph()
    graph.output(graph.call_function(operator.neg, (graph.placeholder("x"),)))
    before, version = str(graph), graph.version

    assert source(graph) == source(graph)

    assert (str(graph), graph.version) == (before, version)


def test_the_lines_of_the_source_are_mapped_to_nodes():
    graph = Graph()
    x = graph.placeholder("input")
    call = graph.call_function(operator.neg, (x,))
    call.region = (RegionEntry(contextlib.nullcontext),)
    graph.output(call)

    code = graph.python_code()

    texts = code.src.splitlines()
    assert {texts[line - 1].strip(): name for line, name in code.lines.items()} == {
        "input_1 = input;  input = None": "input_1",
        "neg = -input_1;  input_1 = None": "neg",
        "return neg": "output",
    }


def test_the_root_can_be_called_otherwise(run):
    graph = Graph()
    graph.output((graph.get_attr("w"), graph.placeholder("module")))

    code = graph.python_code("module")

    root = types.SimpleNamespace(w=1)
    assert compile_code(code).function(root, 2) == (1, 2)
    assert inspect.signature(compile_code(graph.python_code()).function).parameters.keys() == {
        "self",
        "module",
    }


@pytest.mark.parametrize("root", ["self, x=print()", "class", "", "a b", "1"])
def test_the_name_of_the_root_must_be_a_name(root):
    with pytest.raises(CodegenError):
        Graph().python_code(root)


def test_a_graph_may_have_its_own_generator():
    class Constant:
        def generate(self, graph, root_module="self"):
            return PythonCode(f"def answer({root_module}):\n    return 42\n", function_name="answer")

    graph = Graph()
    graph.set_codegen(Constant())

    assert compile_code(graph.python_code("it")).function(None) == 42
    assert source(Graph()).startswith("def forward(self)")


def test_the_stock_generator_can_be_extended():
    class Logged(CodeGen):
        def generate(self, graph, root_module="self"):
            code = super().generate(graph, root_module)
            return PythonCode(
                code.src + "forward.note = 'seen'\n", code.globals, code.function_name, code.lines
            )

    graph = Graph()
    graph.set_codegen(Logged())

    assert compile_code(graph.python_code()).function.note == "seen"


# -- values and their ends


def test_values_are_freed_after_their_last_use(run):
    def names(*_):
        variables = sys._getframe(1).f_locals
        return {name for name, value in variables.items() if value is not None}

    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    first = graph.call_function(operator.add, (x, y))
    second = graph.call_function(operator.mul, (first, y))
    seen = graph.call_function(names, (second,), name="seen")
    later = graph.call_function(names, (), name="later")
    graph.output((seen, later))

    assert run(graph, 2, 3) == ({"mul"}, {"seen"})


def test_a_parameter_whose_node_has_another_name_is_freed_too(run):
    def names(*_):
        return {name for name, value in sys._getframe(1).f_locals.items() if value is not None}

    graph = Graph()
    used = graph.call_function(operator.neg, (graph.placeholder("input"),))
    seen = graph.call_function(names, (used,))
    graph.output((seen, used))

    assert run(graph, 2) == ({"neg"}, -2)


def test_a_value_that_nobody_uses_is_freed_at_once():
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(print, (x,))
    graph.output(None)

    assert lines(graph) == ["print_1 = print(x);  x = print_1 = None", "return None"]


def test_last_uses():
    graph = Graph()
    x, unused = graph.placeholder("x"), graph.placeholder("unused")
    a = graph.call_function(operator.add, (x, x))
    b = graph.call_function(operator.mul, (x, a))
    c = graph.call_function(operator.neg, (a,))
    output = graph.output(b)

    assert last_uses(list(graph.nodes)) == {b: [x], c: [a, c], output: [b]}
    assert unused not in last_uses(list(graph.nodes))


def test_annotations_stand_in_the_source(run):
    graph = Graph()
    x = graph.placeholder("x", type_expr=int)
    total = graph.call_function(operator.add, (x, 1), type_expr="some text")
    graph.output(total, type_expr=list)

    assert source(graph) == (
        "def forward(self, x : int) -> list:\n    add : 'some text' = x + 1;  x = None\n    return add\n"
    )
    assert compile_code(graph.python_code()).function.__annotations__ == {"x": int, "return": list}
    assert run(graph, 1) == 2


# -- regions


class Recorder:
    """Makes contexts that write down when they are entered and left."""

    def __init__(self):
        self.events = []

    def context(self, *arguments):
        events = self.events

        class Context:
            def __enter__(self):
                events.append(("enter", *arguments))

            def __exit__(self, *_):
                events.append(("exit", *arguments))

        return Context()

    def step(self, name):
        self.events.append(name)
        return name


def test_regions_become_nested_with_statements(run):
    recorder = Recorder()
    a, b, c = (RegionEntry(recorder.context, (name,)) for name in "abc")
    regions = [(), (a,), (a, b), (a, b), (a, c), (b,), (), (a, b, c)]
    graph = Graph()
    for number, region in enumerate(regions):
        graph.call_function(recorder.step, (number,)).region = region
    graph.output(7)

    assert run(graph) == 7

    expected = [
        "0",
        "a(",
        "1",
        "b(",
        "2",
        "3",
        ")b",
        "c(",
        "4",
        ")c",
        ")a",
        "b(",
        "5",
        ")b",
        "6",
        "a(",
        "b(",
        "c(",
        "7",
        ")c",
        ")b",
        ")a",
    ]
    shown = [
        str(event) if isinstance(event, int) else f"{event[1]}(" if event[0] == "enter" else f"){event[1]}"
        for event in recorder.events
    ]
    assert shown == expected


def test_the_source_of_regions_is_indented():
    graph = Graph()
    x = graph.placeholder("x")
    call = graph.call_function(operator.neg, (x,))
    call.region = (RegionEntry(contextlib.nullcontext, (1,)), RegionEntry(open, ("f", 2)))
    graph.output(call)

    code = graph.python_code()

    assert code.src == (
        "def forward(self, x):\n"
        "    with contextlib_nullcontext(1):\n"
        "        with open('f', 2):\n"
        "            neg = -x;  x = None\n"
        "    return neg\n"
    )
    assert code.globals["contextlib_nullcontext"] is contextlib.nullcontext


def test_regions_that_are_equal_but_not_the_same_are_entered_once(run):
    recorder = Recorder()
    graph = Graph()
    for number in range(2):
        graph.call_function(recorder.step, (number,)).region = [RegionEntry(recorder.context, ("a",))]

    run(graph)

    assert recorder.events == [("enter", "a"), 0, 1, ("exit", "a")]


def test_a_region_is_left_when_a_node_fails(run):
    recorder = Recorder()
    graph = Graph()
    graph.call_function(operator.truediv, (1, 0)).region = (RegionEntry(recorder.context, ("a",)),)

    with pytest.raises(ZeroDivisionError):
        run(graph)

    assert recorder.events == [("enter", "a"), ("exit", "a")]


def test_more_regions_than_python_can_nest_are_refused_or_run(run):
    graph = Graph()
    call = graph.call_function(operator.neg, (3,))
    call.region = tuple(RegionEntry(contextlib.nullcontext, (number,)) for number in range(25))
    graph.output(call)

    with contextlib.suppress(CodegenError):
        assert run(graph) == -3


# -- parameters


def test_parameters_have_defaults_stars_and_annotations(run):
    graph = Graph()
    a = graph.placeholder("a", int)
    b = graph.placeholder("b", default_value=[1, 2])
    args = graph.placeholder("*args")
    key = graph.placeholder("key", default_value=None)
    kwargs = graph.placeholder("**kwargs")
    graph.output((a, b, args, key, kwargs))

    assert source(graph).startswith("def forward(self, a : int, b = [1, 2], *args, key = None, **kwargs):\n")
    assert run(graph, 1) == (1, [1, 2], (), None, {})
    assert run(graph, 1, 2, 3, 4, key=5, other=6) == (1, 2, (3, 4), 5, {"other": 6})


def test_parameters_may_be_keyword_only(run):
    graph = Graph()
    graph.output(
        (graph.placeholder("a"), graph.placeholder("key", default_value=2), graph.placeholder("**kwargs"))
    )
    graph.keyword_only = frozenset({"key"})

    assert source(graph).startswith("def forward(self, a, *, key = 2, **kwargs):\n")
    assert run(graph, 1, key=3) == (1, 3, {})
    with pytest.raises(TypeError):
        run(graph, 1, 3)


def test_signatures_are_read_off_the_placeholders():
    graph = Graph()
    a, args = graph.placeholder("a"), graph.placeholder("*args")
    graph.output(None, type_expr=int)

    signature = signature_of(graph.nodes)

    assert signature.parameters == (Parameter("a", "", a), Parameter("args", "*", args))
    assert signature.returns is int
    assert not signature.parameters[0].has_default


@pytest.mark.parametrize(
    "target", ["a b", "class", "", "*", "***a", "* a", "1", "a=1", "a:b", "a\n", "/", "a,b", "lambda"]
)
def test_a_placeholder_that_is_no_parameter_name_is_refused(target):
    graph = Graph()
    node = graph.placeholder(target)

    with pytest.raises(CodegenError) as caught:
        graph.python_code()

    assert str(caught.value) == (
        f"Cannot generate code: placeholder {node.name!r} has the target {target!r}, which is not a parameter name; "
        "set node.target to a Python identifier. [FXP-C000]"
    )


def test_two_parameters_of_one_name_are_refused():
    graph = Graph()
    graph.placeholder("a")
    graph.placeholder("*a")

    with pytest.raises(CodegenError) as caught:
        graph.python_code()

    assert str(caught.value) == (
        "Cannot generate code: two placeholders have the target 'a'; give each parameter its own name. [FXP-C000]"
    )


@pytest.mark.parametrize("name", ["class", "a b", "", "print", "x = 1", "torch"])
def test_a_node_whose_name_cannot_stand_in_source_is_refused(name):
    graph = Graph()
    node = graph.call_function(operator.neg, (1,))
    node._name = name

    with pytest.raises(CodegenError) as caught:
        graph.python_code()

    assert str(caught.value) == (
        f"Cannot generate code: a node is named {name!r}, which cannot be the name of a value. "
        "Assign node.name. [FXP-C000]"
    )


@pytest.mark.parametrize(
    "parameters",
    [["*a", "*b"], ["**a", "b"], ["a=1", "b"], ["*a=1"], ["__debug__"], ["\uff33elf", "self", "Self"]],
    ids=ascii,
)
def test_parameters_that_python_refuses_are_refused_with_their_names(parameters):
    graph = Graph()
    for parameter in parameters:
        name, _, default = parameter.partition("=")
        graph.create_node("placeholder", name, (int(default),) if default else ())

    with pytest.raises(CodegenError) as caught:
        compile_code(graph.python_code())

    assert "code generator" not in str(caught.value)


def test_a_default_that_is_a_node_is_refused():
    def build():
        graph = Graph()
        graph.placeholder("y", default_value=graph.placeholder("x"))
        compile_code(graph.python_code())

    with pytest.raises(FxplugError):
        build()


@pytest.mark.parametrize("case", ["reserved", "swapped", "chain"])
def test_parameters_keep_their_values_whatever_their_nodes_are_called(run, case):
    graph = Graph()
    if case == "reserved":
        first, second = graph.placeholder("input"), graph.placeholder("input_1")
    elif case == "swapped":
        first, second = graph.placeholder("a"), graph.placeholder("b")
        first.name, second.name = "t", "a"
        first.name = "b"
    else:
        first, second = graph.create_node("placeholder", "x", name="y"), graph.placeholder("y")
    graph.output((first, second))

    assert run(graph, 1, 2) == (1, 2)

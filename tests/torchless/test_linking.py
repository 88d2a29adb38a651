"""Functions whose code is linked from statements that were compiled before: equal to what Python compiles."""

from __future__ import annotations

import bdb
import contextlib
import copy
import dataclasses
import dis
import gc
import inspect
import linecache
import math
import operator
import pickle
import sys
import traceback
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxplug.codegen import CodeGen, compile_code, linking
from fxplug.codegen import straight as straight_lines
from fxplug.codegen.linking import CAN_LINK, Linker
from fxplug.ir import Graph, RegionEntry

pytestmark = pytest.mark.skipif(not CAN_LINK, reason="code objects of this Python are not known")

PARTS = (
    "co_argcount",
    "co_cellvars",
    "co_code",
    "co_consts",
    "co_exceptiontable",
    "co_firstlineno",
    "co_flags",
    "co_freevars",
    "co_kwonlyargcount",
    "co_name",
    "co_names",
    "co_nlocals",
    "co_posonlyargcount",
    "co_qualname",
    "co_stacksize",
    "co_varnames",
)


@pytest.fixture(autouse=True)
def every_shape_is_learned(monkeypatch):
    monkeypatch.setattr(linking, "_MOST_NEW", 0)


def compiled_alone(source):
    module = compile(source, "<alone>", "exec", dont_inherit=True)
    return next(value for value in module.co_consts if isinstance(value, types.CodeType))


def lines_of(code):
    return [(start, line) for start, end, line in code.co_lines() for start in range(start, end, 2)]


def check(graph):
    """Assert that a graph is linked, and that what comes out is what Python compiles; return the function."""
    code = graph.python_code()
    assert isinstance(code.maker, Linker)
    function = compile_code(code).function
    linked, expected = function.__code__, compiled_alone(code.src)
    for part in PARTS:
        assert getattr(linked, part) == getattr(expected, part), part
    assert list(map(type, linked.co_consts)) == list(map(type, expected.co_consts))
    assert list(map(repr, linked.co_consts)) == list(map(repr, expected.co_consts))
    assert lines_of(linked) == lines_of(expected)
    assert list(dis.findlinestarts(linked)) == list(dis.findlinestarts(expected))
    assert code.src == text_without_linking(graph)
    return function


def text_without_linking(graph):
    with graph.on_generate_code(lambda _: lambda body: body):
        code = graph.python_code()
    assert code.maker is None
    return code.src


def straight():
    graph = Graph()
    x = graph.placeholder("x")
    total = graph.call_function(operator.add, (x, 1))
    quotient = graph.call_function(operator.truediv, (total, 0))
    graph.output(quotient)
    return graph


def no_function(*_, **__):
    return None


CONSTANTS = st.one_of(
    st.sampled_from(
        [
            0,
            1,
            -1,
            255,
            2**70,
            0.0,
            -0.0,
            1.0,
            math.inf,
            True,
            False,
            None,
            ...,
            "",
            "x",
            "a b",
            "\0",
            b"x",
            '"',
        ]
    ),
    st.sampled_from(
        [
            (1, 2),
            (0.0, -0.0),
            (),
            [1, 2, 3],
            [],
            {"a": 1},
            {},
            slice(None),
            slice(1, None, 2),
            (slice(0, 1), ...),
        ]
    ),
)
PATHS = st.sampled_from(
    ["conv", "a.conv", "a.0", "a.0.conv", "a.0.bn", "a.b.c.d", "a.b.c.e", "a.class", "0", "a.x y", "a.\xe9", "b.\0"]
)  # fmt: skip
FUNCTIONS = st.sampled_from(
    [
        operator.add,
        operator.iadd,
        operator.getitem,
        operator.neg,
        operator.matmul,
        math.sin,
        getattr,
        print,
        no_function,
    ]
)


@st.composite
def graphs(draw):
    graph = Graph()
    values = [graph.placeholder(name) for name in draw(st.sampled_from([("x",), ("x", "y"), ("x", "*rest")]))]
    values[-1].name = values[-1].target.lstrip("*")
    argument = st.deferred(lambda: st.one_of(st.sampled_from(values), st.sampled_from(values), CONSTANTS))
    nested = st.one_of(argument, st.lists(argument, max_size=4), st.lists(argument, max_size=3).map(tuple))
    arguments = st.lists(nested, max_size=4).map(tuple)
    options = st.dictionaries(st.sampled_from(["dim", "x", "a b", "class"]), nested, max_size=2)
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["function", "method", "module", "module", "get_attr"]))
        if kind == "function":
            made = graph.call_function(draw(FUNCTIONS), draw(arguments), draw(options))
        elif kind == "method":
            name = draw(st.sampled_from(["view", "x", "a b", "class"]))
            made = graph.call_method(name, (draw(argument), *draw(arguments)), draw(options))
        elif kind == "module":
            given = (draw(st.sampled_from(values)),) if draw(st.booleans()) else draw(arguments)
            made = graph.create_node("call_module", draw(PATHS), given, {})
        else:
            made = graph.create_node("get_attr", draw(PATHS), (), {})
        if draw(st.booleans()):
            made.type = draw(st.sampled_from([int, "text", list[int]]))
        values.append(made)
    graph.output(draw(nested))
    return graph


@given(graphs())
def test_what_is_linked_equals_what_python_compiles(graph):
    text = text_without_linking(graph)
    try:
        compiled_alone(text)
    except SyntaxError:  # A warning, which is an error here: such as ``0[x]``.
        return
    if "**{" in text and graph.python_code().maker is None:
        return  # Python numbers the constants of such a call in another order than it uses them in.
    check(graph)


@pytest.mark.parametrize("count", [1, 100, 127, 128, 129, 254, 255, 256, 257, 300, 1000, 66_000])
def test_numbers_of_any_size_are_linked(count, monkeypatch):
    monkeypatch.setattr(straight_lines, "_MOST_NODES", 10**6)
    graph = Graph()
    value = graph.placeholder("x")
    for number in range(count):
        value = graph.call_method(f"method_{number % 300}", (value,)) if count < 66_000 else value
        value = graph.create_node("call_module", f"module_{number}", (value,), {})
    graph.output(value)
    check(graph)


def test_constants_and_globals_of_any_number_are_linked(monkeypatch):
    monkeypatch.setattr(straight_lines, "_MOST_NODES", 10**6)
    graph = Graph()
    value = graph.placeholder("x")
    for number in range(700):
        value = graph.call_function(operator.add, (value, number + 0.5))
    for number in range(300):
        value = graph.call_function(types.FunctionType(no_function.__code__, {}, f"made_{number}"), (value,))
    graph.output(value)
    check(graph)


def test_defaults_annotations_and_stars_are_those_of_the_head():
    graph = Graph()
    x = graph.placeholder("x", type_expr=int)
    scale = graph.placeholder("scale", default_value=2.5)
    graph.placeholder("*rest").name = "rest"
    named = graph.create_node("placeholder", "named", (3,), {})
    graph.output(graph.call_function(operator.mul, (x, graph.call_function(operator.add, (scale, named)))))
    function = check(graph)
    assert function(None, 2) == 2 * 5.5
    assert function.__defaults__ == (2.5,)
    assert function.__kwdefaults__ == {"named": 3}
    assert function.__annotations__ == {"x": int}


def test_a_traceback_shows_the_line_of_linked_code():
    function = check(straight())
    with pytest.raises(ZeroDivisionError) as caught:
        function(None, 1)
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (frame.lineno, frame.name) == (3, "forward")
    assert frame.line == "truediv = add / 0;  add = None"
    assert "truediv = add / 0" in "".join(traceback.format_exception(caught.value))


def test_debuggers_and_tools_that_follow_lines_see_those_of_linked_code():
    function = check(straight())
    seen = []

    class Debugger(bdb.Bdb):
        def user_line(self, frame):
            if frame.f_code is function.__code__:
                seen.append(
                    (frame.f_lineno, linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip())
                )
            self.set_step()

    former = sys.gettrace()
    debugger = Debugger()
    with contextlib.suppress(ZeroDivisionError):
        debugger.runcall(function, None, 1)
    sys.settrace(former)
    assert seen == [(2, "add = x + 1;  x = None"), (3, "truediv = add / 0;  add = None")]


def test_the_source_is_registered_as_lines_while_the_function_lives():
    code = straight().python_code()
    assert "src" not in vars(code)  # It is made when it is asked for.
    compiled = compile_code(code)
    filename = compiled.filename
    linecache.checkcache(filename)
    assert linecache.getline(filename, 1) == "def forward(self, x):\n"
    assert linecache.getlines(filename) == code.src.splitlines(keepends=True)
    assert len(linecache.getlines(filename)) == 4
    assert [*linecache.getlines(filename), "end"] == linecache.getlines(filename) + ["end"]  # noqa: RUF005
    assert ["start", *linecache.getlines(filename)] == ["start"] + linecache.getlines(filename)  # noqa: RUF005
    assert inspect.getsource(compiled.function) == code.src
    del compiled
    gc.collect()
    assert filename not in linecache.cache


def test_the_source_is_that_of_the_code_though_the_graph_was_edited_since():
    graph = straight()
    expected = text_without_linking(graph)
    code = graph.python_code()
    node = next(node for node in graph.nodes if node.target is operator.truediv)
    node.args = (node.args[0], 7)
    assert code.src == expected
    assert code.lines == {2: "add", 3: "truediv", 4: "output"}


def pickled(code):
    return pickle.loads(pickle.dumps(code))


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickled])
def test_copies_of_linked_code_are_run(make_copy):
    graph = Graph()
    graph.output(graph.call_function(operator.add, (graph.placeholder("x"), 1)))
    code = graph.python_code()
    again = make_copy(code)
    assert again == code
    assert compile_code(again).function(None, 2) == 3


def test_a_replaced_source_is_what_is_run():
    graph = Graph()
    graph.output(graph.call_function(operator.add, (graph.placeholder("x"), 1)))
    code = graph.python_code()
    other = dataclasses.replace(code, src=code.src.replace("x + 1", "x + 5"))
    assert compile_code(other).function(None, 2) == 7
    renamed = dataclasses.replace(code, src=code.src.replace("forward", "other"), function_name="other")
    assert compile_code(renamed).function.__name__ == "other"
    assert compile_code(dataclasses.replace(code)).function(None, 2) == 3


class OwnHead(CodeGen):
    def gen_fn_def(self, free_vars, maybe_return_annotation):
        return f"def forward(self, inputs):\n    {', '.join(free_vars)}, = inputs"


class OwnOutput(CodeGen):
    def generate_output(self, output_args, *, descs=None, repr_fn=None):
        return f"return [{repr_fn(output_args)}]"


def test_a_generator_of_ones_own_is_heard():
    graph = Graph()
    graph.output(graph.call_function(operator.add, (graph.placeholder("x"), 1)))
    assert compile_code(graph.python_code()).function(None, 2) == 3
    for generator, inputs, expected in ((OwnHead(), [2], 3), (OwnOutput(), 2, [3])):
        graph.set_codegen(generator)
        code = graph.python_code()
        assert code.maker is None
        assert compile_code(code).function(None, inputs) == expected


def test_what_is_no_straight_line_is_compiled():
    within = straight()
    list(within.nodes)[2].region = (RegionEntry(contextlib.nullcontext),)
    endless = Graph()
    endless.call_function(operator.add, (endless.placeholder("x"), 1))
    long = Graph()
    value = long.placeholder("x")
    for _ in range(1000):
        value = long.call_method("neg", (value,))
    long.output(value)
    for graph in (within, endless, long):
        code = graph.python_code()
        assert code.maker is None
        compile_code(code)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("form", ["all", "first", "swapped"])
def test_parameters_with_other_names_than_their_nodes(count, form):
    graph = Graph()
    inputs = [graph.placeholder(f"x{place}") for place in range(count)]
    for place, node in enumerate(inputs):
        if form == "swapped":
            node.target = inputs[count - 1 - place].name
        elif form == "all" or place == 0:
            node.target = f"given{place}"
    graph.output([graph.call_method("__neg__", (node,)) for node in inputs])

    assert check(graph)(None, *range(count)) == [-place for place in range(count)]
    text = graph.python_code()
    assert text.lines == text_without_linking_lines(graph)


def text_without_linking_lines(graph):
    with graph.on_generate_code(lambda _: lambda body: body):
        return graph.python_code().lines


def test_elsewhere_the_source_is_compiled(monkeypatch):
    monkeypatch.setattr("fxplug.codegen.generator.CAN_LINK", False)
    code = straight().python_code()
    assert code.maker is None
    assert compile_code(code).function.__code__.co_code == compiled_alone(code.src).co_code


def test_few_statements_of_new_shapes_are_learned_and_many_are_not(monkeypatch):
    monkeypatch.setattr(linking, "_MOST_NEW", 3)
    monkeypatch.setattr(linking, "templates", linking.templates)
    linking.templates.clear()

    def made(names):
        graph = Graph()
        value = graph.placeholder("x")
        for name in names:
            value = graph.call_method(name, (value,))
        graph.output(value)
        return graph

    assert made(["a", "b", "c", "d"]).python_code().maker is None
    assert not linking.templates
    assert isinstance(made(["a", "b"] * 4).python_code().maker, Linker)
    assert len(linking.templates) == 3
    assert isinstance(made(["b", "a"]).python_code().maker, Linker)


def test_only_so_many_shapes_are_kept_and_none_that_is_very_long(monkeypatch):
    monkeypatch.setattr(linking, "_MOST_TEMPLATES", 10)
    linking.templates.clear()
    for number in range(30):
        graph = Graph()
        graph.output(graph.call_method(f"m{number}", (graph.placeholder("x"),)))
        graph.python_code()  # What is forgotten to make room is learned again by the next one.
        check(graph)
        assert len(linking.templates) <= 10
    graph = Graph()
    graph.output(graph.call_function(no_function, (graph.placeholder("x"), list(range(1000)))))
    assert graph.python_code().maker is None
    linking.templates.clear()


@pytest.mark.parametrize(
    "shape",
    [
        "for \0 in \0: pass",
        "return \0 if \0 else \0",
        "\0 = lambda: \0",
        "\0 = ]",
        "\0 = [\0 for \0 in \0]",
        '\0 = ("\0", 1)',
    ],
)
def test_statements_with_jumps_and_the_like_have_no_template(shape):
    assert not linking.learn({shape}, 1)
    assert linking.templates.get(shape) is None
    assert not linking.learn({shape}, 1)


def returned(graph):
    """Return what the function of a graph of one input gives for a list, as text that tells numbers apart."""
    return repr(check(graph)(None, [3]))


def test_constants_that_compare_equal_stay_apart():
    graph = Graph()
    x = graph.placeholder("x")
    values = [0.0, -0.0, 0, False, 1, True, 1.0, 1 + 0j, (0.0, 1), (-0.0, True), math.nan]
    first = graph.call_function(operator.mul, (x, 1))
    second = graph.call_function(operator.mul, (first, True))
    graph.output([second, *values])

    assert returned(graph) == f"[[3], {repr(values)[1:]}"


def test_additions_of_zeros_of_both_signs_stay_apart():
    graph = Graph()
    x = graph.placeholder("x")
    sums = [graph.call_function(operator.add, (x, zero)) for zero in (0.0, -0.0, 0.0)]
    graph.output(sums)

    assert repr(check(graph)(None, -0.0)) == "[0.0, -0.0, 0.0]"


def test_an_augmented_operator_has_no_annotation():
    graph = Graph()
    x, z, w = (graph.placeholder(name) for name in "xzw")
    total = graph.call_function(operator.iadd, (x, z))
    total.type = [w]
    graph.output(total)

    assert check(graph)(None, 1, 10, 100) == 11


def test_a_sum_of_two_values_keeps_its_annotation():
    graph = Graph()
    x, y = (graph.placeholder(name) for name in "xy")
    total = graph.call_function(operator.add, (x, y))
    total.type = int
    graph.output(total)

    assert "add : int = x + y" in graph.python_code("self").src
    assert check(graph)(None, 1, 10) == 11


class Holder:
    def act(self, value):
        return ["act", value]


def test_an_empty_part_of_a_path_is_no_root():
    graph = Graph()
    x = graph.placeholder("x")
    first = graph.create_node("call_module", "act", (x,))
    usual = graph.create_node(
        "call_module", "act", (x,)
    )  # Both shapes of a call: with an end of its input, and without.
    last = graph.create_node("call_module", ".act", (usual,))
    graph.output([first, last])
    function = check(graph)

    holder = Holder()
    setattr(holder, "", types.SimpleNamespace(act=lambda value: ["inner", value]))
    assert function(holder, 1) == [["act", 1], ["inner", ["act", 1]]]


def test_long_heads_are_not_kept():
    graph = Graph()
    graph.output(graph.placeholder("x", default_value="a" * 5_000))
    before = linking._known_head_code.cache_info().currsize
    check(graph)

    assert linking._known_head_code.cache_info().currsize == before


def test_heads_that_python_does_not_take_are_refused_by_who_compiles_them():
    value = []
    for _ in range(210):
        value = [value]
    graph = Graph()
    graph.output(graph.placeholder("x", default_value=value))

    code = graph.python_code()
    assert code.maker is None


def test_copies_and_pickles_hold_source_alone():
    code = straight().python_code()

    assert code.maker is not None
    assert pickled(code).maker is copy.copy(code).maker is None
    assert pickled(code).src == code.src
    assert pickled(code).lines == code.lines


def test_templates_that_others_forget_meanwhile_are_of_use_all_the_same(monkeypatch):
    class Forgetful(dict):
        def update(self, *args):
            super().update(*args)
            self.clear()  # As another thread does whose shapes are one too many.

    monkeypatch.setattr(linking, "templates", Forgetful())

    assert linking.learn({"\0 = \0 + 1"}, 1)

"""How calls, operators and attributes are written, and what running them does."""

from __future__ import annotations

import operator

import pytest

from fxplug.codegen import compile_code
from fxplug.codegen.emitters import AUGMENTED, INFIX, PREFIX
from fxplug.errors import FxplugError
from fxplug.ir import Graph


def source(graph):
    return graph.python_code().src


def lines(graph):
    return [line.strip() for line in source(graph).splitlines()[1:]]


@pytest.mark.parametrize("function", INFIX, ids=lambda function: function.__name__)
def test_binary_operators_are_written_as_operators(run, function):
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output(graph.call_function(function, (x, y)))

    assert lines(graph)[0].split(";")[0].endswith(f" = x {INFIX[function]} y")
    if function is not operator.matmul:  # No builtin has it.
        assert run(graph, 13, 3) == function(13, 3)


@pytest.mark.parametrize("function", PREFIX, ids=lambda function: function.__name__)
@pytest.mark.parametrize("value", [5, -5, -0.5], ids=repr)
def test_unary_operators_are_written_as_operators(run, function, value):
    if function is operator.invert and isinstance(value, float):
        value = -7
    graph = Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(function, (x,)), graph.call_function(function, (value,))))

    assert f" = {PREFIX[function]}x" in source(graph)
    assert run(graph, value) == (function(value), function(value))


@pytest.mark.parametrize("function", AUGMENTED, ids=lambda function: function.__name__)
def test_operators_in_place_are_written_as_augmented_assignments(run, function):
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    total = graph.call_function(function, (x, y))
    graph.output((total, x))

    assert f"= x; {total.name} {AUGMENTED[function]} y" in source(graph)
    if function is not operator.imatmul:
        assert run(graph, 13, 3) == (function(13, 3), 13)


def test_an_operator_in_place_changes_its_receiver(run):
    graph = Graph()
    x = graph.placeholder("x")
    total = graph.call_function(operator.iadd, (x, [2]))
    graph.output((total, x))
    values = [1]

    first, second = run(graph, values)

    assert first is second is values
    assert values == [1, 2]


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [((1,), {}, 1), ((), {"value": 2}, 2), ((3,), {"key": 4, "other key": 5, "class": 6, "": 7}, 3)],
    ids=["positional", "keyword", "odd"],
)
def test_calls_take_any_keyword(run, args, kwargs, expected):
    def function(value, **others):
        return value, others

    graph = Graph()
    graph.output(graph.call_function(function, args, kwargs))

    value, others = run(graph)
    assert value == expected
    assert others == {key: value for key, value in kwargs.items() if key != "value"}


def test_keywords_keep_their_order(run):
    graph = Graph()
    graph.output(graph.call_function(dict, (), {"a b": 1, "c": 2, "d e": 3, "f": 4}))

    assert list(run(graph)) == ["a b", "c", "d e", "f"]


def test_a_keyword_may_be_called_debug(run):
    graph = Graph()
    graph.output(graph.call_function(dict, (), {"__debug__": 1}))

    assert run(graph) == {"__debug__": 1}


class Value:
    """Something with attributes of any name."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


ODD_NAMES = [
    "class",
    "None",
    'a"b',
    "a\\b",
    "a b",
    "a\nb",
    "a'b",
    "'\"",
    "1",
    "def",
    "é",
    "\ud800",
    "a\u2028b",
    "__x",
    "{}",
    "%s",
    "\0",
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_attributes_methods_and_modules_of_any_name_are_reached(run, name):
    inner = Value(**{name: lambda value=0: ("called", value)})
    root = Value(**{name: inner, "plain": inner})
    graph = Graph()
    graph.output(
        (
            graph.get_attr(f"{name}.{name}"),
            graph.call_module(f"{name}.{name}", (1,)),
            graph.call_module(f"plain.{name}", (2,)),
            graph.call_method(name, (graph.placeholder("x"), 3)),
            graph.call_function(getattr, (graph.placeholder("y"), name)),
        )
    )

    function = inner.__dict__[name]
    assert run(graph, inner, inner, root=root) == (
        function,
        ("called", 1),
        ("called", 2),
        ("called", 3),
        function,
    )


@pytest.mark.parametrize("path", [".w", "..w", "."])
def test_a_path_with_an_empty_first_part_is_followed(run, path):
    innermost = Value(w=3)
    inner = Value(**{"": innermost, "w": 2})
    graph = Graph()
    graph.output(graph.get_attr(path))

    assert run(graph, root=Value(**{"": inner, "w": 1})) == {".w": 2, "..w": 3, ".": innermost}[path]


@pytest.mark.parametrize("name", ["\ufb01", "\u017felf", "\uff43lass", "\u212b"], ids=ascii)
@pytest.mark.parametrize("kind", ["attribute", "method", "keyword", "getattr"])
def test_a_name_that_python_would_normalise_is_reached_as_it_is(run, name, kind):
    value = Value(**{name: lambda: "right"})
    graph = Graph()
    x = graph.placeholder("x")
    if kind == "attribute":
        graph.output(graph.call_module(name))
    elif kind == "method":
        graph.output(graph.call_method(name, (x,)))
    elif kind == "keyword":
        graph.output(graph.call_function(dict, (), {name: "right"}))
    else:
        graph.output(graph.call_function(getattr, (x, name)))

    result = run(graph, value, root=value)

    if kind == "keyword":
        assert list(result) == [name]
    else:
        assert result in {"right", value.__dict__[name]}


@pytest.mark.parametrize(
    ("name", "constant", "args", "expected"),
    [
        ("upper", "abc", (), "ABC"),
        ("hex", 1.5, (), (1.5).hex()),
        ("hex", -1.5, (), (-1.5).hex()),
        ("count", (1, 1), (1,), 2),
        ("index", [1, 2], (2,), 1),
        ("keys", {}, (), {}.keys()),
        ("__class__", ..., (), type(...)),
        ("bit_length", 5, (), 3),
        ("bit_length", -5, (), 3),
        ("bit_length", True, (), 1),
        ("bit_length", 10**400, (), (10**400).bit_length()),
    ],
    ids=[
        "str",
        "float",
        "negative-float",
        "tuple",
        "list",
        "dict",
        "ellipsis",
        "int",
        "negative-int",
        "bool",
        "huge-int",
    ],
)
def test_methods_of_constants_can_be_called(run, name, constant, args, expected):
    graph = Graph()
    call = graph.call_function(getattr, (constant, name))
    if name != "__class__":
        call = graph.call_method(name, (constant, *args))
    graph.output(call)

    assert run(graph) == expected


def test_attributes_of_integers_can_be_read(run):
    graph = Graph()
    graph.output(graph.call_function(getattr, (5, "real")))

    assert run(graph) == 5


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (0, "[0]"),
        ("key", "['key']"),
        (slice(1, None), "[slice(1, None, None)]"),
        ((slice(None), ..., None), "[(slice(None, None, None), ..., None)]"),
        ((), "[()]"),
        (-1, "[-1]"),
    ],
    ids=repr,
)
def test_items_are_read_by_subscription(run, index, text):
    class Echo:
        def __getitem__(self, key):
            return key

    graph = Graph()
    graph.output(graph.call_function(operator.getitem, (graph.placeholder("x"), index)))

    assert text in source(graph)
    assert run(graph, Echo()) == index


def test_a_slice_may_hold_nodes(run):
    graph = Graph()
    x, start = graph.placeholder("x"), graph.placeholder("start")
    graph.output(graph.call_function(operator.getitem, (x, slice(start, None, 2))))

    assert run(graph, "abcdef", 1) == "bdf"


def test_operators_with_constants_on_either_side_bind_right(run):
    graph = Graph()
    x = graph.placeholder("x")
    results = [
        graph.call_function(operator.pow, (-2, x)),
        graph.call_function(operator.pow, (x, -2)),
        graph.call_function(operator.sub, (x, -1)),
        graph.call_function(operator.neg, (-1,)),
        graph.call_function(operator.mul, (x, -0.0)),
        graph.call_function(operator.eq, (x, (1, 2))),
        graph.call_function(operator.lt, (x, True)),
    ]
    graph.output(tuple(results))

    assert repr(run(graph, 2)) == repr((4, 0.25, 3, 1, -0.0, False, False))


def test_operators_called_in_odd_ways_stay_calls(run):
    def take(*args, **kwargs):
        return args, kwargs

    graph = Graph()
    graph.output(
        (
            graph.call_function(operator.add, (1, 2)),
            graph.call_function(getattr, (graph.placeholder("x"), "missing", 3)),
            graph.call_function(take, (), {"a": 1}),
        )
    )

    assert run(graph, object()) == (3, 3, ((), {"a": 1}))


def test_wrong_operator_calls_fail_when_they_run_and_not_before():
    graph = Graph()
    graph.output(graph.call_function(operator.add, (1,)))

    function = compile_code(graph.python_code()).function

    with pytest.raises(TypeError):
        function(None)


class Unhashable:
    __hash__ = None

    def __call__(self, *args):
        return args


@pytest.mark.parametrize("args", [(), (1,), (1, 2)], ids=len)
def test_a_callable_that_cannot_be_hashed_can_be_called_with_constants(run, args):
    graph = Graph()
    graph.output(graph.call_function(Unhashable(), args))

    assert run(graph) == args


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [(Unhashable(), ("x", 2), ((1, 3), 2)), (list[[1]], ("x",), [1, 3])],
    ids=["instance", "generic"],
)
def test_a_callable_that_cannot_be_hashed_can_be_called_with_nodes(run, target, args, expected):
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(target, tuple(x if value == "x" else value for value in args)))

    assert run(graph, (1, 3)) == expected


@pytest.mark.parametrize(
    "operation", [operator.add, operator.neg, operator.iadd], ids=lambda function: function.__name__
)
def test_a_callable_that_equals_an_operator_is_called_itself(run, operation):
    class Same:
        def __hash__(self):
            return hash(operation)

        def __eq__(self, other):
            return other is operation or other is self

        def __call__(self, *args):
            return "mine"

    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(Same(), (x,) if operation is operator.neg else (x, 2)))

    assert run(graph, 1) == "mine"


@pytest.mark.parametrize(
    ("op", "target"), [("output", "output"), ("call_method", "relu")], ids=["output", "method"]
)
def test_a_missing_argument_is_named(op, target):
    def build():
        graph = Graph()
        graph.create_node(op, target)
        return graph.python_code()

    with pytest.raises(FxplugError):
        build()

"""Any legal parameter names with any constants: what comes out of generated code is what went in, bit by bit."""

from __future__ import annotations

import cmath
import collections
import contextlib
import decimal
import enum
import fractions
import functools
import inspect
import keyword
import math
import operator
import pathlib
import struct
import typing
import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fxplug.codegen import compile_code, register_named_type, register_root
from fxplug.errors import CodegenError
from fxplug.ir import Graph


class Color(enum.Enum):
    RED = "red"
    GREEN = 2


class Number(enum.IntEnum):
    ONE = 1


class Permission(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Bits(enum.IntFlag):
    LOW = 1
    HIGH = 2


class HostileInt(int):
    def __repr__(self):
        return "__import__('os').abort()"

    __str__ = __repr__

    def __format__(self, spec):
        return "__import__('os').abort()"


class HostileFloat(float):
    __repr__ = __str__ = HostileInt.__repr__
    __format__ = HostileInt.__format__


class HostileStr(str):
    __slots__ = ()
    __repr__ = __str__ = HostileInt.__repr__
    __format__ = HostileInt.__format__


class HostileBytes(bytes):
    __repr__ = __str__ = HostileInt.__repr__


class HostileObject:
    __name__ = "__import__('os').abort()"
    __module__ = "__import__('os')"
    __repr__ = HostileInt.__repr__

    def __call__(self):
        raise AssertionError


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


class Size(tuple):
    """A tuple that is made from an iterable, as torch.Size is."""

    __slots__ = ()


def nan(bits, sign):
    return struct.unpack("<d", struct.pack("<Q", sign << 63 | 0x7FF << 52 | bits))[0]


NAN = st.builds(nan, st.integers(1, 2**52 - 1), st.integers(0, 1))
FLOATS = (
    st.floats() | NAN | st.sampled_from([-0.0, 0.0, math.inf, -math.inf, math.nan, 5e-324, 1e308, 1e16, 1e22])
)
COMPLEX = st.builds(complex, FLOATS, FLOATS)
# Mapped: a strategy is shown with its elements, and Python refuses to show some of these.
HUGE = st.tuples(st.sampled_from([299, 300, 4299, 4300, 20000]), st.sampled_from([1, -1])).map(
    lambda e: e[1] * 10 ** e[0]
)
INTEGERS = st.integers() | st.just(0) | HUGE
TEXT = st.text(st.characters(), max_size=8) | st.sampled_from(
    [
        "\ud800",
        "\udfff\ud800",
        "'\"",
        '"""',
        "'''",
        "\\",
        "\n",
        "\r",
        "\x0b\x0c\x1c\x85\u2028\u2029",
        "\0",
        "{x}",
        "%s",
        "#",
        "\\N{DASH}",
    ]
)
OBJECTS = st.sampled_from(
    [
        *(
            Color.RED,
            Color.GREEN,
            Number.ONE,
            Permission.READ,
            Permission.READ | Permission.WRITE,
            Permission(0),
        ),
        *(Bits.LOW | Bits.HIGH, Bits(0), ~Bits.LOW, Color, Permission),
        *(
            HostileInt(3),
            HostileFloat(0.5),
            HostileStr("x"),
            HostileStr(""),
            HostileBytes(b"x"),
            HostileObject(),
        ),
        *(
            int,
            str,
            dict,
            tuple,
            type,
            object,
            Point,
            Size,
            Graph,
            HostileStr,
            collections.OrderedDict,
            type(None),
        ),
        *(len, print, getattr, slice, operator.add, math.sqrt, cmath.sqrt, [].append, "abc".upper),
        *((lambda: 0), (lambda: 1), functools.partial(int, base=2), list[int], int | None),
        *(
            NotImplemented,
            range(3),
            frozenset({1}),
            bytearray(b"x"),
            memoryview(b"x"),
            object(),
            math,
            iter(()),
        ),
        *(decimal.Decimal("0.1"), fractions.Fraction(1, 3), pathlib.PurePath("x"), inspect.Signature.empty),
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.just(...)
    | INTEGERS
    | FLOATS
    | COMPLEX
    | st.binary(max_size=6)
    | TEXT
    | OBJECTS
)
KEYS = (
    st.none()
    | st.booleans()
    | INTEGERS
    | FLOATS
    | TEXT
    | st.binary(max_size=3)
    | st.sampled_from([Color.RED, (1, ("a", -0.0)), Point(1, 2), int, ...])
)
CONSTANTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(Size)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.builds(slice, inner, inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=10,
)


def bits(number):
    return struct.pack("<d", number)


def same(one, other):
    """Whether two constants are the same: exact builtins bit by bit, containers by content, the rest by identity."""
    kind = type(one)
    if kind in {tuple, Point, Size} or isinstance(one, (list, dict)):
        plain = list if isinstance(one, list) else dict if isinstance(one, dict) else kind
        if type(other) is not plain or len(one) != len(other):
            return False
        if plain is dict:
            return all(
                same(key, their_key) and same(value, their_value)
                for (key, value), (their_key, their_value) in zip(one.items(), other.items(), strict=True)
            )
        return all(map(same, one, other))
    if kind is slice:
        return type(other) is slice and all(map(same, parts(one), parts(other)))
    if kind is float:
        return type(other) is float and bits(one) == bits(other)
    if kind is complex:
        return type(other) is complex and bits(one.real) + bits(one.imag) == bits(other.real) + bits(
            other.imag
        )
    if kind in {int, str, bytes, bool}:
        return type(other) is kind and one == other
    return one is other


def parts(value):
    return value.start, value.stop, value.step


WORDS = """
nan inf torch device self slice getattr _fxp_float math operator builtins forward int dict
print len object type match case _ __ __name__ __builtins__ _fxp_self _fxp_complex _fxp_object
_fxp_Color fxplug Point Size operator_add input x _1 __import__ exec super __class__ Ellipsis
NotImplemented args
"""
SPECIAL_NAMES = [*WORDS.split(), "é", "變數", "ß", "Ω"]
NAMES = st.sampled_from(SPECIAL_NAMES) | st.text(
    st.characters(categories=["Ll", "Lu", "Lo", "Nd", "Pc"]), min_size=1, max_size=4
).filter(
    lambda text: (
        text.isidentifier() and not keyword.iskeyword(text) and unicodedata.normalize("NFKC", text) == text
    )
)


def function_of(graph):
    return compile_code(graph.python_code()).function


@given(CONSTANTS)
@example(nan(0xDEADBEEF, 1))
@example(
    [-0.0, 0.0, complex(-0.0, 0.0), complex(0.0, -0.0), complex(math.nan, -0.0), complex(-math.inf, math.nan)]
)
@example((1,))
@example(((),))
@example(Size((1,)))
@example({math.nan: 1, -0.0: 2})
@example(slice(slice(None), [slice(1, 2)], Point(slice(3), {})))
@example("\ud800\udc00")
def test_a_constant_comes_out_as_it_went_in(constant):
    graph = Graph()
    graph.output(constant)

    assert same(constant, function_of(graph)(None))


@given(CONSTANTS, CONSTANTS)
def test_a_constant_reaches_a_call_as_it_is(first, second):
    received = []

    def receive(*args, **kwargs):
        received.append((args, kwargs))

    graph = Graph()
    graph.call_function(receive, (first,), {"key": second})

    function_of(graph)(None)

    ((args, kwargs),) = received
    assert same((first,), args)
    assert same({"key": second}, kwargs)


def test_two_nan_stay_two_keys_of_one_dict():
    first, second = float("nan"), float("nan")
    table = {first: 1, second: 2, (first, 1): 3, (second, 1): 4}
    graph = Graph()
    graph.output(([second, first], table))

    (_, found) = function_of(graph)(None)

    assert found == table


def test_an_unhashable_annotation_is_no_obstacle():
    alias = typing.Annotated[int, []]
    graph = Graph()
    x = graph.create_node("placeholder", "x", type_expr=list[alias])
    graph.output(x)

    assert function_of(graph).__annotations__["x"] == list[alias]


@given(CONSTANTS)
def test_a_constant_can_be_a_default_and_an_annotation(constant):
    graph = Graph()
    x = graph.create_node("placeholder", "x", (constant,), type_expr=constant)
    graph.output(x, type_expr=constant)

    function = function_of(graph)

    assert same(constant, function(None))
    assert function(None, 3) == 3
    if constant is not None:
        frozen = x.args[0]
        assert same(constant, function.__annotations__["x"]) or function.__annotations__["x"] is frozen


@given(CONSTANTS, CONSTANTS)
def test_constants_meet_operators_as_they_are(first, second):
    class Echo:
        def __getitem__(self, key):
            return key

        def __add__(self, other):
            return other

        def __radd__(self, other):
            return other

        __matmul__ = __pow__ = __add__

    graph = Graph()
    x = graph.placeholder("x")
    graph.output(
        [
            graph.call_function(operator.getitem, (x, first)),
            graph.call_function(operator.add, (x, first)),
            graph.call_function(operator.matmul, (x, second)),
            graph.call_function(operator.pow, (x, first)),
            graph.call_function(operator.iadd, (x, second)),
        ]
    )

    results = function_of(graph)(None, Echo())

    assert all(map(same, [first, first, second, first, second], results))


def build(names, constants):
    """A graph that returns its parameters, the constants, and the root's weight."""
    graph = Graph()
    nodes = [graph.placeholder(name) for name in names]
    weight = graph.get_attr("class.weight")
    total = graph.call_function(lambda *values: values, (*nodes, *constants), name="total")
    graph.output((nodes, total, weight, constants, slice(nodes[-1] if nodes else None)))
    return graph


def check_parameters(names, constants):
    graph = build(names, constants)
    values = [object() for _ in names]
    root = object()
    holder = type("Holder", (), {"class": type("Inner", (), {"weight": root})})()

    function = function_of(graph)
    for results in (function(holder, *values), function(holder, **dict(zip(names, values, strict=True)))):
        nodes, total, weight, constant, sliced = results
        assert all(one is other for one, other in zip(values, nodes, strict=True))
        assert all(one is other for one, other in zip(values, total, strict=False))
        assert same(tuple(constants), total[len(values) :])
        assert weight is root
        assert same(constants, constant)
        assert sliced.stop is (values[-1] if values else None)


def apart(names):
    """Whether no parameter is called like the node of another one."""
    graph = Graph()
    nodes = [graph.placeholder(name) for name in names]
    return all(node.name == node.target or node.name not in names for node in nodes)


@given(st.lists(NAMES, max_size=5, unique=True), st.lists(CONSTANTS, max_size=4))
@example(["nan", "torch", "device", "self", "slice"], [math.nan, 0.5, slice(1)])
@example(
    ["getattr", "_fxp_float", "math", "operator", "builtins"],
    [math.nan, math.inf, math.sqrt, operator.add, getattr],
)
@example(["_fxp_self", "self", "_fxp__fxp_self"], [object()])
@example(["int", "_fxp_type"], [int, Color, lambda: 0])
@example(["__builtins__", "__name__", "__class__"], [len, slice(1)])
def test_any_parameter_names_go_with_any_constants(names, constants):
    assume(apart(names))

    check_parameters(names, constants)


@given(
    st.lists(
        NAMES | st.sampled_from([f"{name}_{n}" for name in ("nan", "int", "_") for n in (1, 2)]),
        max_size=5,
        unique=True,
    )
)
@example(["nan", "nan_1"])
def test_parameters_may_be_called_like_the_nodes_of_others(names):
    check_parameters(names, [])


@given(st.lists(NAMES, min_size=5, max_size=5, unique=True), CONSTANTS, CONSTANTS)
@example(
    ["slice", "int", "getattr", "self", "nan"], slice(math.nan, int, -0.0), [complex(math.nan, -0.0), len]
)
def test_any_kind_of_parameter_goes_with_any_constants(names, default, constant):
    assume(apart(names))
    plain, optional, rest, keyword_only, more = names
    graph = Graph()
    nodes = [
        graph.placeholder(plain),
        graph.placeholder(optional, default_value=default),
        graph.placeholder("*" + rest),
        graph.placeholder(keyword_only, default_value=constant),
        graph.placeholder("**" + more),
    ]
    graph.keyword_only = frozenset({keyword_only})
    graph.output([*nodes, constant])
    function, value = function_of(graph), object()

    omitted = function(None, value)
    given_all = function(None, value, value, value, **{keyword_only: value, "no parameter": value})

    assert omitted[0] is value
    assert (omitted[2], omitted[4]) == ((), {})
    assert same([default, constant, constant], [omitted[1], omitted[3], omitted[5]])
    assert given_all[:5] == [value, value, (value,), value, {"no parameter": value}]
    assert same(constant, given_all[5])


@pytest.mark.parametrize("name", SPECIAL_NAMES, ids=ascii)
def test_special_parameter_names_work_with_everything_that_needs_a_global(name):
    check_parameters(
        [name],
        [
            math.nan,
            math.inf,
            1j,
            slice(1),
            int,
            len,
            print,
            math.sqrt,
            operator.add,
            Color.RED,
            Point(1, 2),
            Size((1,)),
            object(),
            10**400,
            getattr,
        ],
    )


@pytest.mark.parametrize(
    "name",
    ["\u017felf", "\ufb01", "\uff53lice", "get\u1d43ttr"],
    ids=ascii,
)
def test_a_parameter_whose_name_python_normalises_hides_nothing(name):
    """Python reads identifiers in their compatibility form (NFKC): these become self, fi, slice and getattr."""
    graph = Graph()
    x, y = graph.placeholder(name), graph.placeholder("y")
    graph.output((x, y, slice(1), graph.get_attr("a b")))
    root = type("Root", (), {"a b": 7})()

    with contextlib.suppress(CodegenError):
        assert function_of(graph)(root, 5, 6) == (5, 6, slice(1), 7)


@pytest.mark.parametrize("name", ["forward", "class", "lambda", "__builtins__"])
@pytest.mark.parametrize("kind", [Point, Size], ids=lambda kind: kind.__name__)
def test_a_tuple_class_may_have_any_name(name, kind):
    renamed = type("Renamed", (kind,), {"__slots__": ()})
    renamed.__name__ = name
    value = renamed(1, 2) if kind is Point else renamed((1, 2))
    graph = Graph()
    graph.output([value, graph.call_function(len, ("abc",))])
    function = function_of(graph)

    result = function(None)

    assert type(result[0]) is renamed
    assert tuple(result[0]) == (1, 2)
    assert function.__globals__["__builtins__"] is not renamed


@pytest.mark.parametrize(
    "name", ["x", "print", "a b", "1x", "é", "None", "import os", "", "__debug__", "slice"], ids=ascii
)
def test_a_tuple_class_or_function_with_an_odd_name_works(name):
    renamed = type("Renamed", (tuple,), {})
    renamed.__name__ = name

    def function():
        return "called"

    function.__name__ = function.__module__ = name
    graph = Graph()
    graph.output(
        [renamed((1,)), renamed, function, graph.call_function(function, ()), slice(graph.placeholder("x"))]
    )

    result = function_of(graph)(None, 3)

    assert type(result[0]) is result[1] is renamed
    assert result[2:] == [function, "called", slice(3)]


def test_a_constant_used_twice_is_one_object():
    value = object()
    graph = Graph()
    graph.output([value, {"k": value}])

    result = function_of(graph)(None)

    assert result[0] is result[1]["k"] is value


def test_lists_and_dicts_are_made_anew_by_each_call():
    graph = Graph()
    graph.output([[1], {"k": 2}])
    function = function_of(graph)

    function(None)[0].append(9)
    function(None)[1].clear()

    assert function(None) == [[1], {"k": 2}]


def test_literals_are_printed_and_the_rest_is_bound():
    graph = Graph()
    graph.output((1, -2, 0.5, True, None, ..., "a'b", b"x", [1], {"k": (2,)}, slice(1), int, math.pi))

    code = graph.python_code()

    assert (
        "return (1, -2, 0.5, True, None, ..., \"a'b\", b'x', [1], {'k': (2,)}, slice(None, 1, None), int, "
        "3.141592653589793)"
    ) in code.src
    assert code.globals == {"slice": slice, "int": int}


def test_well_known_callables_are_reached_by_their_path_unless_hidden():
    graph = Graph()
    graph.output((math.sqrt, len, operator.itemgetter))
    hidden = Graph()
    hidden.output((math.sqrt, len, hidden.placeholder("math"), hidden.placeholder("len")))

    assert "return (math.sqrt, len, operator.itemgetter)" in graph.python_code().src
    result = function_of(hidden)(None, 1, 2)
    assert result == (math.sqrt, len, 1, 2)
    assert "math.sqrt" not in hidden.python_code().src


@pytest.mark.parametrize(
    "method", [str.upper, str.__len__, str.split], ids=lambda method: method.__qualname__
)
def test_methods_of_builtin_classes_are_reached(method):
    graph = Graph()
    graph.output([graph.call_function(method, ("ab",)), method])

    assert function_of(graph)(None) == [method("ab"), method]


def test_a_path_is_printed_only_if_it_leads_to_the_very_object():
    def sqrt():
        return "mine"

    sqrt.__module__, sqrt.__qualname__ = "math", "sqrt"
    graph = Graph()
    graph.output([sqrt, graph.call_function(sqrt, ())])

    assert function_of(graph)(None) == [sqrt, "mine"]


def test_constants_of_registered_types_are_printed_by_their_path():
    class DType:
        def __init__(self, name):
            self.name = name

    class Library:
        float32 = DType("float32")

    register_root("somelibrary", Library)
    register_named_type(DType, lambda dtype: f"somelibrary.{dtype.name}")
    stranger = DType("float32")
    graph = Graph()
    graph.output([Library.float32, stranger, DType("x = 1; y")])

    code = graph.python_code()

    assert "return [somelibrary.float32, _fxp_DType, _fxp_DType_1]" in code.src
    assert code.globals["somelibrary"] is Library
    result = function_of(graph)(None)
    assert result[0] is Library.float32
    assert result[1] is stranger
    shadowed = Graph()
    shadowed.output([Library.float32, shadowed.placeholder("somelibrary")])
    assert function_of(shadowed)(None, 3) == [Library.float32, 3]

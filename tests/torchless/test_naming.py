"""Names of nodes and qualified names of callables."""

from __future__ import annotations

import builtins
import functools
import keyword
import operator
import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fxplug.ir import Graph, Namespace, is_reserved, qualified_name, register_namespace
from fxplug.ir.naming import snake_case, target_name

ALARMING = [
    *keyword.kwlist,
    *keyword.softkwlist,
    *dir(builtins),
    *("torch", "device", "inf", "nan", "self", "math", "operator", "getattr", "_", "__", "_1", "__1", "_1_1"),
    *(
        "add",
        "add_1",
        "add_2",
        "add_01",
        "add_1_1",
        "add_",
        "add__1",
        "Add",
        "a-b",
        "1a",
        "12",
        "",
        " ",
        "é",
        "x\n",
    ),
    *("*args", "**kwargs", "a.b.c", "input", "input_1", "input_2", "class_1", "變數", "x_٣", "x_²"),
]
CANDIDATES = (
    st.sampled_from(ALARMING) | st.text(max_size=6) | st.from_regex(r"[ab]_?[0-9]{0,2}", fullmatch=True)
)


class Counting(dict):
    """Counts how often it is asked."""

    asked = 0

    def __contains__(self, name):
        self.asked += 1
        return super().__contains__(name)


def check(name):
    assert name.isidentifier()
    assert name.isascii()
    assert not keyword.iskeyword(name)
    assert not hasattr(builtins, name)
    assert not is_reserved(name)


@pytest.mark.parametrize("candidate", dict.fromkeys(ALARMING), ids=ascii)
def test_a_given_name_is_valid_and_hides_nothing(candidate):
    namespace = Namespace()

    for _ in range(3):
        check(namespace.create_name(candidate))


@given(st.lists(CANDIDATES, max_size=40))
@example(["x_1", "x", "x", "x_1", "x_2", "x"])
@example(["input", "input_1", "input", "input_1"])
def test_names_are_unique_and_valid(candidates):
    namespace = Namespace()

    names = [namespace.create_name(candidate) for candidate in candidates]

    assert len(set(names)) == len(names)
    for name in names:
        check(name)
        assert name in namespace


@given(st.lists(st.tuples(st.sampled_from(["create", "release", "associate"]), CANDIDATES), max_size=40))
def test_names_stay_unique_when_some_are_given_back(steps):
    namespace = Namespace()
    used = set()
    for kind, text in steps:
        if kind == "create":
            name = namespace.create_name(text)
            assert name not in used
            used.add(name)
        elif kind == "release":
            namespace.release(text)
            used.discard(text)
        else:
            namespace.associate(text)
            used.add(text)
        assert all(name in namespace for name in used)


@given(st.lists(CANDIDATES, max_size=15), st.lists(CANDIDATES, max_size=15))
def test_a_copy_continues_like_the_original_and_apart_from_it(before, after):
    namespace = Namespace()
    for candidate in before:
        namespace.create_name(candidate)
    copy = namespace.copy()

    copied = [copy.create_name(candidate) for candidate in after]

    assert [namespace.create_name(candidate) for candidate in after] == copied


@given(st.lists(CANDIDATES, max_size=20))
def test_a_name_that_was_given_is_given_again_in_a_new_namespace(candidates):
    namespace, other = Namespace(), Namespace()
    names = [namespace.create_name(candidate) for candidate in candidates]

    assert [other.create_name(name) for name in names] == names


@given(st.lists(CANDIDATES, max_size=20), st.randoms())
def test_a_name_that_is_given_back_can_be_given_again(candidates, random):
    namespace = Namespace()
    names = [namespace.create_name(candidate) for candidate in candidates]
    random.shuffle(names)

    for name in names:
        namespace.release(name)
        assert name not in namespace
        assert namespace.create_name(name) == name


def test_names_are_counted():
    namespace = Namespace()

    assert [namespace.create_name(name) for name in ["add", "add", "mul", "add"]] == [
        "add",
        "add_1",
        "mul",
        "add_2",
    ]
    assert [namespace.create_name(name) for name in ["x_5", "x", "x", "x_5"]] == ["x_5", "x", "x_6", "x_7"]
    assert [namespace.create_name(name) for name in ["class", "class", "class_1"]] == [
        "class_1",
        "class_2",
        "class_3",
    ]


def test_names_in_use_from_the_start_are_not_given():
    assert Namespace(["x", "x_1"]).create_name("x") == "x_2"


def test_a_name_may_end_in_very_many_digits():
    check(Namespace().create_name("a_" + "9" * 5000))


def test_asking_for_the_same_numbered_names_again_costs_linear_work():
    namespace = Namespace()
    names = [namespace.create_name("add") for _ in range(500)]
    namespace._used = used = Counting(namespace._used)

    for _ in range(2):
        for name in names:
            namespace.create_name(name)

    assert used.asked < 20 * len(names)


def test_a_counter_is_not_set_back_by_a_lower_name():
    namespace = Namespace()
    for _ in range(500):
        namespace.create_name("x")
    namespace._used = used = Counting(namespace._used)

    for _ in range(100):
        namespace.release("x_1")
        namespace.create_name("x_1")
        namespace.create_name("x")

    assert used.asked < 20 * 100


def test_a_base_is_continued_in_constant_work():
    namespace = Namespace()
    namespace._used = used = Counting()

    for _ in range(2000):
        namespace.create_name("add")
        namespace.create_name("input")

    assert used.asked < 8 * 2000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BatchNorm2d", "batch_norm2d"),
        ("relu", "relu"),
        ("ReLU", "re_lu"),
        ("already_snake", "already_snake"),
        ("", ""),
    ],
)
def test_class_names_become_snake_case(text, expected):
    assert snake_case(text) == expected


def test_names_of_targets():
    assert target_name(operator.add) == "add"
    assert target_name("__add__") == "add"
    assert target_name("__") == "__"
    assert target_name("____") == "____"
    assert target_name("Layer.0.convFirst") == "layer_0_conv_first"
    assert target_name(functools.partial(print)) == "partial"


def test_a_hostile_name_of_a_function_does_no_harm():
    def function():
        pass

    function.__name__ = "x = 1; import os\n"

    check(Graph().call_function(function, ()).name)


class Library:
    """Stands for a library whose functions do not know where they live."""


def test_qualified_names():
    def function():
        pass

    assert qualified_name(operator.add) == "operator.add"
    assert qualified_name(len) == "builtins.len"
    assert qualified_name(str.upper) == "builtins.str.upper"
    assert qualified_name(function) == f"{__name__}.function"
    assert qualified_name(functools.partial(len)) == "functools.partial"
    assert qualified_name(types.SimpleNamespace(__name__=3)) == "types.SimpleNamespace"


def test_a_registered_namespace_is_searched_for_the_very_object():
    class Callable:
        __name__ = "special"

        def __call__(self):
            pass

    special, other = Callable(), Callable()
    Library.special = special
    register_namespace("library", Library)
    register_namespace("library_again", Library)

    assert qualified_name(special) == "library.special"
    assert qualified_name(special) == "library.special"
    assert qualified_name(other) != "library.special"

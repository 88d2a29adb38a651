"""Containers of arguments: frozen forms and maps over nested structures."""

from __future__ import annotations

import copy
import pickle
import sys
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxplug.errors import GraphError, InvalidArgumentError
from fxplug.ir import EMPTY_DICT, immutable_dict, immutable_list, iterate_leaves, map_aggregate


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


REFUSAL = (
    "Cannot change an argument of a node in place: {kind} is immutable, since the graph could not see the "
    "change. Assign a new value to node.args or node.kwargs instead. [FXP-G003]"
)


def _add(values):
    values += [1]


def _multiply(values):
    values *= 2


def _merge(values):
    values |= {"a": 2}


def _delete(values, key):
    del values[key]


def _set(values, key):
    values[key] = 5


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.append(1),
        lambda values: values.extend([1]),
        lambda values: values.insert(0, 1),
        lambda values: values.pop(),
        lambda values: values.remove(1),
        lambda values: values.reverse(),
        lambda values: values.sort(),
        lambda values: values.sort(key=str, reverse=True),
        lambda values: values.clear(),
        lambda values: _set(values, 0),
        lambda values: _set(values, slice(None)),
        lambda values: _delete(values, 0),
        lambda values: _delete(values, slice(None)),
        _add,
        _multiply,
    ],
    ids=[
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "reverse",
        "sort",
        "sort-by-key",
        "clear",
        "set",
        "set-slice",
        "delete",
        "delete-slice",
        "iadd",
        "imul",
    ],
)
def test_a_list_in_arguments_refuses_every_mutation(change):
    values = immutable_list([1, 2])

    with pytest.raises(InvalidArgumentError) as caught:
        change(values)

    assert str(caught.value) == REFUSAL.format(kind="immutable_list")
    assert values == [1, 2]
    assert isinstance(caught.value, (TypeError, GraphError))


@pytest.mark.parametrize(
    "change",
    [
        lambda items: items.clear(),
        lambda items: items.pop("a"),
        lambda items: items.popitem(),
        lambda items: items.setdefault("b", 1),
        lambda items: items.update(a=2),
        lambda items: _set(items, "a"),
        lambda items: _delete(items, "a"),
        _merge,
    ],
    ids=["clear", "pop", "popitem", "setdefault", "update", "set", "delete", "ior"],
)
def test_a_dict_in_arguments_refuses_every_mutation(change):
    items = immutable_dict(a=1)

    with pytest.raises(InvalidArgumentError) as caught:
        change(items)

    assert str(caught.value) == REFUSAL.format(kind="immutable_dict")
    assert items == {"a": 1}


def test_frozen_containers_equal_and_hash_by_content():
    assert immutable_list([1, 2]) == [1, 2]
    assert hash(immutable_list([1, 2])) == hash(immutable_list([1, 2]))
    assert immutable_dict(a=1, b=2) == {"b": 2, "a": 1}
    assert hash(immutable_dict(a=1, b=2)) == hash(immutable_dict(b=2, a=1))


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_frozen_containers_stay_frozen_when_they_are_copied(duplicate):
    values = duplicate(immutable_list([1, immutable_dict(a=2)]))

    assert values == [1, {"a": 2}]
    assert type(values) is immutable_list
    assert type(values[1]) is immutable_dict


def test_a_mutable_list_can_be_made_from_a_frozen_one():
    values = [*immutable_list([1, 2])]
    values.append(3)

    assert values == [1, 2, 3]
    assert [*immutable_list([1]), 2] == [1, 2]


def test_a_map_keeps_the_structure_and_freezes_lists_and_dicts():
    argument = (1, [2, {"a": 3, "b": (4,)}], slice(5, None, 6), Point(7, [8]), {})

    mapped = map_aggregate(argument, lambda leaf: leaf and leaf * 10)

    assert mapped == (10, [20, {"a": 30, "b": (40,)}], slice(50, None, 60), Point(70, [80]), {})
    assert type(mapped) is tuple
    assert type(mapped[1]) is immutable_list
    assert type(mapped[1][1]) is immutable_dict
    assert type(mapped[3]) is Point
    assert type(mapped[3].y) is immutable_list


def test_a_map_visits_leaves_once_from_left_to_right():
    seen = []

    map_aggregate([1, (2, {"k": 3, "j": 4}), slice(5, 6, 7), Point(8, 9)], seen.append)

    assert seen == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_leaves_are_iterated_in_the_order_of_the_map():
    argument = [1, (2, {"k": 3, "j": []}), slice(4, None, 5), Point(6, "text")]
    seen = []
    map_aggregate(argument, seen.append)

    assert list(iterate_leaves(argument)) == seen == [1, 2, 3, 4, None, 5, 6, "text"]


def test_the_key_order_of_a_dict_is_kept():
    mapped = map_aggregate({"b": 1, "a": 2, 3: 3}, lambda leaf: leaf)

    assert list(mapped) == ["b", "a", 3]


def test_text_ranges_and_sets_are_leaves():
    leaves = ["abc", b"abc", range(3), frozenset({1}), bytearray(b"x")]
    seen = []

    map_aggregate(leaves, seen.append)

    assert seen == leaves


@pytest.mark.parametrize("kind", [tuple, list, dict], ids=lambda kind: kind.__name__)
def test_a_map_goes_deeper_than_the_recursion_limit(kind):
    depth = sys.getrecursionlimit() + 2000
    argument = 1
    for _ in range(depth):
        argument = {"k": argument} if kind is dict else kind([argument])

    mapped = map_aggregate(argument, lambda leaf: leaf + 1)

    assert list(iterate_leaves(mapped)) == [2]
    found = 0
    while isinstance(mapped, (tuple, list, dict)):
        mapped = mapped["k"] if isinstance(mapped, dict) else mapped[0]
        found += 1
    assert found == depth


@pytest.mark.parametrize("case", ["structseq", "own-constructor", "namedtuple-constructor"])
def test_a_tuple_subclass_without_nodes_passes_as_it_is(case):
    class Pair(tuple):
        __slots__ = ()

        def __new__(cls, first, second):
            return super().__new__(cls, (first, second))

    class Grown(Point):
        __slots__ = ()

        def __new__(cls, x):
            return super().__new__(cls, x, x + 1)

    value = {
        "structseq": sys.version_info,
        "own-constructor": Pair(1, 2),
        "namedtuple-constructor": Grown(1),
    }[case]

    mapped = map_aggregate([value], lambda leaf: leaf)

    assert mapped[0] == value
    assert type(mapped[0]) is type(value)


def test_the_empty_keyword_arguments_cannot_be_filled():
    with pytest.raises(InvalidArgumentError):
        EMPTY_DICT["x"] = 1
    assert EMPTY_DICT == {}


LEAVES = st.none() | st.integers() | st.text(max_size=3) | st.booleans()
NESTED = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.builds(slice, inner, inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


@given(NESTED)
def test_mapping_the_identity_changes_nothing_but_mutability(argument):
    once = map_aggregate(argument, lambda leaf: leaf)

    assert once == argument
    assert list(iterate_leaves(once)) == list(iterate_leaves(argument))


@given(NESTED)
def test_two_maps_are_one_map_of_the_composition(argument):
    def first(leaf):
        return ("seen", leaf) if isinstance(leaf, str) else repr(leaf)

    def second(leaf):
        return f"<{leaf}>"

    together = map_aggregate(argument, lambda leaf: map_aggregate(first(leaf), second))

    assert map_aggregate(map_aggregate(argument, first), second) == together

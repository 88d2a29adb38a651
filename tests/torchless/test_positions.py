"""Moving nodes, and comparing them by position."""

from __future__ import annotations

import itertools
import operator

import pytest

from fxplug.errors import ForeignNodeError, GraphError
from fxplug.ir import Graph


@pytest.fixture
def graph():
    return Graph()


@pytest.fixture
def nodes(graph):
    """Three inputs and a call of the first two."""
    a, b, c = (graph.placeholder(name) for name in "abc")
    call = graph.call_function(operator.add, (a, b))
    return a, b, c, call


def order(graph):
    return [node.name for node in graph.nodes]


def test_nodes_are_moved_before_and_behind_others(graph, nodes):
    a, b, c, call = nodes

    a.prepend(c)
    assert order(graph) == ["c", "a", "b", "add"]
    call.append(c)
    assert order(graph) == ["a", "b", "add", "c"]
    b.prepend(call)
    assert order(graph) == ["a", "add", "b", "c"]
    assert [node.next for node in (a, call, b)] == [call, b, c]
    assert [node.prev for node in (c, b, call)] == [b, call, a]
    assert a.prev is c.next
    assert len(graph.nodes) == 4


def test_nodes_are_moved_to_both_ends_of_the_graph(graph, nodes):
    a, b, c, call = nodes

    a.prev.append(c)
    call.next.prepend(b)

    assert order(graph) == ["c", "a", "add", "b"]
    assert c < a < call < b
    assert list(reversed(graph.nodes)) == [b, call, a, c]


def test_moves_that_change_nothing_leave_the_version(graph, nodes):
    a, b, _, _ = nodes
    version = graph.version

    a.append(b)
    b.prepend(a)
    a.append(a)
    a.prepend(a)

    assert order(graph) == ["a", "b", "c", "add"]
    assert graph.version == version


def test_a_move_makes_the_version_grow(graph, nodes):
    version = graph.version

    nodes[0].append(nodes[2])

    assert graph.version > version


@pytest.mark.parametrize("move", ["append", "prepend"])
@pytest.mark.parametrize("kind", ["foreign", "erased", "beside-erased"])
def test_a_node_that_stands_elsewhere_is_not_moved(graph, nodes, move, kind):
    stranger = Graph().placeholder("stranger") if kind == "foreign" else graph.placeholder("stranger")
    if kind != "foreign":
        graph.erase_node(stranger)
    anchor, moved = (stranger, nodes[0]) if kind == "beside-erased" else (nodes[0], stranger)
    version = graph.version

    with pytest.raises(ForeignNodeError) as caught:
        getattr(anchor, move)(moved)

    assert "'stranger' does not stand in this graph. [FXP-G002]" in str(caught.value)
    assert order(graph) == ["a", "b", "c", "add"]
    assert graph.version == version


@pytest.mark.parametrize(
    "misuse",
    [
        pytest.param(lambda graph, end: end.prev.append(end), id="append"),
        pytest.param(lambda graph, end: graph.erase_node(end), id="erase"),
        pytest.param(lambda graph, end: graph.call_function(operator.neg, (end,)), id="argument"),
        pytest.param(lambda graph, end: end.prev.prev.append(end), id="append-in-the-middle"),
    ],
)
def test_what_stands_behind_the_last_node_is_no_node_to_work_with(graph, nodes, misuse):
    end = nodes[-1].next

    with pytest.raises(GraphError):
        misuse(graph, end)

    assert order(graph) == ["a", "b", "c", "add"]


def test_nodes_compare_by_position(graph, nodes):
    a, b, _, call = nodes

    same = a
    assert a < b < call
    assert call > b > a
    assert a <= same >= a
    assert a <= b
    assert b >= a
    assert not a < same
    assert not a > same
    assert not b <= a
    assert not a >= b
    a.prepend(call)
    assert call < a


@pytest.mark.parametrize("compare", [operator.lt, operator.gt, operator.le, operator.ge])
def test_a_node_does_not_compare_with_what_is_no_node(nodes, compare):
    with pytest.raises(TypeError):
        compare(nodes[0], 3)


@pytest.mark.parametrize("where", ["behind the first", "before the last", "at the start", "alternating"])
def test_positions_stay_right_after_many_inserts_at_one_place(graph, nodes, where):
    a, _b, _, call = nodes
    made = []
    for number in range(3000):
        point = {
            "behind the first": graph.inserting_after(a),
            "before the last": graph.inserting_before(call),
            "at the start": graph.inserting_before(),
            "alternating": graph.inserting_after(made[-1] if made and number % 2 else a),
        }[where]
        with point:
            made.append(graph.call_function(operator.neg, (a,)))

    listed = list(graph.nodes)
    assert len(listed) == 3004
    assert all(first < second and second > first for first, second in itertools.pairwise(listed))
    assert sorted(made) == [node for node in listed if node in set(made)]


def test_nodes_are_hashable_and_equal_only_to_themselves(nodes):
    assert len({*nodes, *nodes}) == 4
    assert nodes[0] == nodes[0]
    assert nodes[0] != nodes[1]

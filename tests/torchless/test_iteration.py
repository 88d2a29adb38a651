"""Iterating over a graph that changes meanwhile, and the order of its nodes, against a plain list."""

from __future__ import annotations

import gc
import itertools
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxplug.ir import Graph, Node, NodeList


@pytest.fixture
def graph():
    """Five inputs, a to e."""
    graph = Graph()
    for name in "abcde":
        graph.placeholder(name)
    return graph


def by_name(graph, name):
    return next(node for node in graph.nodes if node.name == name)


def visit(nodes, react):
    """Iterate, call react(node) at each node, and return the names in the order of the visits."""
    seen = []
    for node in nodes:
        seen.append(node.name)
        assert len(seen) < 50, "the iteration does not end"
        react(node)
    return "".join(seen)


def test_nodes_are_a_view_with_length_and_both_directions(graph):
    nodes = graph.nodes
    graph.placeholder("f")

    assert len(nodes) == 6
    assert [node.name for node in nodes] == list("abcdef")
    assert [node.name for node in reversed(nodes)] == list("fedcba")
    assert [node.name for node in nodes.reversed()] == list("fedcba")
    assert [node.name for node in nodes.reversed().reversed()] == list("abcdef")
    assert [node.name for node in reversed(nodes.reversed())] == list("abcdef")
    assert isinstance(nodes.reversed(), NodeList)
    assert by_name(graph, "c") in nodes
    assert Graph().placeholder("a") not in nodes
    assert not Graph().nodes


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "reversed"])
def test_a_node_inserted_ahead_is_visited_and_one_left_behind_is_not(graph, backward):
    def react(node):
        if node.name == "c":
            with graph.inserting_after(node):
                graph.placeholder("y")
            with graph.inserting_before(node):
                graph.placeholder("x")

    nodes = graph.nodes.reversed() if backward else graph.nodes

    assert visit(nodes, react) == ("edcxba" if backward else "abcyde")
    assert visit(graph.nodes, lambda node: None) == "abxcyde"


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "reversed"])
def test_iteration_goes_on_when_the_current_node_is_erased(graph, backward):
    nodes = graph.nodes.reversed() if backward else graph.nodes

    assert visit(nodes, graph.erase_node) == ("edcba" if backward else "abcde")
    assert len(graph.nodes) == 0


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "reversed"])
def test_a_node_put_where_the_current_one_was_erased_is_visited(graph, backward):
    def react(node):
        if node.name == "c":
            following = node.next
            graph.erase_node(node)
            with graph.inserting_before(following):
                graph.placeholder("z")

    nodes = graph.nodes.reversed() if backward else graph.nodes

    assert visit(nodes, react) == ("edczba" if backward else "abczde")


def test_iteration_goes_on_at_its_place_when_the_neighbours_are_erased_too(graph):
    def react(node):
        if node.name == "c":
            for name in "bcda":
                graph.erase_node(by_name(graph, name))

    assert visit(graph.nodes, react) == "abce"


@pytest.mark.parametrize(
    ("backward", "target", "visited"),
    [
        (False, "e", "abcdec"),
        (False, "a", "abcde"),
        (True, "a", "edcbca"),
        (True, "e", "edcba"),
    ],
    ids=["forward-ahead", "forward-back", "reversed-ahead", "reversed-back"],
)
def test_iteration_goes_on_at_its_place_when_the_current_node_is_moved(graph, backward, target, visited):
    moved = []

    def react(node):
        if node.name == "c" and not moved:
            moved.append(node)
            anchor = by_name(graph, target)
            if target == "e":
                anchor.append(node)
            else:
                anchor.append(node) if backward else anchor.prepend(node)

    nodes = graph.nodes.reversed() if backward else graph.nodes

    assert visit(nodes, react) == visited


def test_a_node_moved_from_behind_to_ahead_is_visited_again(graph):
    def react(node):
        if node.name == "c" and by_name(graph, "a").prev.name == "":
            by_name(graph, "e").append(by_name(graph, "a"))

    assert visit(graph.nodes, react) == "abcdea"


def test_iterations_may_be_nested_and_each_follows_the_changes(graph):
    seen = []
    for outer in graph.nodes:
        for inner in graph.nodes:
            seen.append(outer.name + inner.name)
            if (outer.name, inner.name) == ("b", "b"):
                graph.erase_node(inner)
    assert seen[:10] == ["aa", "ab", "ac", "ad", "ae", "ba", "bb", "bc", "bd", "be"]
    assert seen[10:] == [outer + inner for outer in "cde" for inner in "acde"]


def test_two_iterations_on_one_node_both_survive_it(graph):
    forward, backward = iter(graph.nodes), reversed(graph.nodes)
    for _ in range(3):
        node = next(forward)
        assert next(backward) is not None

    graph.erase_node(node)

    # Bounded: an iteration that loses its place may go round and round.
    assert [one.name for one in itertools.islice(forward, 9)] == ["d", "e"]
    assert [one.name for one in itertools.islice(backward, 9)] == ["b", "a"]


def test_abandoned_iterators_leave_nothing_behind(graph):
    for _ in range(5):
        for _node in graph.nodes:
            break
    closed = iter(graph.nodes)
    next(closed)
    closed.close()
    failed = iter(graph.nodes)
    next(failed)
    with pytest.raises(ZeroDivisionError):
        failed.throw(ZeroDivisionError)
    del failed
    gc.collect()

    assert graph._ring._cursors == []
    graph.erase_node(by_name(graph, "a"))
    assert visit(graph.nodes, lambda node: None) == "bcde"


def test_an_iterator_that_is_kept_goes_on_after_many_changes(graph):
    kept = iter(graph.nodes)
    assert next(kept).name == "a"

    for name in "abcde":
        graph.erase_node(by_name(graph, name))
    late = graph.placeholder("z")

    assert list(itertools.islice(kept, 9)) == [late]
    graph.placeholder("after_the_end")
    assert list(itertools.islice(kept, 9)) == []


# -- against a list


class Cursor:
    """Where an iteration over the list stands: how many items lie before its gap."""

    def __init__(self, at, *, backward):
        self.at = at
        self.backward = backward
        self.done = False


class Model:
    """What a graph of inputs and its iterations should do, on a plain list."""

    def __init__(self):
        self.items = []
        self.cursors = []

    def insert(self, index, item):
        self.items.insert(index, item)
        for cursor in self.cursors:
            moves = index <= cursor.at if cursor.backward else index < cursor.at
            cursor.at += moves

    def remove(self, item):
        index = self.items.index(item)
        del self.items[index]
        for cursor in self.cursors:
            cursor.at -= index < cursor.at

    def advance(self, cursor):
        """Return the next item, None at the end, where an iteration stays."""
        if cursor.done:
            return None
        if cursor.backward:
            cursor.done = cursor.at == 0
            cursor.at -= not cursor.done
            return None if cursor.done else self.items[cursor.at]
        cursor.done = cursor.at == len(self.items)
        cursor.at += not cursor.done
        return None if cursor.done else self.items[cursor.at - 1]


class Replay:
    """Applies one edit to a graph and to the model, and compares what can be seen."""

    def __init__(self, *, numbered):
        self.graph = Graph()
        self.model = Model()
        self.iterators = []
        self.numbered = numbered

    def pick(self, number):
        return self.model.items[number % len(self.model.items)] if self.model.items else None

    def apply(self, kind, first, second):
        getattr(self, kind)(first, second)
        assert list(self.graph.nodes) == self.model.items
        assert len(self.graph.nodes) == len(self.model.items)
        if self.numbered:
            self.check_order()

    def check_order(self):
        assert all(one < other and not other < one for one, other in itertools.pairwise(self.model.items))

    def insert_before(self, first, _):
        anchor = self.pick(first)
        with self.graph.inserting_before(anchor):
            node = self.graph.placeholder("p")
        self.model.insert(self.model.items.index(anchor) if anchor else 0, node)

    def insert_after(self, first, _):
        anchor = self.pick(first)
        with self.graph.inserting_after(anchor):
            node = self.graph.placeholder("p")
        self.model.insert(self.model.items.index(anchor) + 1 if anchor else 0, node)

    def erase(self, first, _):
        node = self.pick(first)
        if node is not None:
            self.graph.erase_node(node)
            self.model.remove(node)

    def _move(self, anchor, node, *, behind):
        items = self.model.items
        rest = [item for item in items if item is not node]
        index = rest.index(anchor) + behind
        if items.index(node) != index:  # Else it stands there already, and nothing happens to iterations.
            self.model.remove(node)
            self.model.insert(index, node)

    def append(self, first, second):
        anchor, node = self.pick(first), self.pick(second)
        if anchor is not node:
            anchor.append(node)
            self._move(anchor, node, behind=True)

    def prepend(self, first, second):
        anchor, node = self.pick(first), self.pick(second)
        if anchor is not node:
            anchor.prepend(node)
            self._move(anchor, node, behind=False)

    def iterate(self, first, _):
        backward = bool(first % 2)
        nodes = self.graph.nodes
        cursor = Cursor(len(self.model.items) if backward else 0, backward=backward)
        self.iterators.append((reversed(nodes) if backward else iter(nodes), cursor))
        self.model.cursors.append(cursor)
        self.advance(len(self.iterators) - 1, 0)  # An iteration begins with its first step.

    def advance(self, first, _):
        if self.iterators:
            iterator, cursor = self.iterators[first % len(self.iterators)]
            assert next(iterator, None) is self.model.advance(cursor)

    def abandon(self, first, _):
        if self.iterators:
            _, cursor = self.iterators.pop(first % len(self.iterators))
            self.model.cursors.remove(cursor)


KINDS = [
    "insert_before",
    "insert_after",
    "erase",
    "append",
    "prepend",
    "iterate",
    "advance",
    "advance",
    "abandon",
]
EDITS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 11), st.integers(0, 11)), min_size=15, max_size=60
)


@given(st.booleans(), st.integers(0, 8), EDITS)
def test_a_graph_under_random_edits_is_a_list(numbered, size, edits):
    replay = Replay(numbered=numbered)
    for _ in range(size):
        replay.insert_after(-1, 0)
    for kind, first, second in edits:
        replay.apply(kind, first, second)
    replay.check_order()


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30), st.integers(0, 50), st.integers(0, 20)
)
def test_positions_grow_strictly_however_dense_the_inserts_are(inserts, burst, first_question):
    graph = Graph()
    nodes = [graph.placeholder("p"), graph.placeholder("p")]
    for number, (behind, place) in enumerate(inserts):
        anchor = nodes[place % len(nodes)]
        index = nodes.index(anchor) + behind
        with graph.inserting_after(anchor) if behind else graph.inserting_before(anchor):
            made = [graph.placeholder("p") for _ in range(burst)]
        nodes[index:index] = reversed(made) if behind else made
        if number >= first_question:  # Labels are given when somebody first asks for an order.
            assert nodes[0] < nodes[-1]

    assert list(graph.nodes) == nodes
    assert all(one < other and not other < one for one, other in itertools.pairwise(nodes))
    labels = [node._position for node in graph.nodes]
    assert all(low < high for low, high in itertools.pairwise(labels))


def test_labels_stay_small_under_many_inserts_at_one_place():
    graph = Graph()
    first, last = graph.placeholder("p"), graph.placeholder("p")
    assert first < last
    with graph.inserting_before(last):
        for _ in range(30_000):
            graph.call_function(operator.pos, ())

    labels = [node._position for node in graph.nodes]
    assert all(low < high for low, high in itertools.pairwise(labels))
    assert labels[-1] - labels[0] < 2**64


@pytest.mark.parametrize("pattern", ["one place", "between the last two"])
def test_dense_inserts_relabel_few_nodes(monkeypatch, pattern):
    slot = Node.__dict__["_position"]
    written = []

    class Counting:
        def __get__(self, node, kind=None):
            return slot.__get__(node, kind)

        def __set__(self, node, label):
            written.append(label)
            slot.__set__(node, label)

    graph = Graph()
    low, high = graph.placeholder("p"), graph.placeholder("p")
    assert low < high
    monkeypatch.setattr(Node, "_position", Counting())
    for number in range(5000):
        with graph.inserting_after(low):
            node = graph.call_function(operator.pos, ())
        if pattern == "between the last two" and number % 2:
            low = node
        elif pattern == "between the last two":
            high = node

    assert low < high
    assert 5000 <= len(written) < 14 * 5000

"""Uses, names and the index of a graph under random edits, against what a walk over all arguments finds."""

from __future__ import annotations

import copy
import operator
import pickle
import typing

from hypothesis import given
from hypothesis import strategies as st

from fxplug.ir import Graph, find_structure_faults, iterate_leaves, map_aggregate


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


TARGETS = [operator.add, operator.neg, print, "relu", "layer.weight"]

SHAPES = st.recursive(
    st.integers(0, 30) | st.none() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
        | st.builds(slice, inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=5,
)
"""Arguments in which an integer stands for the node with that number."""

EDITS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "create",
                "create",
                "create",
                "args",
                "kwargs",
                "update",
                "insert",
                "uses",
                "input",
                "erase",
                "move",
                "name",
                "target",
                "sweep",
                "copy",
                "restore",
            ]
        ),
        st.integers(0, 30),
        st.integers(0, 30),
        SHAPES,
    ),
    min_size=10,
    max_size=40,
)


class Editor:
    def __init__(self):
        self.graph = Graph()
        self.graph.placeholder("x")

    def pick(self, number):
        nodes = list(self.graph.nodes)
        return nodes[number % len(nodes)]

    def fill(self, shape):
        return map_aggregate(shape, lambda leaf: self.pick(leaf) if isinstance(leaf, int) else leaf)

    def create(self, first, second, shape):
        target = TARGETS[second % len(TARGETS)]
        op = "call_method" if isinstance(target, str) else "call_function"
        args, kwargs = ((self.fill(shape),), {}) if second % 2 else ((), {"k": self.fill(shape)})
        anchor = self.pick(first)
        with self.graph.inserting_after(anchor) if second % 3 else self.graph.inserting_before(anchor):
            self.graph.create_node(op, target, args, kwargs)

    def args(self, first, second, shape):
        self.pick(first).args = (self.fill(shape), self.pick(second))

    def kwargs(self, first, second, shape):
        self.pick(first).kwargs = {"k": self.fill(shape), "j": self.pick(second)}

    def update(self, first, second, shape):
        node = self.pick(first)
        if node.args and second % 2:
            node.update_arg(second % len(node.args), self.fill(shape))
        else:
            node.update_kwarg("ab"[second % 2], self.fill(shape))

    def insert(self, first, second, shape):
        node = self.pick(first)
        node.insert_arg(second % (len(node.args) + 1), self.fill(shape))

    def uses(self, first, second, shape):
        node = self.pick(first)
        chosen = [user for number, user in enumerate(node.users) if (number + second) % 2]
        changed = node.replace_all_uses_with(self.pick(second), lambda user: user in chosen)
        assert changed == chosen

    def input(self, first, second, shape):
        node = self.pick(first)
        if node.all_input_nodes:
            node.replace_input_with(node.all_input_nodes[0], self.pick(second))

    def erase(self, first, second, shape):
        node = self.pick(first)
        if not node.users and len(self.graph.nodes) > 1:
            self.graph.erase_node(node)

    def move(self, first, second, shape):
        if second % 2:
            self.pick(first).append(self.pick(second))
        else:
            self.pick(first).prepend(self.pick(second))

    def name(self, first, second, shape):
        self.pick(first).name = ["x", "add", "class", "neg_1", "a-b"][second % 5]

    def target(self, first, second, shape):
        node = self.pick(first)
        target = TARGETS[second % len(TARGETS)]
        if node.op != "placeholder":
            node.op = "call_method" if isinstance(target, str) else "call_function"
            node.target = target

    def sweep(self, first, second, shape):
        if first < 4:
            kept = self.graph.nodes
            self.graph.eliminate_dead_code(lambda node: node.op == "placeholder" or len(kept) < 4)

    def copy(self, first, second, shape):
        if first < 10:
            text = str(self.graph)
            self.graph = copy.deepcopy(self.graph)
            assert str(self.graph) == text

    def restore(self, first, second, shape):
        if first < 10 and not list(find_structure_faults(self.graph)):
            text = str(self.graph)
            self.graph = pickle.loads(pickle.dumps(self.graph))
            assert str(self.graph) == text

    def check(self):
        nodes = list(self.graph.nodes)
        used = {
            node: [leaf for leaf in iterate_leaves((node.args, node.kwargs)) if leaf in set(nodes)]
            for node in nodes
        }
        for node in nodes:
            assert node.all_input_nodes == list(dict.fromkeys(used[node]))
            assert set(node.users) == {other for other in nodes if node in used[other]}
            assert node.graph is self.graph
        assert len({node.name for node in nodes}) == len(nodes)
        keys = {(node.op, node.target) for node in nodes}
        for op, target in keys:
            expected = [node for node in nodes if (node.op, node.target) == (op, target)]
            assert self.graph.find_nodes(op=op, target=target) == expected
            assert self.graph.find_nodes(op=op) == [node for node in nodes if node.op == op]
        faults = [
            fault for fault in find_structure_faults(self.graph) if "before it is computed" not in fault
        ]
        assert faults == []


@given(st.booleans(), EDITS)
def test_uses_names_and_index_stay_right_under_random_edits(indexed, edits):
    editor = Editor()
    if indexed:
        editor.check()
    for kind, first, second, shape in edits:
        version = editor.graph.version
        before = str(editor.graph)
        getattr(editor, kind)(first, second, shape)
        if kind not in {"copy", "restore"} and str(editor.graph) != before:
            assert editor.graph.version > version
        if indexed:
            editor.check()
    editor.check()

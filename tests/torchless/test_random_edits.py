"""Everything that edits a graph, in any order, against a plain list of plain records that is edited alike."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
import typing
from dataclasses import dataclass, field

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fxplug.errors import ForeignNodeError, InvalidArgumentError, NodeInUseError
from fxplug.ir import Graph, Node, find_structure_faults, iterate_leaves, map_aggregate


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


TARGETS = [operator.add, operator.neg, print, "relu", "layer.weight"]
NUMBERS = st.integers(0, 40)
SHAPES = st.recursive(
    NUMBERS | st.none() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
        | st.builds(slice, inner, inner)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=4,
)
"""Arguments in which an integer stands for the node with that number."""


@dataclass(eq=False)
class Record:
    """What a node should be. Arguments name other records."""

    target: typing.Any
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    users: list = field(default_factory=list)

    def inputs(self):
        leaves = iterate_leaves((self.args, self.kwargs))
        return list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Record)))

    def assign(self, args, kwargs):
        before = self.inputs()
        self.args, self.kwargs = args, kwargs
        for used in before:
            if used not in self.inputs():
                used.users.remove(self)
        for used in self.inputs():
            if self not in used.users:
                used.users.append(self)

    def replaced(self, old, new):
        return map_aggregate(
            (self.args, self.kwargs), lambda leaf: new if leaf is old else leaf, frozen=False
        )


@dataclass
class Cursor:
    """Where an iteration stands: how many records lie before its gap."""

    nodes: typing.Any
    at: int
    backward: bool
    done: bool = False


class StopHereError(Exception):
    pass


def stop_if(stops):
    if stops:
        raise StopHereError


class Edits(RuleBasedStateMachine):
    @initialize(numbered=st.booleans(), indexed=st.booleans())
    def start(self, numbered, indexed):
        self.numbered, self.indexed = numbered, indexed
        self.records: list[Record] = []
        self.cursors: list[Cursor] = []
        self.node_of: dict[Record, Node] = {}
        self.record_of: dict[Node, Record] = {}
        self.point: tuple[Record | None, bool] = (None, True)
        self.gone: list[Node] = []
        self.left_behind: list[tuple[Graph, list]] = []
        self.alive: set[Node] = set()
        self._adopt(Graph())
        self.seen = (self.graph.version, self._shown())
        self._create(0, [], {})
        self._create(1, [self.records[0]], {})

    def _adopt(self, graph):
        self.graph = graph
        self.alive = set(graph.nodes)
        graph.observers.append(self._hear)

    def _hear(self, event, node):
        if event == "created":
            self.alive.add(node)
        elif event == "erased":
            self.alive.discard(node)

    # -- helpers

    def pick(self, number):
        return self.records[number % len(self.records)]

    def node(self, number):
        return self.node_of[self.pick(number)]

    def fill(self, shape):
        """Return an argument with nodes, and the same with records."""
        recorded = map_aggregate(
            shape, lambda leaf: self.pick(leaf) if isinstance(leaf, int) else leaf, frozen=False
        )
        return self.real(recorded), recorded

    def real(self, recorded):
        return map_aggregate(
            recorded, lambda leaf: self.node_of[leaf] if isinstance(leaf, Record) else leaf, frozen=False
        )

    def recorded(self, real):
        return map_aggregate(
            real, lambda leaf: self.record_of.get(leaf, leaf) if isinstance(leaf, Node) else leaf
        )

    def _insert(self, index, record):
        self.records.insert(index, record)
        for cursor in self.cursors:
            cursor.at += index <= cursor.at if cursor.backward else index < cursor.at

    def _remove(self, record):
        index = self.records.index(record)
        del self.records[index]
        for cursor in self.cursors:
            cursor.at -= index < cursor.at

    def _index_of(self, point):
        anchor, before = point
        if anchor is None:
            return len(self.records) if before else 0
        return self.records.index(anchor) + (not before)

    def _create(self, target, args, kwargs, point=None):
        target = TARGETS[target % len(TARGETS)]
        op = "call_method" if isinstance(target, str) else "call_function"
        real_args, real_kwargs = self.real((tuple(args), kwargs))
        node = self.graph.create_node(op, target, real_args, real_kwargs)
        return self._note(node, tuple(args), kwargs, point)

    def _note(self, node, args, kwargs, point=None):
        record = Record(node.target)
        record.assign(args, kwargs)
        self._insert(self._index_of(point or self.point), record)
        self.node_of[record], self.record_of[node] = node, record
        return record

    def _beside(self, point, record):
        """Return where an insertion point lies once `record` is gone."""
        anchor, before = point
        if anchor is not record:
            return point
        index = self.records.index(record) + (1 if before else -1)
        return (self.records[index] if 0 <= index < len(self.records) else None), before

    def _erase(self, record):
        self.point = self._beside(self.point, record)
        self.graph.erase_node(self.node_of[record])
        self.gone.append(self.node_of[record])
        self._remove(record)
        record.assign((), {})

    # -- making nodes

    @rule(
        which=NUMBERS,
        args=st.lists(SHAPES, max_size=3),
        kwargs=st.dictionaries(st.sampled_from("ab"), SHAPES),
    )
    def create(self, which, args, kwargs):
        recorded = [self.fill(shape)[1] for shape in args]
        self._create(which, recorded, {key: self.fill(shape)[1] for key, shape in kwargs.items()})

    @rule(anchor=NUMBERS, before=st.booleans())
    def insert_from_now_on(self, anchor, before):
        at = self.graph.inserting_before if before else self.graph.inserting_after
        at(self.node(anchor))
        self.point = self.pick(anchor), before

    @rule(at_the_end=st.booleans())
    def insert_at_an_end_from_now_on(self, at_the_end):
        (self.graph.inserting_after if at_the_end else self.graph.inserting_before)()
        self.point = None, at_the_end

    @rule(first=NUMBERS, second=NUMBERS, before=st.booleans(), fails=st.booleans())
    def insert_inside_contexts(self, first, second, before, fails):
        outer, inner = (self.pick(first), before), (self.pick(second), not before)
        try:
            with self._at(outer):
                self._create(first, [self.pick(second)], {}, outer)
                with self._at(inner):
                    self._create(second, [], {}, inner)
                    stop_if(fails)
                self._create(first, [], {}, outer)
        except StopHereError:
            assert fails

    def _at(self, point):
        anchor, before = point
        return (self.graph.inserting_before if before else self.graph.inserting_after)(self.node_of[anchor])

    @rule(number=NUMBERS, other=NUMBERS, renames=st.booleans())
    def copy_a_node(self, number, other, renames):
        original, replacement = self.pick(number), self.pick(other)
        transform = (lambda node: self.node_of[replacement]) if renames else None
        node = self.graph.node_copy(self.node_of[original], transform)
        args, kwargs = map_aggregate(
            (original.args, original.kwargs),
            lambda leaf: replacement if renames and isinstance(leaf, Record) else leaf,
            frozen=False,
        )
        self._note(node, args, kwargs)

    # -- arguments and uses

    @rule(number=NUMBERS, shape=SHAPES, other=NUMBERS)
    def assign_args(self, number, shape, other):
        real, recorded = self.fill((shape, other))
        self.node(number).args = real
        self.pick(number).assign(recorded, self.pick(number).kwargs)

    @rule(number=NUMBERS, kwargs=st.dictionaries(st.sampled_from("abc"), SHAPES, max_size=2))
    def assign_kwargs(self, number, kwargs):
        real, recorded = self.fill(kwargs)
        self.node(number).kwargs = real
        self.pick(number).assign(self.pick(number).args, recorded)

    @rule(number=NUMBERS, index=NUMBERS, shape=SHAPES)
    def update_or_insert_an_argument(self, number, index, shape):
        record, node = self.pick(number), self.node(number)
        real, recorded = self.fill(shape)
        args = list(record.args)
        if args and index % 2:
            node.update_arg(index % len(args), real)
            args[index % len(args)] = recorded
        else:
            node.insert_arg(index % (len(args) + 1), real)
            args.insert(index % (len(args) + 1), recorded)
        record.assign(tuple(args), record.kwargs)

    @rule(number=NUMBERS, key=st.sampled_from("abc"), shape=SHAPES)
    def update_a_keyword(self, number, key, shape):
        real, recorded = self.fill(shape)
        self.node(number).update_kwarg(key, real)
        record = self.pick(number)
        record.assign(record.args, {**record.kwargs, key: recorded})

    @rule(number=NUMBERS, old=NUMBERS, new=NUMBERS)
    def replace_an_input(self, number, old, new):
        record = self.pick(number)
        old_record = record.inputs()[old % len(record.inputs())] if record.inputs() else self.pick(old)
        self.node(number).replace_input_with(self.node_of[old_record], self.node(new))
        record.assign(*record.replaced(old_record, self.pick(new)))

    @rule(number=NUMBERS, new=NUMBERS, mask=st.none() | st.integers(0, 15))
    def replace_all_uses(self, number, new, mask):
        record, replacement = self.pick(number), self.pick(new)
        users = [user for place, user in enumerate(record.users) if mask is None or mask >> place % 4 & 1]
        chosen = [self.node_of[user] for user in users]
        asked = None if mask is None else (lambda user: user in chosen)
        assert self.node(number).replace_all_uses_with(self.node_of[replacement], asked) == chosen
        for user in users:
            user.assign(*user.replaced(record, replacement))

    # -- order

    @precondition(lambda self: len(self.records) > 2)
    @rule(number=NUMBERS)
    def erase(self, number):
        unused = [record for record in self.records if not record.users]
        if not unused:
            return
        self._erase(unused[number % len(unused)])

    @rule(number=NUMBERS, before=st.booleans())
    def erase_where_nodes_are_inserted(self, number, before):
        record = self._create(number, [], {})
        (self.graph.inserting_before if before else self.graph.inserting_after)(self.node_of[record])
        self.point = record, before
        self._erase(record)
        self._create(number, [], {})

    @rule(number=NUMBERS, before=st.booleans(), which=st.integers(0, 2))
    def erase_inside_contexts(self, number, before, which):
        outer = self._create(number, [], {}), before
        inner = self._create(number, [], {}), not before
        with self._at(outer):
            with self._at(inner):
                gone = (outer, inner, inner)[which][0]
                outer, inner = self._beside(outer, gone), self._beside(inner, gone)
                self._erase(gone)
                self._create(number, [], {}, inner)
            if which == 2 and outer[0] is not None and not outer[0].users:
                gone = outer[0]
                outer = self._beside(outer, gone)
                self._erase(gone)
            self._create(number, [], {}, outer)

    @precondition(lambda self: self.cursors)
    @rule(number=NUMBERS, anchor=NUMBERS, before=st.booleans(), erases=st.booleans())
    def take_away_where_an_iteration_stands(self, number, anchor, before, erases):
        cursor = self.cursors[number % len(self.cursors)]
        index = cursor.at if cursor.backward else cursor.at - 1
        if not cursor.done and 0 <= index < len(self.records):
            record = self.records[index]
            if erases and not record.users and len(self.records) > 2:
                self._erase(record)
            else:
                self._move(record, self.pick(anchor), before)
        self.advance_an_iteration(number)

    @rule(number=NUMBERS, anchor=NUMBERS, before=st.booleans())
    def move(self, number, anchor, before):
        self._move(self.pick(number), self.pick(anchor), before)

    def _move(self, record, other, before):
        (self.node_of[other].prepend if before else self.node_of[other].append)(self.node_of[record])
        if record is other:
            return
        rest = [one for one in self.records if one is not record]
        index = rest.index(other) + (not before)
        if self.records.index(record) != index:  # Else it stands there already.
            self._remove(record)
            self._insert(index, record)

    # -- iterations that go on meanwhile

    @rule(backward=st.booleans())
    def begin_an_iteration(self, backward):
        nodes = reversed(self.graph.nodes) if backward else iter(self.graph.nodes)
        self.cursors.append(Cursor(nodes, len(self.records) if backward else 0, backward))
        self.advance_an_iteration(len(self.cursors) - 1)  # An iteration begins with its first step.

    @precondition(lambda self: self.cursors)
    @rule(number=NUMBERS)
    def advance_an_iteration(self, number):
        cursor = self.cursors[number % len(self.cursors)]
        expected = None
        if not cursor.done:
            cursor.done = cursor.at == (0 if cursor.backward else len(self.records))
            cursor.at -= cursor.backward and not cursor.done
            if not cursor.done:
                expected = self.node_of[self.records[cursor.at]]
            cursor.at += not cursor.backward and not cursor.done
        assert next(cursor.nodes, None) is expected

    @precondition(lambda self: self.cursors)
    @rule(number=NUMBERS)
    def abandon_an_iteration(self, number):
        self.cursors.pop(number % len(self.cursors)).nodes.close()

    # -- whole graphs

    @rule(by_pickle=st.booleans())
    def go_on_with_a_copy(self, by_pickle):
        if by_pickle and list(find_structure_faults(self.graph)):
            return  # Only a graph whose nodes come before their uses has a data form.
        twin = pickle.loads(pickle.dumps(self.graph)) if by_pickle else copy.deepcopy(self.graph)
        assert not set(twin.nodes) & set(self.graph.nodes)
        assert [node.name for node in twin.nodes] == [node.name for node in self.graph.nodes]
        self.left_behind.append((self.graph, self._shown()))
        self.gone.append(self.node(0))
        if by_pickle:
            for record in self.records:  # Users are found anew, in the order of the graph.
                record.users = [user for user in self.records if record in user.inputs()]
        self.node_of = dict(zip(self.records, twin.nodes, strict=True))
        self.record_of = {node: record for record, node in self.node_of.items()}
        self.cursors.clear()
        self.point = None, True
        self._adopt(twin)
        self.seen = (twin.version, self._shown())

    # -- what is refused leaves everything as it was

    @precondition(lambda self: any(record.users for record in self.records))
    @rule(number=NUMBERS)
    def erasing_a_used_node_is_refused(self, number):
        used = [record for record in self.records if record.users]
        self._refused(NodeInUseError, self.graph.erase_node, self.node_of[used[number % len(used)]])

    @precondition(lambda self: self.gone)
    @rule(number=NUMBERS, which=NUMBERS, shape=SHAPES)
    def a_foreign_node_is_refused(self, number, which, shape):
        node, foreign = self.node(number), self.gone[which % len(self.gone)]
        args = (self.fill(shape)[0], [foreign])
        attempts = [
            lambda: setattr(node, "args", args),
            lambda: setattr(node, "kwargs", {"k": args}),
            lambda: node.update_kwarg("k", foreign),
            lambda: node.insert_arg(0, foreign),
            lambda: node.replace_all_uses_with(foreign),
            lambda: node.append(foreign),
            lambda: self.graph.create_node("call_function", print, args),
            lambda: self.graph.inserting_before(foreign),
        ]
        self._refused(ForeignNodeError, attempts[which % len(attempts)])

    @rule(number=NUMBERS, which=NUMBERS)
    def a_wrong_argument_is_refused(self, number, which):
        node = self.node(number)
        attempts = [
            (InvalidArgumentError, lambda: setattr(node, "args", ({node: 1},))),
            (InvalidArgumentError, lambda: setattr(node, "args", (node, {node}))),
            (InvalidArgumentError, lambda: setattr(node, "kwargs", {1: node})),
            (IndexError, lambda: node.update_arg(len(node.args), node)),
            (IndexError, lambda: node.insert_arg(len(node.args) + 1, node)),
        ]
        self._refused(*attempts[which % len(attempts)])

    def _refused(self, error, attempt, *args):
        names = [node.name for node in self.graph.nodes]
        with pytest.raises(error):
            attempt(*args)
        assert [node.name for node in self.graph.nodes] == names
        assert self.graph.version == self.seen[0]

    # -- what must hold after every step

    def _shown(self, graph=None):
        graph = graph or self.graph
        return [
            (node.name, node.target, str(node.args), str(node.kwargs), list(node.users))
            for node in graph.nodes
        ]

    @invariant()
    def the_order_is_that_of_the_list(self):
        nodes = list(self.graph.nodes)
        assert nodes == [self.node_of[record] for record in self.records]
        assert list(reversed(self.graph.nodes)) == nodes[::-1]
        assert len(self.graph.nodes) == len(nodes)
        assert self.alive == set(nodes)
        if self.numbered:
            assert all(one < other and not other < one for one, other in itertools.pairwise(nodes))

    @invariant()
    def arguments_and_uses_are_those_of_the_records(self):
        for record in self.records:
            node = self.node_of[record]
            assert self.recorded(node.args) == record.args
            assert self.recorded(dict(node.kwargs)) == record.kwargs
            assert [self.record_of[used] for used in node.all_input_nodes] == record.inputs()
            assert [self.record_of[user] for user in node.users] == record.users

    @invariant()
    def names_are_unique_and_nodes_are_found(self):
        nodes = list(self.graph.nodes)
        assert len({node.name for node in nodes}) == len(nodes)
        if self.indexed:
            for target in TARGETS:
                op = "call_method" if isinstance(target, str) else "call_function"
                assert self.graph.find_nodes(op=op, target=target) == [
                    node for node in nodes if node.target == target
                ]

    @invariant()
    def the_version_grows_with_what_is_seen(self):
        version, shown = self.seen
        self.seen = (self.graph.version, self._shown())
        assert self.seen[1] == shown or self.graph.version > version

    @invariant()
    def nothing_else_is_wrong_and_copies_are_apart(self):
        faults = list(find_structure_faults(self.graph))
        assert [fault for fault in faults if "before it is computed" not in fault] == []
        assert all(self._shown(graph) == shown for graph, shown in self.left_behind)


TestRandomEdits = Edits.TestCase
TestRandomEdits.settings = hypothesis.settings(stateful_step_count=40)

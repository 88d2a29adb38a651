"""Nodes: arguments, uses, names, positions."""

from __future__ import annotations

import collections
import copy
import operator
import typing

import pytest

from fxplug.errors import ForeignNodeError, GraphError, InvalidArgumentError
from fxplug.ir import Graph, Node, immutable_dict, immutable_list, map_arg


class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


ERASED = (
    "Cannot use node '{name}' as an argument: it was erased from its graph. Use a node that still stands in the "
    "graph. [FXP-G002]"
)
FOREIGN = (
    "Cannot use node '{name}' as an argument: it belongs to another graph. Copy it first, for example with "
    "graph.node_copy(...) or graph.graph_copy(...). [FXP-G002]"
)


@pytest.fixture
def graph():
    return Graph()


@pytest.fixture
def nodes(graph):
    """Three inputs and a call of the first two."""
    a, b, c = (graph.placeholder(name) for name in "abc")
    call = graph.call_function(operator.add, (a, b))
    return a, b, c, call


def snapshot(graph):
    return [
        (node, node.name, node.op, node.target, node.args, node.kwargs, list(node.users))
        for node in graph.nodes
    ]


# -- arguments and use-def chains


def test_a_new_node_is_a_user_of_every_node_in_its_arguments_once(graph, nodes):
    a, b, c, _ = nodes

    call = graph.call_function(
        print, ([c, {"k": (a, c)}], slice(None, b), Point(a, 1)), {"key": [b], "other": {"x": a}}
    )

    assert call.all_input_nodes == [c, a, b]
    assert all(list(node.users).count(call) == 1 for node in (a, b, c))
    graph.lint()


def test_lists_and_dicts_in_arguments_become_immutable(graph, nodes):
    a = nodes[0]
    values, items = [a, [1]], {"k": [2]}

    call = graph.call_function(print, (values, items), {"key": values})
    values.append(3)
    items["j"] = 4

    assert call.args == ([a, [1]], {"k": [2]})
    assert call.kwargs == {"key": [a, [1]]}
    assert type(call.args[0]) is type(call.args[0][1]) is type(call.kwargs["key"]) is immutable_list
    assert type(call.args[1]) is type(call.kwargs) is immutable_dict
    with pytest.raises(
        InvalidArgumentError, match=r"immutable_dict is immutable.* node\.args or node\.kwargs"
    ):
        call.kwargs["key"] = 1


def test_a_mapping_of_keywords_that_changes_later_does_not_change_the_node(graph, nodes):
    keywords = {"key": nodes[0]}

    call = graph.call_function(print, (), keywords)
    keywords["other"] = nodes[1]

    assert call.kwargs == {"key": nodes[0]}
    assert call not in nodes[1].users


ASSIGNMENTS = {
    "args": lambda call, value: setattr(call, "args", (value,)),
    "kwargs": lambda call, value: setattr(call, "kwargs", {"k": [value]}),
    "update_arg": lambda call, value: call.update_arg(1, value),
    "update_arg from the end": lambda call, value: call.update_arg(-1, value),
    "update_kwarg": lambda call, value: call.update_kwarg("key", (1, value)),
    "insert_arg": lambda call, value: call.insert_arg(1, slice(value)),
    "replace_input_with": lambda call, value: call.replace_input_with(call.all_input_nodes[1], value),
    "replace_all_uses_with": lambda call, value: call.all_input_nodes[1].replace_all_uses_with(value),
}


@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=list(ASSIGNMENTS))
def test_every_assignment_keeps_users_and_inputs_right(graph, nodes, assign):
    a, b, c, _ = nodes
    call = graph.call_function(print, (a, b))
    version = graph.version

    assign(call, c)

    assert call in c.users
    assert c in call.all_input_nodes
    for node in (a, b):
        assert (call in node.users) == (node in call.all_input_nodes)
    assert graph.version > version
    graph.lint()


@pytest.mark.parametrize("assign", ASSIGNMENTS.values(), ids=list(ASSIGNMENTS))
@pytest.mark.parametrize("kind", ["foreign", "erased"])
def test_a_foreign_or_erased_node_is_refused_at_once_and_nothing_changes(graph, nodes, assign, kind):
    a, b, _, _ = nodes
    call = graph.call_function(print, (a, b))
    if kind == "foreign":
        stranger, text = Graph().placeholder("stranger"), FOREIGN
    else:
        stranger, text = graph.placeholder("stranger"), ERASED
        graph.erase_node(stranger)
    before, version = snapshot(graph), graph.version

    with pytest.raises(ForeignNodeError) as caught:
        assign(call, stranger)

    assert str(caught.value) == text.format(name="stranger")
    assert snapshot(graph) == before
    assert graph.version == version
    assert not stranger.users


@pytest.mark.parametrize(
    "place",
    [lambda node: (node,), lambda node: ([{"k": (node,)}],), lambda node: (1, slice(node))],
    ids=["bare", "nested", "slice"],
)
def test_a_foreign_node_is_refused_when_a_node_is_made_and_nothing_changes(graph, nodes, place):
    stranger = Graph().placeholder("stranger")
    before, version = snapshot(graph), graph.version

    with pytest.raises(ForeignNodeError):
        graph.call_function(operator.add, (nodes[0], *place(stranger)))
    with pytest.raises(ForeignNodeError):
        graph.call_function(operator.add, (), {"key": place(stranger)})

    assert snapshot(graph) == before
    assert graph.version == version
    assert not stranger.users


def test_a_refused_node_does_not_use_up_a_name(graph, nodes):
    with pytest.raises(ForeignNodeError):
        graph.call_function(operator.sub, (Graph().placeholder("stranger"),))

    assert graph.call_function(operator.sub, (nodes[0], 1)).name == "sub"


@pytest.mark.parametrize("attribute", ["args", "kwargs"])
def test_an_erased_node_takes_no_arguments(graph, nodes, attribute):
    a, _, _, call = nodes
    graph.erase_node(call)

    with pytest.raises(GraphError):
        setattr(call, attribute, (a,) if attribute == "args" else {"k": a})

    assert not a.users


def test_an_erased_node_uses_nothing(graph, nodes):
    a, b, _, call = nodes

    graph.erase_node(call)

    assert (call.args, call.kwargs, call.all_input_nodes) == ((), {}, [])
    assert not a.users
    assert not b.users


def test_a_node_may_use_itself_for_a_moment(graph, nodes):
    _a, _, _, call = nodes

    wrapped = graph.call_function(operator.neg, (call,))
    call.replace_all_uses_with(wrapped)
    assert wrapped.args == (wrapped,)
    assert list(wrapped.users) == [wrapped]
    wrapped.update_arg(0, call)

    assert not wrapped.users
    assert list(call.users) == [wrapped]
    graph.lint()


def test_users_are_in_the_order_in_which_they_started_to_use(graph, nodes):
    a, b, c, call = nodes
    second = graph.call_function(operator.sub, (a, 1))

    call.args = (c, a)

    assert list(a.users) == [call, second]
    call.args = (c, c)
    call.args = (a, b)
    assert list(a.users) == [second, call]


def test_many_inputs_are_released_as_few_are(graph):
    inputs = [graph.placeholder(f"p{number}") for number in range(40)]
    call = graph.call_function(print, tuple(inputs))
    later = graph.call_function(print, tuple(inputs))

    call.args = tuple(inputs[10:])

    for number, node in enumerate(inputs):
        assert list(node.users) == ([call, later] if number >= 10 else [later])
    graph.lint()


def test_update_and_insert_refuse_places_that_do_not_exist(nodes):
    call = nodes[3]
    before = call.args

    with pytest.raises(IndexError):
        call.update_arg(2, 1)
    for index in (3, -1):
        with pytest.raises(IndexError) as caught:
            call.insert_arg(index, 1)
        assert str(caught.value) == f"Cannot insert an argument of node 'add' at {index}: it has 2."

    assert call.args == before


def test_arguments_are_inserted_at_both_ends(nodes):
    call = nodes[3]

    call.insert_arg(0, 0)
    call.insert_arg(3, [9])

    assert call.args == (0, nodes[0], nodes[1], [9])


@pytest.mark.parametrize("key", [1, None, b"k", ("k",)], ids=repr)
def test_a_keyword_must_be_text(graph, nodes, key):
    with pytest.raises(InvalidArgumentError) as caught:
        graph.call_function(print, (nodes[0],), {key: 1})

    assert (
        str(caught.value)
        == f"Cannot use {key!r} as the name of a keyword argument: it must be a string. [FXP-G003]"
    )
    with pytest.raises(InvalidArgumentError):
        nodes[3].kwargs = {key: 1}


@pytest.mark.parametrize("args", ["node", "abc", {"k": 1}, 3], ids=["node", "text", "dict", "int"])
def test_positional_arguments_must_be_a_tuple_or_a_list(graph, nodes, args):
    args = nodes[0] if args == "node" else args

    with pytest.raises(InvalidArgumentError):
        graph.call_function(print, args)


def test_keyword_arguments_must_be_a_mapping(graph):
    with pytest.raises(InvalidArgumentError):
        graph.call_function(print, (), ["key"])


@pytest.mark.parametrize(
    "hide",
    [
        lambda node: {node: 1},
        lambda node: {(1, node): 1},
        lambda node: {node},
        lambda node: frozenset({node}),
    ],
    ids=["key", "tuple-key", "set", "frozenset"],
)
def test_a_node_where_no_use_is_counted_is_refused(graph, nodes, hide):
    with pytest.raises(InvalidArgumentError):
        graph.call_function(print, (hide(nodes[0]),))


# -- replacing uses


def test_all_uses_are_replaced_and_the_changed_users_returned(graph, nodes):
    a, b, c, call = nodes
    second = graph.call_function(print, ([a],), {"k": {"x": a}})

    changed = a.replace_all_uses_with(c)

    assert changed == [call, second]
    assert not a.users
    assert call.args == (c, b)
    assert (second.args, second.kwargs) == (([c],), {"k": {"x": c}})
    graph.lint()


def test_a_callback_chooses_the_users_that_change(graph, nodes):
    a, _, c, call = nodes
    second = graph.call_function(operator.neg, (a,))
    asked = []

    def choose(user):
        asked.append(user)
        return user is second

    changed = a.replace_all_uses_with(c, delete_user_cb=choose)

    assert asked == [call, second]
    assert changed == [second]
    assert list(a.users) == [call]
    assert list(c.users) == [second]


def test_replacing_a_node_by_itself_changes_no_use(graph, nodes):
    a, b, _, call = nodes

    assert a.replace_all_uses_with(a) == [call]

    assert call.args == (a, b)
    assert list(a.users) == [call]


def test_notes_are_handed_on_when_asked(graph, nodes):
    a, _, c, call = nodes
    a.meta["note"] = 1

    a.replace_all_uses_with(c, propagate_meta=True)

    assert c.meta == {"note": 1}
    call.meta["note"] = 2
    with pytest.raises(GraphError) as caught:
        c.replace_all_uses_with(call, propagate_meta=True)
    assert str(caught.value) == (
        "Cannot hand the meta of node 'c' to 'add', which has meta of its own: ['note']. Call without "
        "propagate_meta, or clear the replacement's meta first. [FXP-G000]"
    )


def test_a_refused_replacement_gets_no_notes(nodes):
    stranger = Graph().placeholder("stranger")
    nodes[0].meta["note"] = 1

    with pytest.raises(ForeignNodeError):
        nodes[0].replace_all_uses_with(stranger, propagate_meta=True)

    assert stranger.meta == {}


def test_a_foreign_replacement_is_refused_even_without_users(nodes):
    with pytest.raises(ForeignNodeError):
        nodes[3].replace_all_uses_with(Graph().placeholder("stranger"))


def test_replacing_an_input_that_is_not_used_changes_no_argument(nodes):
    a, b, c, call = nodes

    call.replace_input_with(c, a)

    assert call.args == (a, b)
    assert not c.users


def test_an_input_is_replaced_everywhere_it_stands(graph, nodes):
    a, b, c, _ = nodes
    call = graph.call_function(print, (a, [a, b]), {"k": slice(a)})

    call.replace_input_with(a, c)

    assert call.args == (c, [c, b])
    assert call.kwargs == {"k": slice(c)}
    assert call.all_input_nodes == [c, b]


# -- names, opcodes, targets


def test_a_name_can_be_assigned_and_is_then_taken(graph, nodes):
    call = nodes[3]

    call.name = "total"

    assert call.name == "total"
    assert graph.call_function(operator.add, (call, 1), name="total").name == "total_1"


def test_assigning_a_taken_or_reserved_name_gives_the_next_free_one(nodes):
    _a, b, c, call = nodes

    call.name = "a"
    b.name = "class"
    c.name = "not valid!"

    assert call.name == "a_1"
    assert b.name == "class_1"
    assert c.name == "not_valid_"


def test_assigning_its_own_name_changes_nothing(graph, nodes):
    version = graph.version

    nodes[0].name = "a"

    assert nodes[0].name == "a"
    assert graph.version == version


def test_a_name_given_up_is_free_again(nodes):
    a, b, _, _ = nodes

    a.name = "z"
    b.name = "a"

    assert (a.name, b.name) == ("z", "a")


def test_an_unknown_opcode_is_refused(nodes):
    with pytest.raises(GraphError) as caught:
        nodes[3].op = "call"

    assert str(caught.value).startswith("Cannot set the opcode of node 'add' to 'call'. Use one of (")
    assert nodes[3].op == "call_function"


def test_opcode_and_target_can_be_changed(graph, nodes):
    call = nodes[3]

    call.op = "call_method"
    call.target = "add"

    assert (call.op, call.target) == ("call_method", "add")
    graph.lint()


# -- map_arg


def test_only_nodes_are_mapped(nodes):
    a, b, _, _ = nodes
    seen = []

    mapped = map_arg((a, [1, {"k": b}], slice(a, None), "a"), lambda node: seen.append(node) or node.name)

    assert mapped == ("a", [1, {"k": "b"}], slice("a", None), "a")
    assert seen == [a, b, a]


def test_a_map_needs_a_callable(nodes):
    with pytest.raises(InvalidArgumentError) as caught:
        map_arg(nodes, "name")

    assert str(caught.value) == "Cannot map over an argument with 'name': pass a callable. [FXP-G003]"


def test_a_subclass_of_node_is_a_node(graph, nodes):
    class Special(Node):
        __slots__ = ()

    special = Special(graph, "special", "call_function", operator.neg, (nodes[0],))
    nodes[3].append(special)
    user = graph.call_function(print, ([special],))

    assert list(special.users) == [user]
    assert map_arg(user.args, lambda node: node.name) == (["special"],)


# -- users


def test_users_are_one_table_that_follows_the_graph(graph, nodes):
    a = nodes[0]
    before = a.users
    first = graph.call_function(operator.neg, (a,))
    second = graph.call_function(operator.neg, (a,))
    first.args = (second,)

    assert a.users is before
    assert list(before) == [*before] == [user for user in graph.nodes if a in user.all_input_nodes]
    assert list(second.users) == [first]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("looked_at", [False, True])
def test_users_end_with_the_uses(count, looked_at):
    graph = Graph()
    x, other = graph.placeholder("x"), graph.placeholder("other")
    users = [graph.call_function(operator.neg, (x,)) for _ in range(count)]
    if looked_at:
        assert list(x.users) == users
    for user in users[::2]:
        user.replace_input_with(x, other)
    for user in users[1::2]:
        graph.erase_node(user)

    assert list(x.users) == []
    assert list(other.users) == users[::2]
    graph.lint()
    graph.erase_node(x)


def test_a_node_that_uses_itself_is_its_own_user(graph, nodes):
    call = graph.call_function(operator.neg, (nodes[0],))
    call.args = (call,)

    assert list(call.users) == [call]
    call.args = (nodes[1],)
    assert list(call.users) == []
    assert call in nodes[1].users


def test_users_that_are_assigned_are_kept_as_a_table(graph, nodes):
    a = nodes[0]
    user = graph.call_function(operator.neg, (a,))
    a.users = collections.OrderedDict.fromkeys([user])

    assert type(a.users) is dict
    assert list(a.users) == [user]
    graph.erase_node(user)
    assert not a.users


def test_copies_have_users_of_their_own(graph, nodes):
    graph.output(tuple(nodes[:3]))
    copied = copy.deepcopy(graph)
    names = [[user.name for user in node.users] for node in graph.nodes]

    assert [[user.name for user in node.users] for node in copied.nodes] == names
    assert all(user.graph is copied for node in copied.nodes for user in node.users)


@pytest.mark.parametrize("name", ["dtype", "shape", "tag", "tensor_meta"])
def test_attributes_that_programs_set_are_notes(nodes, name):
    node = nodes[0]
    with pytest.raises(
        AttributeError, match=rf"Cannot set the attribute '{name}' of a node: .*node.meta\['{name}'\]"
    ):
        setattr(node, name, 1)
    with pytest.raises(AttributeError, match=rf"Use node.meta\['{name}'\]"):
        getattr(node, name)
    assert not hasattr(node, name)
    assert not hasattr(Node, name)

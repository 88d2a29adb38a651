"""Graphs: making, erasing and finding nodes, insertion points, versions, observers."""

from __future__ import annotations

import gc
import inspect
import operator
import types
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxplug.errors import ForeignNodeError, GraphError, NodeInUseError
from fxplug.ir import Graph, RegionEntry, immutable_dict


@pytest.fixture
def graph():
    return Graph()


@pytest.fixture
def chain(graph):
    """x, neg(x), neg(neg(x)), output."""
    x = graph.placeholder("x")
    first = graph.call_function(operator.neg, (x,))
    second = graph.call_function(operator.neg, (first,))
    return x, first, second, graph.output(second)


def order(graph):
    return [node.name for node in graph.nodes]


# -- making nodes


def test_each_opcode_has_a_method_that_takes_an_annotation(graph):
    x = graph.placeholder("x", int, 3)
    weight = graph.get_attr("layer.weight", type_expr=float)
    call = graph.call_function(operator.add, (x,), {"b": weight}, bool)
    method = graph.call_method("relu", (call,), {"k": 1}, str, "named")
    module = graph.call_module("layer.0", (method,), {}, bytes)
    output = graph.output([module], type_expr=list)

    assert [(node.op, node.target, node.args, node.kwargs, node.type, node.name) for node in graph.nodes] == [
        ("placeholder", "x", (3,), {}, int, "x"),
        ("get_attr", "layer.weight", (), {}, float, "layer_weight"),
        ("call_function", operator.add, (x,), {"b": weight}, bool, "add"),
        ("call_method", "relu", (call,), {"k": 1}, str, "named"),
        ("call_module", "layer.0", (method,), {}, bytes, "layer_0"),
        ("output", "output", ([module],), {}, list, "output"),
    ]
    assert graph.output_node() is output
    assert all(node.graph is graph for node in graph.nodes)


def test_a_placeholder_without_default_has_no_argument(graph):
    assert graph.placeholder("x").args == ()
    assert graph.placeholder("y", default_value=None).args == (None,)


@pytest.mark.parametrize(
    ("default", "args"), [(..., (...,)), (inspect.Signature.empty, ())], ids=["ellipsis", "empty"]
)
def test_only_the_empty_mark_of_inspect_means_no_default(graph, default, args):
    assert graph.placeholder("x", default_value=default).args == args


def test_an_unknown_opcode_is_refused(graph):
    with pytest.raises(GraphError) as caught:
        graph.create_node("call", operator.add)

    assert str(caught.value) == (
        "Cannot create a node with opcode 'call'. Use one of placeholder, get_attr, call_function, call_method, "
        "call_module, output. [FXP-G000]"
    )


@pytest.mark.parametrize("op", ["placeholder", "get_attr", "call_method", "call_module", "output"])
@pytest.mark.parametrize("name", [None, "named"])
def test_only_functions_may_have_a_target_that_is_no_text(graph, op, name):
    with pytest.raises(GraphError) as caught:
        graph.create_node(op, operator.add, name=name)

    assert str(caught.value).startswith(
        f"Cannot create a {op} node for <built-in function add>: its target must"
    )
    assert not graph.nodes


@pytest.mark.parametrize("name", [None, "named"])
def test_a_function_must_be_callable(graph, name):
    with pytest.raises(GraphError) as caught:
        graph.create_node("call_function", "add", name=name)

    assert str(caught.value) == (
        "Cannot create a call_function node for 'add': its target must be callable. Use call_method or call_module "
        "for a name. [FXP-G000]"
    )


@pytest.mark.parametrize(
    ("good", "bad", "target"),
    [
        ("call_method", "call_function", "add"),
        ("call_function", "call_module", operator.add),
        ("call_function", "placeholder", operator.add),
    ],
    ids=["text-called", "function-as-path", "function-as-parameter"],
)
def test_a_target_is_checked_for_each_opcode_anew(graph, good, bad, target):
    x = graph.placeholder("x")
    graph.create_node(good, target, (x,))

    with pytest.raises(GraphError):
        graph.create_node(bad, target, (x,))


def test_names_are_made_from_targets(graph):
    class BatchNorm:
        def __call__(self):
            pass

    assert graph.placeholder("x").name == "x"
    assert graph.call_function(operator.add, ()).name == "add"
    assert graph.call_function(operator.add, ()).name == "add_1"
    assert graph.call_method("__getitem__", ()).name == "getitem"
    assert graph.call_module("Features.0.convBn", ()).name == "features_0_conv_bn"
    assert graph.call_function(BatchNorm(), ()).name == "batch_norm"
    assert graph.call_function(lambda: 0, ()).name == "_lambda_"
    assert graph.call_function(int, ()).name == "int_1"
    assert graph.placeholder("class").name == "class_1"
    assert graph.placeholder("torch").name == "torch_1"
    assert graph.placeholder("é").name == "_"
    assert graph.call_function(operator.add, (), name="add").name == "add_2"


def test_a_callable_that_cannot_be_hashed_may_be_a_target(graph):
    class Unhashable:
        __hash__ = None

        def __call__(self):
            pass

    target = Unhashable()

    call = graph.call_function(target, ())

    assert call.name == "unhashable"
    assert graph.find_nodes(op="call_function", target=target) == [call]
    assert graph.find_nodes(op="call_function", target=Unhashable()) == []


# -- erasing


def test_a_node_in_use_is_not_erased(graph, chain):
    _x, first, _second, _output = chain
    graph.call_function(operator.add, (first, first))
    version = graph.version

    with pytest.raises(NodeInUseError) as caught:
        graph.erase_node(first)

    assert str(caught.value) == (
        "Cannot erase node 'neg': it is still used by 'neg_1' and 'add'. Replace those uses first "
        "(node.replace_all_uses_with(...)). [FXP-G001]"
    )
    assert order(graph) == ["x", "neg", "neg_1", "output", "add"]
    assert graph.version == version


def test_an_erased_node_is_gone_and_no_longer_a_user(graph, chain):
    _x, first, second, output = chain

    graph.erase_node(output)
    graph.erase_node(second)

    assert order(graph) == ["x", "neg"]
    assert len(graph.nodes) == 2
    assert not first.users
    graph.lint()


def test_erasing_twice_warns_and_does_nothing(graph, chain):
    graph.erase_node(chain[3])
    version = graph.version

    with pytest.warns(UserWarning, match=r"^Node 'output' was erased before; nothing is done\.$"):
        graph.erase_node(chain[3])

    assert graph.version == version


def test_a_node_of_another_graph_is_not_erased(graph):
    stranger = Graph().placeholder("stranger")

    with pytest.raises(ForeignNodeError) as caught:
        graph.erase_node(stranger)

    assert str(caught.value) == "Cannot erase node 'stranger': it belongs to another graph. [FXP-G002]"
    assert list(stranger.graph.nodes) == [stranger]


# -- insertion points


def test_nodes_are_made_at_the_end(graph, chain):
    graph.call_function(operator.pos, (chain[0],))

    assert order(graph)[-1] == "pos"


def test_inserting_before_keeps_the_order_and_ends_with_the_context(graph, chain):
    x, first, _, _ = chain

    with graph.inserting_before(first):
        graph.call_function(operator.pos, (x,), name="p")
        graph.call_function(operator.pos, (x,), name="q")
    graph.call_function(operator.pos, (x,), name="r")

    assert order(graph) == ["x", "p", "q", "neg", "neg_1", "output", "r"]


def test_inserting_after_puts_each_node_directly_behind(graph, chain):
    x, first, _, _ = chain

    with graph.inserting_after(first):
        graph.call_function(operator.pos, (x,), name="p")
        graph.call_function(operator.pos, (x,), name="q")

    assert order(graph) == ["x", "neg", "q", "p", "neg_1", "output"]


def test_the_ends_of_the_graph_are_insertion_points(graph, chain):
    with graph.inserting_before(chain[-1].next):
        graph.placeholder("p")
        graph.placeholder("q")
    with graph.inserting_after(chain[0].prev):
        graph.placeholder("r")
    graph.placeholder("s")

    assert order(graph) == ["r", "x", "neg", "neg_1", "output", "p", "q", "s"]


def test_without_a_node_the_points_are_the_start_and_the_end(graph, chain):
    with graph.inserting_before():
        graph.placeholder("p")
        graph.placeholder("q")
    with graph.inserting_before(chain[0]), graph.inserting_after():
        graph.placeholder("r")
        graph.placeholder("s")

    assert order(graph)[-2:] == ["r", "s"]
    assert sorted(order(graph)[:2]) == ["p", "q"]


def test_an_insertion_point_that_is_no_context_stays(graph, chain):
    graph.inserting_before(chain[1])
    graph.placeholder("p")
    graph.placeholder("q")

    assert order(graph) == ["x", "p", "q", "neg", "neg_1", "output"]


def test_insertion_points_nest(graph, chain):
    _x, first, second, output = chain

    with graph.inserting_before(first):
        graph.placeholder("p")
        with graph.inserting_after(second):
            graph.placeholder("q")
            with graph.inserting_before(output):
                graph.placeholder("r")
            graph.placeholder("s")
        graph.placeholder("t")
    graph.placeholder("u")

    assert order(graph) == ["x", "p", "t", "neg", "neg_1", "s", "q", "r", "output", "u"]


def test_an_exception_ends_an_insertion_point(graph, chain):
    def fail():
        with graph.inserting_before(chain[0]), graph.inserting_after(chain[1]):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    graph.placeholder("p")

    assert order(graph)[-1] == "p"


def test_an_insertion_point_follows_a_node_that_is_moved(graph, chain):
    _x, _first, second, output = chain

    with graph.inserting_before(second):
        output.append(second)
        graph.placeholder("p")

    assert order(graph) == ["x", "neg", "output", "p", "neg_1"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_an_insertion_point_stays_in_place_when_its_node_is_erased(graph, chain, before):
    x, _first, second, _output = chain
    second.replace_all_uses_with(x)

    with graph.inserting_before(second) if before else graph.inserting_after(second):
        graph.erase_node(second)
        graph.placeholder("p")

    assert order(graph) == ["x", "neg", "p", "output"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_an_insertion_point_at_the_edge_survives_its_node(graph, before):
    a, b = graph.placeholder("a"), graph.placeholder("b")
    with graph.inserting_before(b) if before else graph.inserting_after(a):
        graph.erase_node(b if before else a)
        graph.placeholder("p")

    assert order(graph) == (["a", "p"] if before else ["p", "b"])


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_an_outer_insertion_point_survives_its_node(graph, chain, no_hang, before):
    x, first, second, _output = chain
    second.replace_all_uses_with(x)

    with no_hang():
        with graph.inserting_before(second) if before else graph.inserting_after(second):
            with graph.inserting_before(first):
                graph.erase_node(second)
            graph.placeholder("p")

        assert order(graph) == ["x", "neg", "p", "output"]
        assert len(graph.nodes) == 4


@pytest.mark.parametrize("method", ["inserting_before", "inserting_after"])
def test_a_node_that_does_not_stand_here_is_no_insertion_point(graph, chain, method):
    erased = graph.placeholder("gone")
    graph.erase_node(erased)

    for node in (Graph().placeholder("stranger"), erased):
        with pytest.raises(ForeignNodeError) as caught:
            getattr(graph, method)(node)
        assert str(caught.value) == (
            f"Cannot insert next to node {node.name!r}: it does not stand in this graph. [FXP-G002]"
        )

    graph.placeholder("p")
    assert order(graph)[-1] == "p"


# -- finding nodes


def test_nodes_are_found_by_opcode_and_target_in_order(graph, chain):
    _x, first, second, output = chain

    assert graph.find_nodes(op="call_function", target=operator.neg) == [first, second]
    assert graph.find_nodes(op="call_function") == [first, second]
    assert graph.find_nodes(op="call_function", target=operator.add) == []
    assert graph.find_nodes(op="call_method", target="neg") == []
    assert graph.find_nodes(op="output") == [output]
    first.prepend(second)
    assert graph.find_nodes(op="call_function") == [second, first]
    assert set(graph.find_nodes(op="call_function", sort=False)) == {first, second}


def test_found_nodes_follow_edits(graph, chain):
    _x, first, second, output = chain
    assert graph.find_nodes(op="call_method") == []  # The index is made here.

    with graph.inserting_before(second):
        method = graph.call_method("neg", (first,))
    second.op, second.target = "call_method", "neg"
    first.target = operator.pos
    graph.erase_node(output)

    assert graph.find_nodes(op="call_method", target="neg") == [method, second]
    assert graph.find_nodes(op="call_function", target=operator.pos) == [first]
    assert graph.find_nodes(op="call_function", target=operator.neg) == []
    assert graph.find_nodes(op="output") == []


def test_a_found_list_is_the_callers_own(graph, chain):
    graph.find_nodes(op="call_function", target=operator.neg).clear()

    assert len(graph.find_nodes(op="call_function", target=operator.neg)) == 2


@pytest.mark.parametrize("attribute", ["op", "target"])
def test_an_erased_node_is_never_found(graph, chain, attribute):
    output = chain[3]
    graph.find_nodes(op="output")
    graph.erase_node(output)

    if attribute == "op":
        output.op = "call_method"
    else:
        output.target = "other"

    assert graph.find_nodes(op="call_method") == graph.find_nodes(op="output") == []


def test_the_output_is_found_or_said_to_be_missing(graph):
    with pytest.raises(GraphError) as caught:
        graph.output_node()
    assert str(caught.value) == (
        "Cannot find the output: the graph has no output node. Make one with graph.output(...). [FXP-G000]"
    )

    output = graph.output(None)
    graph.placeholder("late")

    assert graph.output_node() is output


# -- version and observers

EDITS = {
    "create": lambda graph, nodes: graph.placeholder("p"),
    "erase": lambda graph, nodes: graph.erase_node(nodes[3]),
    "args": lambda graph, nodes: setattr(nodes[1], "args", (nodes[0], 1)),
    "kwargs": lambda graph, nodes: setattr(nodes[1], "kwargs", {"k": 1}),
    "update_arg": lambda graph, nodes: nodes[1].update_arg(0, 1),
    "update_kwarg": lambda graph, nodes: nodes[1].update_kwarg("k", 1),
    "insert_arg": lambda graph, nodes: nodes[1].insert_arg(0, 1),
    "replace_input_with": lambda graph, nodes: nodes[2].replace_input_with(nodes[1], nodes[0]),
    "replace_all_uses_with": lambda graph, nodes: nodes[1].replace_all_uses_with(nodes[0]),
    "name": lambda graph, nodes: setattr(nodes[1], "name", "z"),
    "op": lambda graph, nodes: setattr(nodes[1], "op", "call_method"),
    "target": lambda graph, nodes: setattr(nodes[1], "target", operator.pos),
    "type": lambda graph, nodes: setattr(nodes[1], "type", int),
    "region": lambda graph, nodes: setattr(nodes[1], "region", [RegionEntry(open)]),
    "prepend": lambda graph, nodes: nodes[1].prepend(nodes[2]),
    "append": lambda graph, nodes: nodes[2].append(nodes[0]),
    "set_codegen": lambda graph, nodes: graph.set_codegen(object()),
    "node_copy": lambda graph, nodes: graph.node_copy(nodes[1]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_every_kind_of_edit_makes_the_version_grow(graph, chain, edit):
    version = graph.version

    edit(graph, chain)

    assert graph.version > version


def test_changing_which_parameters_are_keyword_only_makes_the_version_grow(graph):
    version = graph.version

    graph.keyword_only = frozenset({"x"})

    assert graph.version > version


def test_reading_leaves_the_version(graph, chain):
    version = graph.version

    for node in graph.nodes:
        str(node.format_node())
        assert node.meta == {}
        node.meta["note"] = 1
    graph.find_nodes(op="output")
    graph.lint()
    str(graph)
    graph.python_code()

    assert graph.version == version


def test_observers_hear_of_nodes_made_changed_and_erased(graph, chain):
    events = []
    graph.observers.append(lambda event, node: events.append((event, node)))

    call = graph.call_function(operator.add, (chain[0], 1))
    call.args = (chain[0], 2)
    call.name = "total"
    call.target = operator.sub
    graph.erase_node(call)

    assert events == [("created", call), *[("changed", call)] * 3, ("erased", call)]


def test_an_observer_sees_a_new_node_in_place_and_an_erased_one_gone(graph, chain):
    seen = []
    graph.observers.append(lambda event, node: seen.append((event, node in list(graph.nodes), node.args)))

    call = graph.call_function(operator.add, (chain[0], 1))
    graph.erase_node(call)

    assert seen == [("created", True, (chain[0], 1)), ("erased", False, ())]


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("args", (1,)),
        ("kwargs", {"k": 1}),
        ("name", "z"),
        ("op", "call_method"),
        ("target", operator.pos),
        ("type", int),
        ("region", (RegionEntry(open),)),
    ],
    ids=["args", "kwargs", "name", "op", "target", "type", "region"],
)
def test_an_observer_sees_a_change_that_was_made(graph, chain, attribute, value):
    seen = []
    version = graph.version
    graph.observers.append(
        lambda event, node: seen.append((getattr(node, attribute), graph.version > version))
    )

    setattr(chain[1], attribute, value)

    assert seen == [(value, True)]


# -- what belongs to the graph


def test_the_owning_module_is_held_weakly(graph):
    class Module:
        pass

    module = Module()
    graph.owning_module = module
    assert graph.owning_module is module

    gone = weakref.ref(module)
    del module

    assert gone() is None
    assert graph.owning_module is None


def test_the_representation_counts_nodes(graph, chain):
    assert repr(graph) == f"<Graph with 4 nodes, version {graph.version}>"


def test_an_abandoned_graph_is_collected(graph):
    inner = Graph()
    gone = weakref.ref(inner)
    inner.placeholder("x")
    del inner
    gc.collect()

    assert gone() is None


# -- dead code in graphs that are values


def held(graph):
    """Return what a graph takes as a module with a graph of its own."""
    return types.SimpleNamespace(graph=graph)


def dead(owner=None):
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(operator.neg, (x,), name="dead")
    graph.output(x)
    if owner is not None:
        graph.owning_module = owner
    return graph


class Root:
    pass


def never_impure(node):
    return False


def test_dead_code_in_a_graph_that_is_a_value_is_removed_too():
    root = Root()
    root.branches = types.SimpleNamespace(first=held(dead()), second=held(dead()), third=held(dead()))
    graph = Graph(root)
    used = graph.get_attr("branches.first")
    graph.get_attr("branches.second")  # Nobody takes it.
    graph.output(used)

    assert graph.eliminate_dead_code(never_impure) is True
    assert [len(branch.graph.nodes) for branch in vars(root.branches).values()] == [2, 3, 3]
    assert graph.eliminate_dead_code(never_impure) is False


def test_what_is_no_graph_is_left_alone():
    root = Root()
    root.weight = types.SimpleNamespace(graph="none")
    graph = Graph(root)
    graph.output((graph.get_attr("weight"), graph.get_attr("missing.path")))

    assert graph.eliminate_dead_code(never_impure) is False


def test_inputs_and_the_output_stay_whatever_is_said_of_them():
    graph = dead()
    graph.placeholder("unused")

    assert graph.eliminate_dead_code(never_impure) is True
    assert [node.op for node in graph.nodes] == ["placeholder", "output", "placeholder"]


# -- finding nodes by what they call


class Unhashable:
    """A callable that no table takes as a key."""

    __hash__ = None

    def __call__(self, value):
        return value


@pytest.mark.parametrize("is_indexed", [False, True])
def test_nodes_that_call_asks_once_for_each_target_and_keeps_the_order(graph, is_indexed):
    x = graph.placeholder("x")
    odd = Unhashable()
    made = [
        graph.call_function(operator.neg, (x,)),
        graph.call_method("neg", (x,)),
        graph.call_function(odd, (x,)),
        graph.call_function(operator.pos, (x,)),
        graph.call_function(operator.neg, (x,)),
    ]
    made[0].append(made[4])
    if is_indexed:
        graph.find_nodes(op="call_method")
    asked = []

    def wanted(op, target):
        asked.append((op, target))
        return target in {operator.neg} if target is not odd else True

    assert graph.nodes_that_call(wanted) == [made[0], made[4], made[2]]
    assert sorted(target is operator.neg for _, target in asked).count(True) == 1
    graph.erase_node(made[4])
    assert graph.nodes_that_call(lambda op, target: op == "call_function" and target is operator.neg) == [
        made[0]
    ]
    assert graph.nodes_that_call(lambda op, target: False) == []


# -- calls of layers, which a trace makes by a short way


@pytest.mark.parametrize(
    "path", ["layer", "layer1.0.conv1", "a.Layer", "__hidden", "__x__", "a b.c", "class", "é.x", "sum"]
)
@pytest.mark.parametrize("op", ["call_module", "get_attr"])
def test_the_short_way_to_a_path_makes_what_the_long_one_makes(op, path):
    graphs = Graph(), Graph()
    made = []
    for graph in graphs:
        x = graph.placeholder("x")
        graph.call_function(print, (x,))
        seen = []
        graph.observers.append(lambda event, node, seen=seen: seen.append((event, node.name)))
        before = graph.version
        with graph.inserting_before(x.next):
            value = x if op == "call_module" else None
            if graph is graphs[0]:
                nodes = [graph._create_at(op, path, value, None) for _ in range(2)]
            else:
                args = () if value is None else (value,)
                nodes = [graph.create_node(op, path, args) for _ in range(2)]
        graph.lint()
        made.append((str(graph), [node.name for node in x.users], seen, graph.version - before))
        made[-1] += (
            [(node.op, node.target, node.args, node.kwargs, node.type, node.meta) for node in nodes],
        )
        assert graph.find_nodes(op=op, target=path) == nodes

    assert str(made[0]) == str(made[1])


_PARTS = st.sampled_from(
    [
        "a",
        "0",
        "1",
        "12",
        "007",
        "_1",
        "a_1",
        "relu_0",
        "1_2",
        "if",
        "none",
        "x_",
        "é",
        "A",
        "1" * 18,
        "1" * 19,
    ]
)


@given(st.lists(st.lists(_PARTS, min_size=1, max_size=3).map(".".join), max_size=12))
def test_the_short_way_gives_the_names_of_the_long_one(paths):
    short, long = Graph(), Graph()
    value, other = short.placeholder("a"), long.placeholder("a")
    made = [short._create_at("call_module", path, value, None).name for path in paths]
    assert made == [long.create_node("call_module", path, (other,)).name for path in paths]
    # The counters are as far as they would be, too.
    wishes = [path.replace(".", "_") for path in paths]
    further = [[graph.call_function(print, (), name=wish).name for wish in wishes] for graph in (short, long)]
    assert further[0] == further[1]


@pytest.mark.parametrize("used", [[], [0], [1], [0, 1], [0, 1, 0]])
def test_the_short_way_to_a_known_call_makes_what_the_long_one_makes(used):
    made = []
    for is_short in (True, False):
        graph = Graph()
        values = [graph.placeholder("x"), graph.placeholder("y")]
        inputs = [values[place] for place in used]
        args = (*inputs[:1], (1, 2), 0.5)
        kwargs = immutable_dict({f"other{place}": value for place, value in enumerate(inputs[1:])})
        for _ in range(2):
            if is_short:
                node = graph._create_alike("call_function", operator.pow, args, kwargs, inputs, None)
            else:
                node = graph.create_node("call_function", operator.pow, args, kwargs)
        graph.output(node)
        graph.lint()
        made.append(
            (str(graph), graph.version, node.all_input_nodes, [list(value.users) for value in values])
        )
        assert len(graph.find_nodes(op="call_function", target=operator.pow)) == 2
        for value in inputs:
            value.replace_all_uses_with(values[0])
        graph.lint()
        made[-1] += (str(graph), node.args, node.kwargs)

    assert str(made[0]) == str(made[1])


def test_the_short_way_to_a_call_refuses_what_is_no_value_of_the_graph():
    graph = Graph()
    erased = graph.placeholder("x")
    graph.erase_node(erased)
    for value in (Graph().placeholder("x"), erased):
        with pytest.raises(ForeignNodeError):
            graph._create_at("call_module", "layer", value, None)
        with pytest.raises(ForeignNodeError):
            graph._create_alike("call_function", abs, (value,), immutable_dict(), [value], None)

    assert len(graph.nodes) == 0


@pytest.mark.parametrize("of_class", [True, False])
def test_who_listens_at_create_node_hears_of_calls_of_layers(monkeypatch, of_class):
    graph, heard, create = Graph(), [], Graph.create_node
    x = graph.placeholder("x")

    def listening(*args, **kwargs):
        heard.append(args[-1] if of_class else args)
        return create(*args, **kwargs) if of_class else create(graph, *args, **kwargs)

    monkeypatch.setattr(Graph if of_class else graph, "create_node", listening)
    assert graph._create_at("call_module", "layer", x, None).target == "layer"
    assert len(heard) == 1
    assert graph._create_alike("call_function", abs, (x,), immutable_dict(), [x], None).target is abs
    assert len(heard) == 2


def test_an_unknown_opcode_is_not_looked_for(graph):
    with pytest.raises(
        GraphError, match=r"Cannot find nodes with opcode 'call_modul'\. Use one of placeholder, get_attr"
    ):
        graph.find_nodes(op="call_modul")
    with pytest.raises(GraphError, match="'call_modul'"):
        graph.find_nodes(op="call_modul", target="linear")

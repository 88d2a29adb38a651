"""The questions of a trace: what others may answer, and that every question is asked."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from fxplug.capture import Proxy, TraceContext, TraceEvent, TracePolicy, Tracer
from fxplug.errors import TraceError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Block()
        self.second = Block()

    def forward(self, x):
        return self.second(self.first(x))


def trace(root, **answers):
    return Tracer(policy=TracePolicy(**answers)).trace(root)


def module_calls(graph):
    return [node.target for node in graph.find_nodes(op="call_module")]


# -- leaves


def test_true_makes_a_leaf():
    assert module_calls(
        trace(Net(), is_leaf_module=lambda module, path, context: path == "second" or None)
    ) == [
        "first.linear",
        "first.act",
        "second",
    ]


def test_false_enters_what_would_be_a_leaf():
    graph = trace(
        Block(), is_leaf_module=lambda module, path, context: not isinstance(module, nn.Linear) and None
    )

    assert module_calls(graph) == ["act"]
    assert [node.target for node in graph.find_nodes(op="get_attr")] == ["linear.weight", "linear.bias"]


def test_none_leaves_the_decision_to_the_tracer():
    asked = []
    graph = trace(Net(), is_leaf_module=lambda *question: asked.append(question))

    assert str(graph) == str(Tracer().trace(Net()))
    assert [path for _, path, _ in asked] == [
        "first",
        "first.linear",
        "first.act",
        "second",
        "second.linear",
        "second.act",
    ]


def test_every_question_comes_with_module_path_and_context():
    asked = []
    net = Net()
    trace(net, is_leaf_module=lambda *question: asked.append(question))

    module, path, context = asked[1]
    assert module is net.first.linear
    assert path == "first.linear"
    assert context == TraceContext(net)
    assert context.mode == "symbolic"


def test_policy_comes_before_the_subclass():
    class Nothing(Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return False

    answers = {"linear": True}
    tracer = Nothing(policy=TracePolicy(is_leaf_module=lambda module, path, context: answers.get(path)))
    assert module_calls(tracer.trace(Block())) == ["linear"]


# -- functions


def test_function_that_the_policy_names_stays_a_call():
    def helper(x):
        return x if x.sum() > 0 else -x

    asked = []

    def functions():
        asked.append(None)
        return [helper]

    graph = trace(lambda x: helper(helper(x)), leaf_functions=functions)
    assert [node.target for node in graph.find_nodes(op="call_function")] == [helper, helper]
    assert len(asked) == 1


# -- arguments


class Meters:
    def __init__(self, length):
        self.length = length


def test_foreign_value_becomes_the_argument_that_the_policy_gives():
    graph = trace(
        lambda x: x * Meters(3.0),
        create_argument=lambda value, context: value.length if isinstance(value, Meters) else None,
    )

    (node,) = graph.find_nodes(op="call_function")
    assert node.args[1] == 3.0


def test_answer_may_hold_traced_values():
    def program(x):
        return x.add(Meters(x * 2))

    graph = trace(program, create_argument=lambda value, context: value.length)
    assert [node.name for node in graph.find_nodes(op="call_method")[0].args] == ["x", "mul"]


def test_policy_is_not_asked_about_what_a_graph_holds_anyway():
    asked = []
    trace(
        lambda x: (x + 1, [2.0, "a", None, ...], {"k": slice(1, 2)}, torch.float32),
        create_argument=asked.append,
    )

    assert asked == []


def test_no_answer_is_an_error():
    with pytest.raises(TraceError, match=r"Cannot record a value of type .*Meters.*fxplug_create_argument"):
        trace(lambda x: x * Meters(1.0), create_argument=lambda value, context: None)


def test_answer_that_is_no_argument_is_an_error():
    with pytest.raises(TraceError):
        trace(lambda x: x * Meters(1.0), create_argument=lambda value, context: value)


# -- proxies


class Loud:
    def shout(self):
        return self * 100


class Quiet:
    def whisper(self):
        return self / 100


def test_mixins_add_behaviour():
    graph = trace(lambda x: x.shout(), proxy_mixins=lambda node, kind, context: (Loud,))

    assert [node.name for node in graph.nodes] == ["x", "mul", "output"]


def test_mixins_are_chained():
    class Louder:
        def shout(self):
            return super().shout() + 1

    def program(x):
        return x.whisper().shout()

    graph = trace(program, proxy_mixins=lambda node, kind, context: (Louder, Loud, Quiet))
    assert [node.name for node in graph.nodes] == ["x", "truediv", "mul", "add", "output"]


def test_mixins_are_asked_for_every_node_with_the_kind_of_its_value():
    asked = []

    def answer(node, kind, context):
        asked.append((node.name, kind))
        return ()

    trace(Block(), proxy_mixins=answer)
    assert asked == [("x", "unknown"), ("linear", "unknown"), ("act", "unknown")]


def test_mixins_may_differ_from_node_to_node():
    kinds = []

    def program(x):
        kinds.append(isinstance(x, Loud))
        kinds.append(isinstance(x + 1, Loud))
        return x

    trace(program, proxy_mixins=lambda node, kind, context: (Loud,) if node.op == "placeholder" else ())
    assert kinds == [True, False]


def test_proxy_with_mixins_still_is_a_proxy():
    seen = []

    def program(x):
        seen.append(x)
        y = torch.relu(x)
        a, b = y.chunk(2)
        return a + b

    graph = trace(program, proxy_mixins=lambda node, kind, context: (Loud,))
    assert isinstance(seen[0], Proxy)
    assert [node.name for node in graph.nodes] == [
        "x",
        "relu",
        "chunk",
        "getitem",
        "getitem_1",
        "add",
        "output",
    ]


def test_mixins_reach_parameters():
    graph = trace(
        ParameterUser(), proxy_mixins=lambda node, kind, context: (Loud,) if node.op == "get_attr" else ()
    )

    assert [node.name for node in graph.nodes] == ["x", "weight", "mul", "add", "output"]


class ParameterUser(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x + self.weight.shout()


# -- notes


def test_notes_are_added_to_meta():
    graph = trace(Block(), node_created=lambda node, context: {"number": node.name, "op": node.op})

    assert [node.meta["number"] for node in graph.nodes] == ["x", "linear", "act", "output"]


def test_no_notes_add_nothing():
    graph = trace(lambda x: x + 1, node_created=lambda node, context: None)

    assert [dict(node.meta) for node in graph.nodes] == [{}, {}, {}]


@pytest.mark.parametrize("answer", [None, {"mine": 1}], ids=["no notes", "notes"])
def test_module_stack_is_kept_beside_notes(answer):
    graph = trace(Net(), node_created=lambda node, context: answer)
    (node, *_) = graph.find_nodes(op="call_module")

    assert list(node.meta["nn_module_stack"]) == ["", "first", "first.linear"]


def test_node_is_complete_when_it_is_announced():
    seen = []

    def answer(node, context):
        seen.append((node.op, node.target, [used.name for used in node.all_input_nodes], bool(node.origins)))

    trace(Block(), node_created=answer)
    assert seen[1:] == [
        ("call_module", "linear", ["x"], True),
        ("call_module", "act", ["linear"], True),
        ("output", "output", ["act"], seen[-1][3]),
    ]


def test_failing_answer_ends_the_trace_and_leaves_torch_alone(pristine_module_class):
    def answer(node, context):
        raise LookupError(node.name)

    with pytest.raises(LookupError) as caught:
        trace(Block(), node_created=answer)
    assert caught.value.args == ("x",)


# -- wrappers


def test_wrapper_is_taken_off():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args):
            raise AssertionError("the wrapper itself does not run")

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.wrapped = Wrapper(Wrapper(Block()))

        def forward(self, x):
            return self.wrapped(x)

    graph = trace(Root(), unwrap_module=lambda module: module.module if isinstance(module, Wrapper) else None)
    assert module_calls(graph) == ["wrapped.module.module.linear", "wrapped.module.module.act"]


# -- events


def test_start_and_end_are_announced():
    started, finished = [], []
    block = Block()
    graph = trace(block, trace_started=started.append, trace_finished=finished.append)

    assert started == [TraceEvent(TraceContext(block))]
    (event,) = finished
    assert event.graph is graph
    assert event.error is None
    assert event.context.root is block
    assert event.seconds > 0


def test_end_is_announced_after_the_trace():
    call = nn.Module.__call__
    seen = []
    trace(
        Block(),
        trace_finished=lambda event: seen.append((nn.Module.__call__ is call, len(event.graph.nodes))),
    )

    assert seen == [(True, 4)]


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()], ids=["exception", "interrupt"])
def test_failure_is_announced_with_its_error(error):
    finished = []

    def program(x):
        raise error

    with pytest.raises(type(error)):
        trace(program, trace_finished=finished.append)
    (event,) = finished
    assert event.error is error
    assert event.graph is None


def test_failure_before_the_program_runs_is_announced():
    finished = []

    with pytest.raises(TraceError):
        trace(5, trace_finished=finished.append)
    assert isinstance(finished[0].error, TraceError)


def test_observer_does_not_keep_the_module_alive():
    gc.collect()
    gc.disable()
    try:
        events = []
        block = Block()
        weight = weakref.ref(block.linear.weight)
        trace(block, trace_finished=events.append)
        events.clear()
        del block
        assert weight() is None
    finally:
        gc.enable()

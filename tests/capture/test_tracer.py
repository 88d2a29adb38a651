"""The tracer: which nodes, which names, which targets."""

from __future__ import annotations

import inspect
import math
import operator
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.capture import Proxy, Tracer, is_tracing
from fxplug.errors import TraceError
from fxplug.ir import Node


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return F.relu(self.linear(x)) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def opcodes(module):
    return [node.op for node in module.graph.nodes]


def targets(module, op):
    return [node.target for node in module.graph.nodes if node.op == op]


def test_text_of_a_nested_model(capture):
    assert str(capture(Net()).graph) == (
        "graph():\n"
        "    %x : [num_users=1] = placeholder[target=x]\n"
        "    %blocks_0_linear : [num_users=1] = call_module[target=blocks.0.linear](args = (%x,), kwargs = {})\n"
        "    %relu : [num_users=1] = call_function[target=torch.nn.functional.relu]"
        "(args = (%blocks_0_linear,), kwargs = {inplace: False})\n"
        "    %blocks_0_scale : [num_users=1] = get_attr[target=blocks.0.scale]\n"
        "    %mul : [num_users=1] = call_function[target=operator.mul]"
        "(args = (%relu, %blocks_0_scale), kwargs = {})\n"
        "    %blocks_1_linear : [num_users=1] = call_module[target=blocks.1.linear](args = (%mul,), kwargs = {})\n"
        "    %relu_1 : [num_users=1] = call_function[target=torch.nn.functional.relu]"
        "(args = (%blocks_1_linear,), kwargs = {inplace: False})\n"
        "    %blocks_1_scale : [num_users=1] = get_attr[target=blocks.1.scale]\n"
        "    %mul_1 : [num_users=1] = call_function[target=operator.mul]"
        "(args = (%relu_1, %blocks_1_scale), kwargs = {})\n"
        "    return mul_1"
    )


def test_six_opcodes_in_one_program(capture):
    class Everything(Block):
        def forward(self, x):
            return torch.sum(self.linear(x).view(-1) * self.scale)

    assert opcodes(capture(Everything())) == [
        "placeholder",
        "call_module",
        "call_method",
        "get_attr",
        "call_function",
        "call_function",
        "output",
    ]


def test_target_of_a_function_is_the_callable_itself(capture):
    module = capture(lambda x: torch.cat([F.relu(x), x + 1, math.floor(2.5) * x]))

    assert targets(module, "call_function") == [F.relu, operator.add, operator.mul, torch.cat]


def test_same_root_gives_the_same_graph_again(capture):
    net = Net()

    assert str(capture(net).graph) == str(capture(net).graph)


def test_tracer_can_be_used_again(capture):
    tracer = Tracer()
    first, second = capture(Net(), tracer=tracer), capture(Block(), tracer=tracer)

    assert str(second.graph) == str(capture(Block()).graph)
    assert str(first.graph) == str(capture(Net()).graph)
    assert first.graph is not second.graph


def test_tracer_can_be_used_again_after_a_failure(capture):
    tracer = Tracer()
    with pytest.raises(TraceError):
        tracer.trace(lambda x: x if x else -x)

    assert str(capture(Net(), tracer=tracer).graph) == str(capture(Net()).graph)


def test_graph_knows_the_class_that_traced_it():
    class Custom(Tracer):
        pass

    assert Custom().trace(Block())._tracer_cls is Custom


def test_is_tracing_is_true_in_the_program_only():
    seen = []

    def program(x):
        seen.append(is_tracing())
        return x

    Tracer().trace(program)
    program(1)
    assert seen == [True, False]
    assert not is_tracing()


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (lambda x: x + 1 + 2 + 3, ["x", "add", "add_1", "add_2", "output"]),
        (lambda x: x.sum().max(), ["x", "sum_1", "max_1", "output"]),
        (lambda add: add + 1, ["add", "add_1", "output"]),
        (
            lambda input, x_1: input + x_1,  # noqa: A006
            ["input_1", "x_1", "add", "output"],
        ),
        (lambda x: x[0][1], ["x", "getitem", "getitem_1", "output"]),
        (lambda x: x.T.shape, ["x", "getattr_1", "getattr_2", "output"]),
        (lambda x: abs(-x), ["x", "neg", "abs_1", "output"]),
        (lambda x: 1 - x & 2, ["x", "sub", "and_", "output"]),
    ],
)
def test_names_are_those_of_torch_fx(capture, wish, expected):
    assert [node.name for node in capture(wish).graph.nodes] == expected


def test_name_of_a_module_call_is_its_path(capture):
    assert [node.name for node in capture(nn.Sequential(nn.ReLU(), nn.Tanh())).graph.nodes] == [
        "input_1",
        "_0",
        "_1",
        "output",
    ]


def test_attribute_of_a_value_becomes_a_node_only_when_it_is_used(capture):
    def program(x):
        x.shape  # noqa: B018
        return x.view(-1)

    assert targets(capture(program), "call_function") == []
    assert targets(capture(program), "call_method") == ["view"]


def test_attribute_used_twice_is_one_node(capture):
    def program(x):
        shape = x.shape
        return shape[0] + shape[1]

    assert targets(capture(program), "call_function").count(getattr) == 1


def test_keyword_arguments_are_kept_as_they_are_written(capture):
    (node,) = capture(lambda x: torch.sum(input=x, dim=1)).graph.find_nodes(op="call_function")

    assert node.args == ()
    assert dict(node.kwargs) == {"input": node.all_input_nodes[0], "dim": 1}


class Pair(NamedTuple):
    left: object
    right: object


def test_nested_arguments_hold_nodes(capture):
    module = capture(lambda x: {"pair": Pair(x + 1, [x, slice(x, 2)]), 3: (x,)})
    result = module.graph.output_node().args[0]

    assert type(result["pair"]) is Pair
    assert isinstance(result["pair"].left, Node)
    assert isinstance(result["pair"].right[1].start, Node)
    assert result[3] == (result["pair"].right[0],)


def test_lists_in_the_graph_are_not_the_lists_of_the_program(capture):
    leaked = []

    def program(x):
        parts = [x, x]
        leaked.append(parts)
        y = torch.cat(parts)
        parts.append(y)
        return y

    module = capture(program)
    (node,) = module.graph.find_nodes(op="call_function")
    assert len(node.args[0]) == 2


def test_sequential_is_entered_and_torch_nn_classes_are_leaves(capture):
    class Custom(nn.Linear):
        pass

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU()))
            self.custom = Custom(3, 3)

        def forward(self, x):
            return self.custom(self.stack(x))

    assert targets(capture(Root()), "call_module") == ["stack.0", "stack.1.0"]


def test_subclass_may_decide_what_a_leaf_is(capture):
    class Shallow(Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return module_qualified_name == "blocks.1" or super().is_leaf_module(m, module_qualified_name)

    assert targets(capture(Net(), tracer=Shallow()), "call_module") == ["blocks.0.linear", "blocks.1"]


def test_subclass_may_enter_torch_nn(capture):
    class Deep(Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return False

    block = Block()
    x = torch.randn(2, 3)
    module = capture(block, tracer=Deep())
    assert targets(module, "call_module") == []
    assert targets(module, "get_attr") == ["linear.weight", "linear.bias", "scale"]
    assert torch.equal(module(x), block(x))


def test_subclass_may_replace_a_module_call(capture):
    class Doubling(Tracer):
        def call_module(self, m, forward, args, kwargs):
            return super().call_module(m, forward, args, kwargs) * 2

    block = Block()
    x = torch.randn(2, 3)
    expected = F.relu(block.linear(x) * 2) * block.scale
    torch.testing.assert_close(capture(block, tracer=Doubling())(x), expected)


def test_subclass_may_skip_a_module(capture):
    class Skipping(Tracer):
        def call_module(self, m, forward, args, kwargs):
            return args[0]

    assert targets(capture(Net(), tracer=Skipping()), "call_module") == []


def test_subclass_may_answer_conditions(capture):
    class Optimist(Tracer):
        def to_bool(self, obj):
            return True

    module = capture(lambda x: x + 1 if x.sum() > 0 else x - 1, tracer=Optimist())
    assert operator.add in targets(module, "call_function")


def test_subclass_may_answer_iterations(capture):
    class Pairs(Tracer):
        def iter(self, obj):
            return iter([obj[0], obj[1]])

    assert targets(capture(lambda x: [part for part in x], tracer=Pairs()), "call_function") == [  # noqa: C416
        operator.getitem,
        operator.getitem,
    ]


def test_subclass_may_answer_keys(capture):
    class Known(Tracer):
        def keys(self, obj):
            return ["dim"]

    module = capture(lambda x, options: torch.sum(x, **options), tracer=Known())
    (call,) = module.graph.find_nodes(op="call_function", target=torch.sum)
    assert list(call.kwargs) == ["dim"]


def test_subclass_may_convert_arguments(capture):
    class Meters:
        def __init__(self, length):
            self.length = length

    class Converting(Tracer):
        def create_arg(self, a):
            return a.length if isinstance(a, Meters) else super().create_arg(a)

    module = capture(lambda x: x * Meters(3.0), tracer=Converting())
    assert module(torch.ones(1)).item() == 3.0


def test_subclass_sees_every_proxy(capture):
    class Watching(Tracer):
        seen: list = []  # noqa: RUF012

        def create_proxy(self, kind, target, args, kwargs, *rest, **named):
            proxy = super().create_proxy(kind, target, args, kwargs, *rest, **named)
            self.seen.append((kind, proxy.node.name))
            return proxy

    capture(Block(), tracer=Watching())
    assert Watching.seen == [
        ("placeholder", "x"),
        ("call_module", "linear"),
        ("call_function", "relu"),
        ("get_attr", "scale"),
        ("call_function", "mul"),
    ]


def test_proxy_made_by_hand_records_into_the_graph_of_its_node(capture):
    graph = capture(lambda x: x + 1).graph
    add = graph.find_nodes(op="call_function")[0]
    with graph.inserting_before(graph.output_node()):
        made = torch.relu(Proxy(add)) * 2
    graph.output_node().args = (made.node,)
    graph.lint()
    assert sorted(node.name for node in graph.nodes) == ["add", "mul", "output", "relu", "x"]
    assert made.node.all_input_nodes[0].target is torch.relu


def test_graph_module_is_flattened_when_it_is_traced_again(capture):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = capture(Block())

        def forward(self, x):
            return self.inner(x) + 1

    outer = Outer()
    x = torch.randn(2, 3)
    module = capture(outer)
    assert targets(module, "call_module") == ["inner.linear"]
    torch.testing.assert_close(module(x), outer(x))


def test_retracing_is_a_fixpoint(capture):
    module = capture(Net())

    assert str(capture(module).graph) == str(module.graph)


def test_what_torch_fx_captured_can_be_traced(capture):
    net = Net()
    x = torch.randn(2, 3)

    torch.testing.assert_close(capture(torch.fx.symbolic_trace(net))(x), net(x))


def test_long_programs_do_not_meet_the_recursion_limit(capture):
    def program(x):
        for _ in range(5000):
            x = x + 1
        return x

    assert capture(program)(torch.zeros(1)).item() == 5000


def test_generated_signature_is_that_of_the_program(capture):
    assert str(inspect.signature(capture(lambda x, y=2, *, z=3: x + y + z).forward)) == "(x, y=2, *, z=3)"


class Sized(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, 2)


@pytest.mark.parametrize("kind", [Net, Sized, nn.Sequential])
@pytest.mark.parametrize("mode", ["symbolic", "shape", "value"])
def test_the_class_of_a_module_is_no_module(kind, mode):
    with pytest.raises(TraceError, match=f"Cannot trace {kind.__name__}: .* Pass an instance of it") as info:
        fxplug.trace(kind, (torch.ones(1),), mode=mode)
    assert info.value.code == "FXP-T000"

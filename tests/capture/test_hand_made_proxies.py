"""Proxies around nodes of a finished graph: rewriting a program by writing Python."""

from __future__ import annotations

import copy
import operator
import pickle
import textwrap
from dataclasses import dataclass

import pytest
import torch
import torch.fx
from torch import nn
from torch.nn import functional as F

import fxplug
import fxplug.fx
from fxplug.capture import Attribute, GraphAppendingTracer, ParameterProxy, Proxy, Tracer, TracerBase
from fxplug.errors import ForeignNodeError, TraceError
from fxplug.execute import GraphModule
from fxplug.ir import Graph


@pytest.fixture
def graph():
    """(x, y) -> x + y."""
    made = Graph()
    x, y = made.placeholder("x"), made.placeholder("y")
    made.output(made.call_function(operator.add, (x, y)))
    return made


def proxy_before_output(graph, name):
    graph.inserting_before(graph.output_node())
    return Proxy(next(node for node in graph.nodes if node.name == name))


def run(graph, *inputs):
    graph.lint()
    return GraphModule(nn.Module(), graph)(*inputs)


TUTORIAL = """
def relu_decomposition(x):
    return (x > 0) * x

decomposition_rules = {}
decomposition_rules[F.relu] = relu_decomposition

def decompose(model, tracer_class=fx.Tracer):
    graph: fx.Graph = tracer_class().trace(model)
    new_graph = fx.Graph()
    env = {}
    tracer = fx.proxy.GraphAppendingTracer(new_graph)
    for node in graph.nodes:
        if node.op == "call_function" and node.target in decomposition_rules:
            proxy_args = [fx.Proxy(env[x.name], tracer) if isinstance(x, fx.Node) else x for x in node.args]
            output_proxy = decomposition_rules[node.target](*proxy_args)
            new_node = output_proxy.node
            env[node.name] = new_node
        else:
            new_node = new_graph.node_copy(node, lambda x: env[x.name])
            env[node.name] = new_node
    return fx.GraphModule(model, new_graph)
"""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return F.relu(self.linear(x)) + F.relu(x)


@pytest.mark.parametrize("fx", [fxplug, fxplug.fx, torch.fx], ids=["fxplug", "fxplug.fx", "torch.fx"])
def test_the_decomposition_of_torch_fx_tutorial_runs_unchanged(fx):
    namespace = {"fx": fx, "F": F}
    exec(textwrap.dedent(TUTORIAL), namespace)
    net = Net()
    module = namespace["decompose"](net)

    assert [node.target for node in module.graph.nodes if node.op == "call_function"] == [
        operator.gt,
        operator.mul,
        operator.gt,
        operator.mul,
        operator.add,
    ]
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), net(x))


def test_operators_write_at_the_insertion_point(graph):
    (add,) = graph.find_nodes(op="call_function")
    with graph.inserting_before(add):
        doubled = Proxy(next(iter(graph.nodes))) * 2
    add.update_arg(0, doubled.node)

    assert [node.name for node in graph.nodes] == ["x", "y", "mul", "add", "output"]
    assert run(graph, 3, 1) == 7


def test_operators_and_functions_and_methods_on_proxies(graph):
    value = proxy_before_output(graph, "add")
    result = torch.stack([value.abs(), 2 - abs(-value), value.shape[0] * value])[0]
    graph.output_node().args = (result.node,)

    assert [node.name for node in graph.nodes if node.op.startswith("call")] == [
        "add",
        "abs_1",
        "neg",
        "abs_2",
        "sub",
        "getattr_1",
        "getitem",
        "mul",
        "stack",
        "getitem_1",
    ]
    assert run(graph, torch.tensor([-1.0]), torch.zeros(1)).item() == 1


def test_two_proxies_without_a_tracer_work_together(graph):
    """torch.fx refuses a torch function on two of them: each has a tracer of its own."""
    x, y, *_ = graph.nodes
    graph.inserting_before(graph.output_node())
    product = torch.mul(Proxy(x), Proxy(y))
    graph.output_node().args = (product.node,)

    assert run(graph, 3, torch.tensor(2)).item() == 6
    theirs = torch.fx.symbolic_trace(lambda x, y: x + y).graph
    x, y, *_ = theirs.nodes
    with pytest.raises(RuntimeError, match="multiple different tracers"):
        torch.mul(torch.fx.Proxy(x), torch.fx.Proxy(y))


def test_proxies_of_two_graphs_do_not_mix(graph):
    other = copy.deepcopy(graph)
    with pytest.raises(ForeignNodeError):
        _ = Proxy(next(iter(graph.nodes))) + Proxy(next(iter(other.nodes)))


def test_proxies_share_the_tracer_that_they_are_given(graph):
    tracer = GraphAppendingTracer(graph)
    x = Proxy(next(iter(graph.nodes)), tracer)

    assert isinstance(tracer, TracerBase)
    assert (x + 1).tracer is tracer
    assert x.shape.tracer is tracer
    assert isinstance(x.shape, Attribute)


def test_conditions_and_loops_need_values_here_too(graph):
    x = Proxy(next(iter(graph.nodes)))

    with pytest.raises(TraceError, match=r"a condition depends on a traced value; 'x' is unknown.*FXP-T001"):
        bool(x)
    with pytest.raises(TraceError, match="FXP-T005"):
        list(x)
    with pytest.raises(TraceError, match="FXP-T003"):
        len(x)


def test_keys_are_recorded(graph):
    keys = proxy_before_output(graph, "x").keys()

    assert keys.node.format_node().endswith("call_method[target=keys](args = (%x,), kwargs = {})")


def test_unpacking_a_known_number_of_values(graph):
    first, second = proxy_before_output(graph, "x")
    graph.output_node().args = ((second.node, first.node),)

    assert run(graph, (1, 2), ()) == (2, 1)


class Appending(GraphAppendingTracer):
    """Answers what it can."""

    def to_bool(self, obj):
        return obj.node.name == "x"

    def iter(self, obj):
        return iter([obj[0], obj[1]])

    def keys(self, obj):
        return ["dim"]

    def create_arg(self, a):
        return a.value if isinstance(a, Boxed) else super().create_arg(a)

    def proxy(self, node):
        return Marked(node, self)


@dataclass
class Boxed:
    value: int


class Marked(Proxy):
    pass


def test_a_subclass_answers_what_is_asked(graph):
    x, y, *_ = graph.nodes
    tracer = Appending(graph)

    assert bool(Proxy(x, tracer)) is True
    assert bool(Proxy(y, tracer)) is False
    graph.inserting_before(graph.output_node())
    assert [part.node.target for part in Proxy(x, tracer)] == [operator.getitem] * 2
    summed = torch.sum(Proxy(x, tracer), **Proxy(y, tracer))
    assert list(summed.node.kwargs) == ["dim"]
    assert type(summed) is Marked
    assert (summed + Boxed(3)).node.args == (summed.node, 3)


def test_plain_values_and_containers_are_arguments(graph):
    value = proxy_before_output(graph, "x")
    named = torch.full((2,), 3.0, dtype=torch.float64, out=value)
    sliced = value[1:, None, ..., [0, value]]

    assert named.node.kwargs == {"dtype": torch.float64, "out": value.node}
    assert sliced.node.args == (value.node, (slice(1, None, None), None, ..., [0, value.node]))


@dataclass
class Settings:
    scale: float
    parts: list


def test_dataclasses_are_made_by_a_call(graph):
    value = proxy_before_output(graph, "x")
    node = value.method(Settings(2.0, [value])).node

    (made,) = [used for used in node.all_input_nodes if used is not value.node]
    assert made.target is Settings
    assert made.kwargs == {"scale": 2.0, "parts": [value.node]}


def test_a_class_may_say_itself_what_it_becomes(graph):
    class Degrees:
        def __fx_create_arg__(self, tracer):
            return tracer.create_arg((180, "degrees"))

    node = (proxy_before_output(graph, "x") * Degrees()).node
    assert node.args[1] == (180, "degrees")


def test_what_no_graph_can_hold_is_refused(graph):
    with pytest.raises(TraceError, match=r"Cannot record a value of type builtins\.object .*\[FXP-T006\]$"):
        _ = proxy_before_output(graph, "x") + object()


# -- graphs that belong to a module


def test_tensors_that_the_module_holds_are_read_from_it(capture):
    module = capture(Net())
    value = proxy_before_output(module.graph, "add")
    module.graph.output_node().args = ((value * module.linear.bias).node,)

    assert [node.target for node in module.graph.find_nodes(op="get_attr")] == ["linear.bias"]
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), Net.forward(module, x) * module.linear.bias)


def test_other_tensors_become_constants_of_the_module(capture):
    module = capture(Net())
    value = proxy_before_output(module.graph, "add")
    module.graph.output_node().args = ((value * torch.full((3,), 2.0) + torch.ones(3)).node,)

    assert sorted(module.graph.lifted) == ["_tensor_constant0", "_tensor_constant1"]
    module.graph.lint()
    x = torch.randn(2, 3)
    torch.testing.assert_close(module(x), Net.forward(module, x) * 2 + 1)
    torch.testing.assert_close(copy.deepcopy(module)(x), module(x))


def test_modules_are_found_by_their_path(capture):
    module = capture(Net())
    value = proxy_before_output(module.graph, "add")

    assert value.apply_to(module.linear).node.all_input_nodes[1].target == "linear"
    with pytest.raises(TraceError, match=r"Cannot record a use of ReLU.*add_submodule.*\[FXP-T007\]$"):
        value.apply_to(nn.ReLU())


# -- checking for writes


@pytest.mark.parametrize(
    "write",
    [
        lambda x: torch.add(x, 1, out=x),
        lambda x: x.add_(1),
        lambda x: operator.iadd(x, 1),
        lambda x: operator.setitem(x, 0, 1),
        torch.ops.aten.relu_.default,
    ],
    ids=["out", "method", "augmented", "item", "operator"],
)
def test_calls_that_write_can_be_refused(graph, write):
    tracer = GraphAppendingTracer(graph)
    tracer.check_mutable_operations = True
    graph.inserting_before(graph.output_node())
    before = str(graph)

    with pytest.raises(TraceError, match=r"Cannot record .*: it changes its argument .*\[FXP-T030\]$"):
        write(Proxy(next(iter(graph.nodes)), tracer))
    assert str(graph) == before
    torch.relu(Proxy(next(iter(graph.nodes)), tracer))


# -- copies


def test_pickled_proxy_is_a_proxy_again(graph):
    x = Proxy(next(iter(graph.nodes)))
    loaded = pickle.loads(pickle.dumps((x, x.shape)))

    assert [type(value) for value in loaded] == [Proxy, Attribute]
    assert (loaded[0] + 1).node.args[0].name == "x"
    assert len(graph.nodes) == 4


def test_parameter_proxy_answers_from_its_parameter(graph):
    node = graph.get_attr("weight")
    weight = nn.Parameter(torch.ones(2, 3))
    proxy = ParameterProxy(GraphAppendingTracer(graph), node, "weight", weight)

    assert (proxy.shape, proxy.size(), proxy.size(1), proxy.size(-1)) == ((2, 3), (2, 3), 3, 3)
    assert (proxy.ndim, proxy.dim(), proxy.numel(), proxy.nelement(), len(proxy)) == (2, 2, 6, 6, 2)
    assert repr(proxy) == "ParameterProxy(weight)"
    assert isinstance(proxy * 2, Proxy)
    with pytest.raises(TraceError, match="Cannot make a ParameterProxy for 'plain': it is a Tensor"):
        ParameterProxy(GraphAppendingTracer(graph), node, "plain", torch.ones(1))


def test_every_public_name_of_torch_fx_proxy_is_there():
    missing = {
        "MetaProxy",  # Notes values beside a trace: fxplug.analyze.ShapeProp does it, for every kind of call.
        "annotation_log",
        "assert_fn",
        "base_types",
        "check_for_mutable_operation",
        "log",
        "magic_methods",
        "reflectable_magic_methods",
    }
    theirs = torch.fx.proxy
    assert set(theirs.__all__) - set(vars(fxplug.proxy)) == missing & set(theirs.__all__)
    old = {"__div__", "__rdiv__", "__rgetitem__"}  # Nothing calls them in Python 3.
    for name in set(theirs.__all__) - missing - {"TraceError"}:
        ours = getattr(fxplug.proxy, name)
        public = {
            entry for entry in dir(getattr(theirs, name)) if not entry.startswith("_") or entry[:2] == "__"
        }
        assert public - old - {"__annotations__"} <= set(dir(ours)), name
    assert issubclass(fxplug.proxy.TraceError, torch.fx.proxy.TraceError.__mro__[1])


def test_public_methods_of_the_tracer_are_those_of_torch_fx():
    public = {name for name in dir(torch.fx.Tracer()) if not name.startswith("_")}

    assert public - set(dir(Tracer())) == {"num_calls"}  # Counts for its module stack, of no use elsewhere.

"""Bad passes of plugins: the error names pass, plugin and version, and nothing has changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import FxplugError, PassError
from fxplug.passes import Pass, PassRecord, PassResult, Pipeline, PipelineStep

X = torch.linspace(-1, 1, 6).reshape(2, 3)
NAMED = r"Pass 'quant:int8' of fxplug-quant 1\.2"
CHANGED = PassResult(modified=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.linear(x))


@pytest.fixture
def module():
    torch.manual_seed(0)
    return fxplug.symbolic_trace(Net())


def photograph(module):
    state = {name: value.tolist() for name, value in module.state_dict().items()}
    return str(module.graph), module.code, state, [id(part) for part in module.modules()], module(X).tolist()


def run(module, factory, **options):
    record = PassRecord("int8", factory, "Test.")
    step = PipelineStep("quant:int8", record, provider="fxplug-quant 1.2")
    return Pipeline("test", [step], **options).run(module, (X,))


def running(function):
    class Running(Pass):
        def run(self, module, context):
            module.linear.weight.data.zero_()
            return function(module)

    return Running


class WithoutRun(Pass):
    pass


def failing_factory():
    raise OSError("no such engine")


def raises(module):
    raise ValueError("3 is not 4")


def foreign_graph(module):
    module.graph = fxplug.symbolic_trace(nn.Sequential(nn.Tanh(), nn.Tanh())).graph
    return CHANGED


def no_graph(module):
    module.graph = "graph"
    return CHANGED


def uses_a_node_of_another_graph(module):
    foreign = next(iter(fxplug.symbolic_trace(Net()).graph.nodes))
    module.graph.output_node().args = (foreign,)
    return CHANGED


def uses_before_it_is_computed(module):
    linear, relu = list(module.graph.nodes)[1:3]
    relu.append(linear)
    return CHANGED


def erases_what_is_used(module):
    module.graph.erase_node(list(module.graph.nodes)[1])
    return CHANGED


def takes_a_module_away(module):
    del module.linear
    return CHANGED


def takes_the_output_away(module):
    module.graph.erase_node(module.graph.output_node())
    return CHANGED


BAD = {
    "no factory": (None, "cannot be made: its factory is None"),
    "factory fails": (failing_factory, "failed: OSError: no such engine"),
    "factory returns nothing": (lambda: None, "its factory returned a NoneType instead of a Pass"),
    "factory returns a class": (
        lambda: WithoutRun,
        "its factory returned the class WithoutRun instead of a Pass",
    ),
    "factory returns a dict": (dict, "its factory returned a dict instead of a Pass"),
    "factory takes options": (
        lambda bits: bits,
        "failed: TypeError: .*missing 1 required positional argument: 'bits'",
    ),
    "no run": (WithoutRun, "failed: TypeError: Can't instantiate abstract class WithoutRun"),
    "raises": (running(raises), "failed: ValueError: 3 is not 4"),
    "returns nothing": (running(lambda module: None), "returned a NoneType. Return a PassResult"),
    "returns a bool": (running(lambda module: True), "returned a bool. Return a PassResult"),
    "says it in words": (
        running(lambda module: PassResult("no")),  # pyright: ignore[reportArgumentType] - on purpose
        r"returned PassResult\(modified='no'\). Say True or False",
    ),
    "returns the module": (running(lambda module: module), "returned a GraphModule. Return a PassResult"),
    "returns a class": (running(lambda module: PassResult), "returned a type. Return a PassResult"),
    "foreign graph": (running(foreign_graph), "failed: .*'0'"),
    "no graph": (running(no_graph), "failed: InvalidArgumentError: Cannot set graph to a str"),
    "foreign node": (running(uses_a_node_of_another_graph), "failed: ForeignNodeError: .*'x'"),
    "used before": (running(uses_before_it_is_computed), "node 'relu' uses 'linear' before it is computed"),
    "erases": (running(erases_what_is_used), "failed: NodeInUseError: .*'linear'"),
    "module gone": (running(takes_a_module_away), "node 'linear' refers to 'linear'"),
    "no output": (running(takes_the_output_away), "failed: .*no output"),
}


@pytest.mark.parametrize(("factory", "text"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("verify", ["structure", "paranoid"])
def test_the_error_names_the_pass_and_the_module_is_as_it_was(module, factory, text, verify):
    before = photograph(module)
    with pytest.raises(PassError, match=f"(?s){NAMED} .*{text}") as found:
        run(module, factory, verify=verify)
    assert isinstance(found.value, FxplugError)
    assert photograph(module) == before


@pytest.mark.parametrize(("factory", "text"), BAD.values(), ids=BAD)
def test_the_report_says_so_where_others_run(module, factory, text):
    (report,) = run(module, factory, on_error="rollback")
    assert report.error
    assert report.provider == "fxplug-quant 1.2"


@pytest.mark.parametrize("function", [uses_before_it_is_computed, takes_a_module_away])
def test_an_illegal_graph_is_told_with_the_line_of_the_program(module, function):
    with pytest.raises(PassError, match=r"test_bad_passes\.py:\d+ in forward \('return torch.relu"):
        run(module, running(function))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda inner: inner.graph.erase_node(inner.graph.output_node()), "no output"),
        (
            lambda inner: list(inner.graph.nodes)[2].append(list(inner.graph.nodes)[1]),
            "The graph of inner is not well formed:\n  - node 'relu' uses 'linear' before it is computed",
        ),
        (lambda inner: delattr(inner, "linear"), "The graph of inner .*node 'linear' refers to 'linear'"),
    ],
    ids=["no output", "used before", "module gone"],
)
def test_an_illegal_graph_inside_is_refused(change, text):
    graph = fxplug.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    outer = fxplug.GraphModule({"inner": fxplug.symbolic_trace(Net())}, graph)
    expected = outer(X)

    class Inside(Pass):
        def run(self, module, context):
            module.inner.linear.weight.data.zero_()
            change(module.inner)
            return CHANGED

    with pytest.raises(PassError, match=f"(?s){NAMED} .*{text}"):
        run(outer, Inside)
    assert torch.equal(outer(X), expected)

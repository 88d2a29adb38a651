"""What reports and events say of nodes and bytes."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
from torch import nn

from fxplug.execute import graph_module
from fxplug.passes import (
    DeadCode,
    FuseConvBN,
    NodeChanges,
    Pass,
    PassRecord,
    PassResult,
    Pipeline,
    PipelineStep,
    PropagateShapes,
)
from fxplug.passes.changes import state_bytes


class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return torch.relu(self.second(self.first(x))) * self.scale


SIZE = 4 * (16 + 16 + 4)


@pytest.fixture
def module(capture):
    return capture(Program())


class Running(Pass):
    def __init__(self, work):
        self.work = work

    def run(self, module, context):
        return PassResult(self.work(module) is not False)


def step(work, name="p", **limits):
    return PipelineStep(
        name, PassRecord(name, lambda: Running(work), "Test.", replaces_parameters=True), **limits
    )


def report_of(module, work):
    (report,) = Pipeline("test", [step(work)], "rollback").run(module)
    return report


def relu_of(module):
    return module.graph.find_nodes(op="call_function", target=torch.relu)[0]


# -- nodes -------------------------------------------------------------------------------------------------------


def test_made_erased_and_edited_nodes_are_counted(module):
    def work(module):
        relu = relu_of(module)
        with module.graph.inserting_after(relu):
            negated = module.graph.call_function(torch.neg, (relu.args[0],))
        relu.replace_all_uses_with(negated)  # One user is edited.
        module.graph.erase_node(relu)

    report = report_of(module, work)

    assert report.changes == NodeChanges(made=1, erased=1, edited=1)
    assert report.changes.total == 3


def test_nodes_that_came_and_went_count_nothing(module):
    def work(module):
        for _ in range(3):
            module.graph.erase_node(module.graph.call_function(torch.neg, (1,)))

    assert report_of(module, work).changes == NodeChanges()


def test_a_node_that_is_edited_often_counts_once_and_a_new_one_only_as_new(module):
    def work(module):
        relu = relu_of(module)
        for target in (torch.sigmoid, torch.tanh):
            relu.target = target
        with module.graph.inserting_after(relu):
            module.graph.call_function(torch.neg, (relu,)).target = torch.abs

    assert report_of(module, work).changes == NodeChanges(made=1, edited=1)


def test_moving_is_an_edit(module):
    def work(module):
        scale = module.graph.find_nodes(op="get_attr")[0]
        relu_of(module).prepend(scale)

    assert report_of(module, work).changes == NodeChanges(edited=1)


def test_another_graph_counts_as_new(module):
    count = len(module.graph.nodes)

    def work(module):
        other = copy.deepcopy(module.graph)
        relu_of(module).target = torch.sigmoid  # In a graph that is given up.
        module.graph = other

    assert report_of(module, work).changes == NodeChanges(made=count, erased=count)


def test_graphs_of_inner_modules_count(capture):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = capture(Program())

        def forward(self, x):
            return self.inner(x)

    root = Outer()
    tracer_module = graph_module.GraphModule(root, _calling_inner(), "Outer")

    def work(module):
        relu_of(module.inner).target = torch.sigmoid

    assert report_of(tracer_module, work).changes == NodeChanges(edited=1)


def _calling_inner():
    from fxplug.ir import Graph

    graph = Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    return graph


def test_a_pass_that_was_undone_changed_nothing(module):
    def work(module):
        relu_of(module).target = torch.sigmoid
        module.first = nn.Linear(4, 8)
        raise RuntimeError

    report = report_of(module, work)

    assert report.changes == NodeChanges()
    assert (report.bytes_before, report.bytes_after) == (SIZE, SIZE)


# -- bytes -------------------------------------------------------------------------------------------------------


def test_bytes_of_parameters_and_buffers(module):
    def work(module):
        module.first.weight = nn.Parameter(module.first.weight.detach().to(torch.float16))

    report = report_of(module, work)

    assert (report.bytes_before, report.bytes_after) == (SIZE, SIZE - 2 * 16)


def test_memory_that_is_shared_counts_once(module):
    def tie(module):
        module.second.weight = module.first.weight

    def view(module):
        module.scale = module.first.weight.detach()[0]

    reports = Pipeline("test", [step(tie), step(view)]).run(module)

    assert [(report.bytes_before, report.bytes_after) for report in reports] == [(144, 80), (80, 64)]


def test_what_has_no_memory_counts_nothing():
    assert state_bytes(nn.Linear(4, 4, device="meta")) == 0
    assert state_bytes(nn.ReLU()) == 0


def test_observers_hear_of_nodes_and_bytes(module):
    events = []

    def work(module):
        relu_of(module).target = torch.sigmoid
        module.scale = torch.ones(8)

    Pipeline("test", [step(work), step(lambda module: False)]).run(module, observers=[events.append])

    none = NodeChanges()
    assert [(event.changes, event.bytes_before, event.bytes_after) for event in events] == [
        (none, SIZE, 0),
        (NodeChanges(edited=1), SIZE, SIZE + 16),
        (none, SIZE + 16, 0),
        (none, SIZE + 16, SIZE + 16),
    ]


# -- code --------------------------------------------------------------------------------------------------------


class ConvNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))


@pytest.mark.parametrize("limit", [None, 60])
def test_code_is_generated_once_however_many_passes_edit(capture, monkeypatch, limit):
    compiled = []
    original = graph_module.compile_code

    def count(*args, **kwargs):
        compiled.append(args)
        return original(*args, **kwargs)

    module = capture(ConvNet().eval())
    monkeypatch.setattr(graph_module, "compile_code", count)

    def adds(module):
        output = module.graph.output_node()
        with module.graph.inserting_before(output):
            output.args = (module.graph.call_function(operator.add, (output.args[0], 1)),)

    def fails(module):
        adds(module)
        raise RuntimeError

    steps = [
        PipelineStep("fuse", PassRecord("fuse", FuseConvBN, "", replaces_parameters=True)),
        step(fails, "fails"),
        *(step(adds, f"adds{number}") for number in range(5)),
        PipelineStep("dead", PassRecord("dead", DeadCode, "", replaces_parameters=True)),
        PipelineStep("shapes", PassRecord("shapes", PropagateShapes, "")),
    ]
    x = torch.randn(1, 3, 2, 2)
    reports = Pipeline("test", steps, "rollback", time_limit=limit).run(
        module, (x,), observers=[lambda event: len(event.module.graph.nodes)]
    )

    assert [report.name for report in reports if report.error] == ["fails"]
    assert len(compiled) == 0
    module(x)
    module(x)
    assert len(compiled) == 1

"""Common subexpressions: equal calls are made once, and nothing is merged that could differ."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.passes import CommonSubexpressions, PassContext

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def merged(module):
    result = CommonSubexpressions().run(module, PassContext())
    module.graph.lint()
    assert result.modified is (result.details["merged"] > 0)
    return result.details["merged"]


class Model(nn.Module):
    """One of the programs below, with things that it may use."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("count", torch.ones(4))
        self.register_buffer("tied", self.count)

    def forward(self, x):
        return self.program(self, x)


def captured(program, *, training=False):
    torch.manual_seed(0)
    model = Model(program).train(training)
    return model, fxplug.symbolic_trace(model)


MERGED = {
    "operators": (lambda m, x: (x + 1) * (x + 1), 1),
    "chains": (lambda m, x: torch.relu(x + 1) - torch.relu(x + 1) * 2, 2),
    "methods": (lambda m, x: x.exp().sum() + x.exp().mean(), 1),
    "modules": (lambda m, x: m.linear(x) + torch.relu(m.linear(x)), 1),
    "modules with state, in evaluation": (lambda m, x: m.norm(x) + torch.relu(m.norm(x)), 1),
    "dropout, in evaluation": (lambda m, x: m.dropout(x) + m.dropout(x), 1),
    "keywords in another order": (
        lambda m, x: x.sum(dim=0, keepdim=True) + x.sum(keepdim=True, dim=0),
        1,
    ),
    "calls with an attribute": (lambda m, x: (x + m.count) * torch.relu(x + m.count), 1),
    "containers": (lambda m, x: torch.cat([x, x]).sum() + torch.cat([x, x]).mean(), 1),
    "slices": (lambda m, x: x[1:, None] + x[1:, None] * 2, 1),
    "nan": (lambda m, x: (x + float("nan")) * (x + float("nan")), 1),
    "around a write to something else": (
        lambda m, x: torch.relu(x + 1) + (x * 2).add_(1) + torch.relu(x + 1),
        2,
    ),
    "one of them returned": (lambda m, x: (x + 1, torch.relu(x + 1)), 1),
}


@pytest.mark.parametrize("name", MERGED)
def test_equal_calls_are_made_once(name):
    program, count = MERGED[name]
    model, module = captured(program)

    assert merged(module) == count
    torch.testing.assert_close(module(X), model(X), equal_nan=True)
    assert merged(module) == 0, "a second run finds nothing"


def in_place(m, x):
    first = x * 1
    before = torch.relu(first)
    first.add_(1)
    return before + torch.relu(first)


def through_a_view(m, x):
    base = x * 1
    before = base.sum()
    base[0].zero_()
    return before - base.sum()


def written_result(m, x):
    first, second = x + 1, x + 1
    first.mul_(2)
    return first - second


def out_argument(m, x):
    first, second = x * 2, x * 2
    torch.add(x, 5, out=first)
    return first + second


def written_buffer(m, x):
    before = x + m.count
    m.count.add_(1)
    return before * (x + m.count)


def tied_buffer(m, x):
    before = x + m.count
    m.tied.add_(1)
    return before * (x + m.count)


def item_assignment(m, x):
    first = x.clone()
    second = x.clone()
    first[0] = 7.0
    return first + second


def regions(m, x):
    first = x * m.count
    with torch.no_grad():
        second = x * m.count
    return first + second


def seeded(m, x):
    first = torch.rand(3)
    return first + torch.rand(3) + x.sum()


KEPT = {
    "written between": in_place,
    "written through a view": through_a_view,
    "a result that is written": written_result,
    "out=": out_argument,
    "a buffer that is written": written_buffer,
    "a buffer that is written under another name": tied_buffer,
    "copies, one of which is written": item_assignment,
    "regions": regions,
    "random numbers": seeded,
    "random functions": lambda m, x: F.dropout(x, 0.5, True) + F.dropout(x, 0.5, True),
    "both returned": lambda m, x: (x + 1, x + 1),
    "views of both returned": lambda m, x: ((x + 1).view(-1), (x + 1).t()),
    "numbers of other kinds": lambda m, x: (x * 1).sum() + (x * 1.0).mean() + (x * True).amax(),
    "the two zeros": lambda m, x: torch.copysign(x, 0.0) * torch.copysign(x, -0.0),
    "lists and tuples": lambda m, x: x[[0, 1]].sum() + x[0, 1].sum(),
    "other methods": lambda m, x: x.exp() + x.sin(),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_could_differ_is_not_merged(name):
    _, module = captured(KEPT[name])
    eager, _ = captured(KEPT[name])
    torch.manual_seed(1)
    expected = eager(X)

    calls = [node.target for node in module.graph.nodes if node.op.startswith("call_")]
    merged(module)

    assert [node.target for node in module.graph.nodes if node.op.startswith("call_")] == calls
    torch.manual_seed(1)
    torch.testing.assert_close(module(X), expected)


@pytest.mark.parametrize(("update", "count"), [(False, 2), (True, 0)])
def test_reads_of_an_attribute_are_merged_unless_a_module_updates_its_state_between(update, count):
    root = Model(None)
    root.norm.train(update)
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    before = graph.call_function(torch.mul, (x, graph.get_attr("norm.running_mean")))
    between = graph.call_module("norm", (x,))
    after = graph.call_function(torch.mul, (x, graph.get_attr("norm.running_mean")))
    graph.output(graph.call_function(torch.sub, (graph.call_function(torch.sub, (before, after)), between)))

    assert merged(fxplug.GraphModule(root, graph)) == count


@pytest.mark.parametrize("part", ["norm", "dropout"])
def test_modules_in_training_are_called_as_often_as_they_are(part):
    _, module = captured(lambda m, x: getattr(m, part)(x) + torch.relu(getattr(m, part)(x)), training=True)

    assert merged(module) == 0


def test_a_question_for_identity_keeps_both():
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    one, other = (graph.call_function(operator.add, (x, 1)) for _ in range(2))
    same = graph.call_function(operator.is_, (one, other))
    graph.output(
        graph.call_function(operator.add, (same, 1))
    )  # A new value, so that neither of them is returned.
    module = fxplug.GraphModule(nn.Module(), graph)

    assert merged(module) == 0
    assert module(X) == 1


@pytest.mark.parametrize(("between", "count"), [(torch.set_default_dtype, 0), (print, 1)])
def test_what_acts_outside_may_change_what_is_computed_behind_it(between, count):
    graph = fxplug.Graph()
    x = graph.placeholder("x")
    before = graph.call_function(torch.zeros, (3,))
    graph.call_function(between, (torch.float64,))
    after = graph.call_function(torch.zeros, (3,))
    both = graph.call_function(torch.add, (graph.call_function(torch.add, (x, before)), after))
    graph.output(both)

    assert merged(fxplug.GraphModule(nn.Module(), graph)) == count


def test_what_is_left_stands_for_the_origins_of_both():
    _, module = captured(
        lambda m, x: (
            (x + 1)  # one line
            * (x + 1)  # and another one
        )
    )
    lines = {
        line.line
        for node in module.graph.nodes
        if node.target is operator.add
        for line in [node.origins[0].source()]
    }

    merged(module)

    (left,) = module.graph.find_nodes(op="call_function", target=operator.add)
    assert {origin.source().line for origin in left.origins} == lines
    assert len(lines) == 2


def test_it_is_offered_by_name():
    report = fxplug.optimize(
        Model(lambda m, x: (x + 1) * (x + 1)).eval(), X, passes=["common-subexpressions"], measure=False
    ).passes[0]

    assert (report.nodes_before, report.nodes_after) == (5, 4)
    assert report.result.summary == "merged 1 call"

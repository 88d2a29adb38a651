"""Any program with any support: what is lowered is acyclic, equal to eager, the same each time, effects in order."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fxplug import Graph, GraphModule
from fxplug.analyze.isolation import copy_module, copy_values
from fxplug.lower import Backend, Choices, Support, lower_to_several

LOG = []


def note(x, number):
    """Do something that is seen outside."""
    LOG.append((number, float(x.sum())))
    return x + number


class Engine(nn.Module):
    """Runs what it was compiled from; its results share memory with nothing."""

    def __init__(self, part):
        super().__init__()
        self.part = copy_module(part)

    def forward(self, *inputs):
        return copy_values(self.part(*copy_values(inputs)))


class Chosen(Backend):
    def __init__(self, names):
        self.names = names

    def supports(self, node, context):
        ok = node.name in self.names and node.target is not note
        return Support(ok, "" if ok else "not chosen")

    def compile(self, subgraph, example_inputs, options):
        return Engine(subgraph)


@st.composite
def programs(draw):
    graph = Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    made = []
    for number in range(draw(st.integers(1, 14))):
        first, second = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        kind = draw(st.sampled_from(["add", "mul", "tanh", "view", "write", "note"]))
        if kind in ("add", "mul"):
            node = graph.call_function(getattr(torch, kind), (first, second))
        elif kind == "tanh":
            node = graph.call_method("tanh", (first,))
        elif kind == "view":
            node = graph.call_method("view", (first, 2, 3))
        elif kind == "write":
            # Not to inputs: an engine that copies cannot do that.
            node = graph.call_method(
                "add_", (draw(st.sampled_from(made)) if made else graph.call_method("clone", (first,)), 1)
            )
        else:
            node = graph.call_function(note, (first, number))
        if kind in ("add", "mul", "tanh", "note"):
            made.append(node)
        values.append(node)
    graph.output(tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))))
    module = GraphModule(nn.Module(), graph)
    names = [node.name for node in graph.nodes if node.op.startswith("call_")]
    supported = [set(draw(st.lists(st.sampled_from(names)))) for _ in range(draw(st.integers(1, 2)))]
    backends = ["", *(f"b{number}" for number in range(len(supported)))]
    choices = Choices(
        min_block_size=draw(st.integers(1, 2)),
        together=tuple(
            map(tuple, draw(st.lists(st.lists(st.sampled_from(names), min_size=2, max_size=3), max_size=2)))
        ),
        pins=draw(st.dictionaries(st.sampled_from(names), st.sampled_from(backends), max_size=2)),
        max_transfer=draw(st.sampled_from([None, None, 0, 5, 12])),
    )
    return module, supported, choices


def check_partitions(module, supported, choices, report):
    """Nothing runs where it must not, and no partition needs what it gives, by way of others."""
    place = {node.name: node.partition for node in report.nodes}
    backend_of = {partition.name: partition.backend for partition in report.partitions}
    for node in report.nodes:
        runs_on = backend_of.get(node.partition, "")
        if runs_on:
            assert node.name in supported[int(runs_on[1:])]
            assert node.name not in choices.pins or choices.pins[node.name] == runs_on
        else:
            assert node.reason
    for names in choices.together:
        assert len({place[name] for name in names}) == 1
    for partition in report.partitions:
        reached = set()
        for node in module.graph.nodes:
            outside = place.get(node.name) != partition.name
            before = node.all_input_nodes
            if outside and any(used in reached or place.get(used.name) == partition.name for used in before):
                reached.add(node)
            assert outside or not reached.intersection(before), f"{partition.name} needs what it gives"


def run(module):
    inputs = torch.arange(6.0).reshape(2, 3) / 7, torch.ones(2, 3)
    LOG.clear()
    return module(*inputs), list(LOG)


@settings(deadline=None, max_examples=150)
@given(programs())
def test_any_support_computes_what_eager_computes(program):
    module, supported, choices = program
    inputs = torch.arange(6.0).reshape(2, 3) / 7, torch.ones(2, 3)
    backends = [(f"b{number}", Chosen(names)) for number, names in enumerate(supported)]

    lowered = lower_to_several(module, backends, inputs, choices=choices)
    again = lower_to_several(module, backends, inputs, choices=choices)

    assert lowered.report == again.report
    check_partitions(module, supported, choices, lowered.report)
    assert all(not partition.fallback for partition in lowered.report.partitions)
    if isinstance(lowered.module, GraphModule):
        lowered.module.graph.lint()
        assert str(lowered.module.graph) == str(again.module.graph)
    (expected, seen), (found, happened) = run(module), run(lowered.module)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert happened == seen
    for partition in lowered.report.partitions:
        assert partition.compute_nodes >= choices.min_block_size

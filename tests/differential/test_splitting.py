"""Splitting, against torch.fx: the same partitions of every program, and results equal to eager."""

from __future__ import annotations

import collections

import pytest
from torch.fx.passes.split_module import split_module as split_with_torch

import fxplug
from fxplug.errors import PartitionError


def calls(graph):
    return [node for node in graph.nodes if node.op.startswith("call_")]


def thirds(graph):
    """The first third of the calls, the second one, and the rest."""
    found = calls(graph)
    return {node.name: number * 3 // len(found) for number, node in enumerate(found)}


def alternating(graph):
    """Calls take turns."""
    return {node.name: number % 2 for number, node in enumerate(calls(graph))}


def by_kind(graph):
    """Modules, functions and methods."""
    return {node.name: node.op.removeprefix("call_") for node in calls(graph)}


def backwards(graph):
    """As thirds, with the numbers the other way round."""
    return {name: 2 - number for name, number in thirds(graph).items()}


REFUSED = {
    ("in_place_methods", "alternating"): "two writes to one tensor would change places",
    (
        "views_of_many_kinds",
        "alternating",
    ): "nobody says of `as_strided` that it only computes, so nothing is moved past it",
    (
        "wrapped_function",
        "by_kind",
    ): "nobody says what a function of the user does, so nothing is moved past it",
}
"""Program and assignment -> why a split is refused that torch.fx makes."""


def row(node):
    """Return a node, with paths as torch.fx writes them: it flattens those inside of partitions."""
    target = node.target if not isinstance(node.target, str) else node.target.replace(".", "_")
    return (
        node.op,
        node.name,
        repr(target),
        str(node.args).replace("%", ""),
        str(dict(node.kwargs)).replace("%", ""),
    )


def partitions(module):
    """Return, for each partition: its nodes, what it is given, and what it returns."""
    found = {}
    for node in module.graph.find_nodes(op="call_module"):
        inner = getattr(module, node.target).graph
        found[node.target] = [row(inside) for inside in inner.nodes], len(node.args)
    return found


def main_program(module):
    """Return how often each kind of node stands in the program that calls the partitions."""
    return collections.Counter((node.op, str(node.target)) for node in module.graph.nodes)


@pytest.mark.parametrize("assign", [thirds, alternating, by_kind, backwards])
def test_partitions_are_those_of_torch_fx_and_results_those_of_eager(
    comparison_of_equal_graphs, same_outcome, assign
):
    program = comparison_of_equal_graphs
    ours, theirs = program.with_fxplug(), program.with_torch()
    place = assign(ours.graph)
    assert place == assign(theirs.graph)
    mapping = {}
    try:
        expected = split_with_torch(theirs, None, lambda node: place[node.name], mapping)
    except RuntimeError:  # It says that there is a cycle.
        with pytest.raises(PartitionError, match="need each other"):
            fxplug.split_module(ours, None, lambda node: place[node.name])
        return
    if (program.name, assign.__name__) in REFUSED:
        with pytest.raises(PartitionError, match="effects would happen in another order"):
            fxplug.split_module(ours, None, lambda node: place[node.name])
        return
    own_mapping = {}
    found = fxplug.split_module(ours, None, lambda node: place[node.name], own_mapping)

    found.graph.lint()
    assert partitions(found) == partitions(expected)
    assert main_program(found) == main_program(expected)
    flattened = {
        new.partition(".")[0] + "." + new.partition(".")[2].replace(".", "_"): old
        for new, old in own_mapping.items()
    }
    assert flattened == mapping
    same_outcome(found, program)


def test_results_are_those_of_eager_where_torch_fx_captures_another_graph(comparison, same_outcome):
    module = comparison.with_fxplug()
    place = thirds(module.graph)

    same_outcome(fxplug.split_module(module, None, lambda node: place[node.name]), comparison)


def test_the_comparison_covers_programs_that_are_split(comparisons):
    split = [
        program
        for program in comparisons
        if program.same_graph and len(calls(program.with_fxplug().graph)) > 2
    ]

    assert len(split) >= 40


def test_every_program_that_is_refused_for_its_effects_exists(comparisons):
    assert {name for name, _ in REFUSED} <= {program.name for program in comparisons}

"""Whatever is replaced where: a replacement that computes the same leaves every program what it was."""

from __future__ import annotations

import operator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.rewrite import SubgraphMatcher, replace_pattern

BINARY = (operator.add, operator.mul, torch.sub, torch.add, torch.multiply)
STEPS = st.tuples(st.sampled_from(range(len(BINARY))), st.integers(0, 30), st.integers(0, 30), st.booleans())
"""Function, first operand, second operand (both counted backwards from the newest value), write in place instead."""


def build(steps, inputs, results):
    """Return a graph module of `steps`; what it returns are the newest `results` values."""
    graph = Graph()
    values = [graph.placeholder(f"x{index}") for index in range(inputs)]
    for function, first, second, in_place in steps:
        one, other = values[-1 - first % len(values)], values[-1 - second % len(values)]
        if in_place:
            values.append(graph.call_method("add_", (one, 1)))
        else:
            values.append(graph.call_function(BINARY[function], (one, other)))
    graph.output(tuple(values[-results:]))
    return GraphModule({}, graph)


def pattern_from(steps, *, returns_all):
    """Return a pattern whose every value is used or returned."""
    module = build([(*step[:3], False) for step in steps], 2, 1)
    graph = module.graph
    output = graph.output_node()
    unused = [node for node in graph.nodes if node.op == "call_function" and (returns_all or not node.users)]
    output.args = (tuple(dict.fromkeys((*unused, *output.all_input_nodes))),)
    for node in graph.find_nodes(op="placeholder"):
        if not node.users:
            graph.erase_node(node)
    return module


def same_but_different(pattern):
    """Return a replacement that computes the same in other words: a + b as torch.add(b, a), and so on."""
    graph = Graph()
    values = {}
    for node in pattern.graph.nodes:
        if node.op == "placeholder":
            values[node] = graph.placeholder(str(node.target))
            continue
        if node.op == "output":
            graph.output(tuple(values[result] for result in node.args[0]))
            continue
        one, other = (values[argument] for argument in node.args)
        if node.target is torch.sub:
            values[node] = graph.call_function(torch.add, (one, graph.call_function(torch.neg, (other,))))
        else:
            name = {operator.add: "add", torch.add: "add"}.get(node.target, "mul")
            values[node] = graph.call_method(name, (other, one))
    return GraphModule({}, graph)


@settings(max_examples=300, deadline=None)
@given(
    program=st.lists(STEPS, min_size=1, max_size=14),
    pattern=st.lists(STEPS, min_size=1, max_size=3),
    returns_all=st.booleans(),
    results=st.integers(1, 4),
)
def test_an_equivalent_replacement_changes_no_program(program, pattern, returns_all, results):
    module = build(program, 2, results)
    wanted = pattern_from(pattern, returns_all=returns_all)
    inputs = [torch.tensor([0.5, -1.25], dtype=torch.float64), torch.tensor([1.5, 0.75], dtype=torch.float64)]
    expected_inputs = [value.clone() for value in inputs]
    expected = module(*expected_inputs)
    before = str(module.graph)

    found = len(SubgraphMatcher(wanted).match(module.graph))
    replaced = replace_pattern(module, wanted, same_but_different(wanted))

    module.graph.lint()
    assert len(replaced) <= found
    assert (str(module.graph) == before) is not bool(replaced)
    torch.testing.assert_close(module(*inputs), expected, equal_nan=True)
    torch.testing.assert_close(inputs, expected_inputs, equal_nan=True)


@settings(max_examples=150, deadline=None)
@given(program=st.lists(STEPS, min_size=1, max_size=14), results=st.integers(1, 4))
def test_a_value_may_always_be_replaced_by_itself_where_nothing_is_written(program, results):
    """x * 1 is put in for every value, and taken out again."""
    module = build([(*step[:3], False) for step in program], 2, results)
    inputs = [torch.tensor([0.5, -1.25], dtype=torch.float64), torch.tensor([1.5, 0.75], dtype=torch.float64)]
    expected = module(*inputs)
    sums = sum(
        len(module.graph.find_nodes(op="call_function", target=target))
        for target in (operator.add, torch.add)
    )

    added = replace_pattern(module, lambda a, b: a + b, lambda a, b: torch.mul(a + b, 1))
    removed = replace_pattern(module, lambda v: torch.mul(v, 1), lambda v: v)

    module.graph.lint()
    assert len(added) == len(removed) == sums
    torch.testing.assert_close(module(*inputs), expected, rtol=0, atol=0)

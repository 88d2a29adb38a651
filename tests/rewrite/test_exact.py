"""Places that are spelt as the pattern is: found the short way, they are what the long way finds."""

from __future__ import annotations

import copy
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fxplug
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.rewrite import Const, Pattern, SubgraphMatcher, replace_pattern, replace_pattern_with_filters

TARGETS = (operator.add, torch.add, torch.relu, torch.neg)
STEPS = st.tuples(
    st.sampled_from(range(6)),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([1, 1.0, True, 0.0, -0.0]),
)


def relu(x):
    return torch.relu(x)


def sigmoid(x):
    return torch.sigmoid(x)


def relu_and_one(x):
    return torch.relu(x) + 1


def gelu(x):
    return torch.nn.functional.gelu(x)


def build(steps, *, results=1):
    graph = Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for kind, first, second, constant in steps:
        one, other = values[-1 - first % len(values)], values[-1 - second % len(values)]
        if kind < 2:
            values.append(graph.call_function(TARGETS[kind], (one, other if second % 2 else constant)))
        elif kind < 4:
            values.append(graph.call_function(TARGETS[kind], (one,)))
        elif kind == 4:
            values.append(graph.call_method("relu", (one,)))
        else:
            values.append(graph.call_function(torch.add, (one,), {"other": other}))
    graph.output(tuple(values[-results:]))
    return GraphModule({}, graph)


PATTERNS = (
    lambda x: torch.relu(x) + 1,
    lambda x, y: torch.neg(torch.relu(x) + y),
    lambda x: torch.add(x, x),
    lambda x: torch.add(torch.neg(x), 0.0),
    lambda x, y: torch.relu(x + torch.neg(y)),
    lambda x: x.relu() + x,
)


@given(
    st.lists(STEPS, min_size=1, max_size=25),
    st.integers(0, len(PATTERNS) - 1),
    st.integers(1, 3),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_the_short_way_finds_what_the_long_way_finds(steps, which, results, one_only):
    module = build(steps, results=results)
    pattern = fxplug.symbolic_trace(PATTERNS[which])
    short, long = (SubgraphMatcher(pattern, remove_overlapping_matches=one_only) for _ in range(2))
    assert (short._exact is None) is (which == 3)  # Two zeros are equal, and are not the same.
    long._exact = None
    found, expected = short.match(module.graph), long.match(module.graph)
    assert [match.nodes_map for match in found] == [match.nodes_map for match in expected]
    assert [match.members for match in found] == [match.members for match in expected]
    assert [match.placeholder_nodes for match in found] == [match.placeholder_nodes for match in expected]


@pytest.mark.parametrize("constant", [1.0, True, 2, None])
def test_a_constant_of_another_type_is_another_constant(constant):
    graph = Graph()
    graph.output(graph.call_function(operator.getitem, (graph.placeholder("x"), constant)))
    assert SubgraphMatcher(fxplug.symbolic_trace(lambda x: x[1])).match(graph) == []


def test_patterns_of_other_things_than_plain_calls_go_the_long_way():
    module = torch.nn.Sequential(torch.nn.ReLU())
    for pattern in (
        fxplug.symbolic_trace(module),
        fxplug.symbolic_trace(lambda x: torch.add(x, other=x)),
        fxplug.symbolic_trace(lambda x: x[0:2]),
        fxplug.symbolic_trace(lambda x: (torch.relu(x), torch.neg(x))),
        fxplug.symbolic_trace(lambda x: x + 0.5),
    ):
        assert SubgraphMatcher(pattern)._exact is None
    assert SubgraphMatcher(fxplug.symbolic_trace(relu), ignore_literals=True)._exact is None
    assert SubgraphMatcher(fxplug.symbolic_trace(relu), match_placeholder=True)._exact is None
    assert Pattern(lambda x, n: x[n], n=Const(lambda n: n == 1)).matcher._exact is None


def test_a_replacement_of_one_call_inherits_region_origins_and_notes():
    def program(x):
        with torch.no_grad():
            return torch.relu(x) + 1

    module = fxplug.symbolic_trace(program)
    relu, add = (node for node in module.graph.nodes if node.op == "call_function")
    add.meta["mine"] = 3
    expected = tuple(origin.code for origin in (*add.origins, *relu.origins))
    (place,) = replace_pattern_with_filters(module, relu_and_one, gelu)
    (new,) = place.replacements
    assert new.region == add.region != ()
    assert new.meta["mine"] == 3
    assert tuple(origin.code for origin in new.origins) == expected
    assert [entry.name for entry in new.history] == ["replace_pattern"]
    assert torch.equal(module(torch.ones(2)), torch.nn.functional.gelu(torch.ones(2)))


def test_a_replacement_of_one_call_may_follow_another_one():
    module = fxplug.symbolic_trace(lambda x: torch.relu(torch.relu(torch.relu(x))))
    assert len(replace_pattern(module, relu, lambda x: torch.clamp(x, 0, 1))) == 3
    assert torch.equal(module(torch.tensor([-1.0, 0.5, 3.0])), torch.tensor([0.0, 0.5, 1.0]))


def test_copies_of_a_replaced_node_have_its_very_origins():
    module = fxplug.symbolic_trace(relu_and_one)
    replace_pattern(module, relu_and_one, gelu)
    copied = copy.deepcopy(module)
    (new,) = [node for node in module.graph.nodes if node.op == "call_function"]
    (other,) = [node for node in copied.graph.nodes if node.op == "call_function"]
    assert len(new.origins) == 2
    assert all(one is another for one, another in zip(new.origins, other.origins, strict=True))


def test_a_place_that_is_replaced_hundreds_of_times_still_knows_its_origin():
    module = fxplug.symbolic_trace(relu)
    (line,) = [node.origins[0].source() for node in module.graph.nodes if node.op == "call_function"]
    for _ in range(250):
        assert replace_pattern(module, relu, sigmoid)
        assert replace_pattern(module, sigmoid, relu)
    (last,) = [node for node in module.graph.nodes if node.op == "call_function"]
    assert [origin.source() for origin in last.origins] == [line]
    assert len(last.history) == 1


def test_a_place_whose_inner_value_lies_in_another_region_is_left_alone():
    def program(x):
        with torch.no_grad():
            inner = torch.relu(x)
        return inner + 1

    module = fxplug.symbolic_trace(program)
    assert not replace_pattern(module, relu_and_one, gelu)


def test_an_input_that_is_part_of_the_place_stands_against_it():
    def program(x):
        inner = torch.relu(x)
        return inner + inner

    module = fxplug.symbolic_trace(program)
    assert not replace_pattern(module, lambda x, y: torch.relu(x) + y, lambda x, y: torch.sigmoid(x) * y)

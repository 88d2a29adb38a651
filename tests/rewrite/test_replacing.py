"""replace_pattern: what is put where."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import InvalidArgumentError
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.rewrite import Match, ReplacedPatterns, replace_pattern, replace_pattern_with_filters

X = torch.linspace(-2, 2, 6).reshape(2, 3)


def absolute(x):
    return torch.abs(x)


def relu(x):
    return torch.relu(x)


def sigmoid(x):
    return torch.sigmoid(x)


def tanh(x):
    return torch.tanh(x)


def add(x, y):
    return torch.add(x, y)


def subtract(x, y):
    return torch.sub(x, y)


def power(x, n):
    return torch.pow(x, n)


def test_every_match_is_replaced(capture, calls):
    module = capture(lambda x: torch.relu(x).neg() + torch.relu(x * 2))

    matches = replace_pattern(module, relu, lambda x: torch.clamp(x, min=0))

    module.graph.lint()
    assert calls(module) == ["clamp", "neg", "mul", "clamp", "add"]
    assert len(matches) == 2
    torch.testing.assert_close(module(X), torch.relu(X).neg() + torch.relu(X * 2))


def test_a_match_says_which_node_stood_for_which(capture):
    module = capture(lambda x: torch.relu(x + 1))
    pattern = capture(relu)

    (match,) = replace_pattern(module, pattern, sigmoid)

    assert isinstance(match, Match)
    assert match.anchor in pattern.graph.nodes
    assert {wanted.name: found.name for wanted, found in match.nodes_map.items()} == {
        "relu": "relu",
        "x": "add",
    }
    assert match.nodes_map[match.anchor].target is torch.relu


def test_no_match_changes_nothing(capture):
    module = capture(relu)
    version = module.graph.version

    assert replace_pattern(module, sigmoid, tanh) == []
    assert module.graph.version == version


def test_the_module_runs_the_new_program_at_once(capture):
    module = capture(relu)
    module(X)

    replace_pattern(module, relu, lambda x: x * 10)

    assert torch.equal(module(X), X * 10)


def test_matches_that_share_inputs_are_all_replaced(capture, calls):
    module = capture(lambda x, y: (x + y) * (x + y))

    assert len(replace_pattern(module, lambda a, b: a + b, lambda a, b: torch.sub(a, -b))) == 2

    torch.testing.assert_close(module(X, X + 1), (X + X + 1) ** 2)


def test_of_overlapping_matches_the_first_in_the_graph_is_replaced(capture, calls):
    module = capture(lambda x: torch.neg(torch.neg(torch.neg(torch.neg(torch.neg(x))))))

    assert len(replace_pattern(module, lambda x: torch.neg(torch.neg(x)), absolute)) == 2
    assert calls(module) == ["abs", "abs", "neg"]


def test_what_a_replacement_brings_is_not_searched_again(capture, calls):
    module = capture(relu)

    assert len(replace_pattern(module, relu, lambda x: torch.relu(torch.relu(x)))) == 1
    assert calls(module) == ["relu", "relu"]


def test_matches_back_to_back_feed_each_other(capture, calls):
    """The input of one match is the result of another one, inside a list too."""
    module = capture(lambda x: torch.cat([torch.cat([x, x]), torch.cat([torch.cat([x, x]), x])]))
    expected = module(X)

    matches = replace_pattern(module, lambda a, b: torch.cat([a, b]), lambda a, b: torch.vstack([a, b]))

    module.graph.lint()
    assert calls(module) == ["vstack"] * 4
    assert len(matches) == 4
    assert torch.equal(module(X), expected)
    last = matches[-1].nodes_map
    assert all(node in module.graph.nodes for wanted, node in last.items() if wanted.op == "placeholder")


def test_a_chain_of_matches_is_replaced_by_its_inputs(capture, calls):
    module = capture(lambda x: ((x + 0) + 0) + 0)

    assert len(replace_pattern(module, lambda x: x + 0, lambda x: x)) == 3
    module.graph.lint()
    assert calls(module) == []
    assert module(X) is X


def test_a_replacement_may_return_a_plain_value(capture):
    module = capture(lambda x: (x * 2, x.dim()))

    replace_pattern(module, lambda x: x.dim(), lambda x: 2)

    assert module(X)[1] == 2
    assert module.graph.output_node().args[0][1] == 2


def test_a_parameter_may_stand_for_a_plain_value(capture, calls):
    module = capture(lambda x: torch.add(x, 3) / torch.add(x, x * 2))

    assert len(replace_pattern(module, add, subtract)) == 2
    torch.testing.assert_close(module(X), (X - 3) / (X - X * 2))


def test_a_parameter_may_stand_for_a_list(capture):
    module = capture(lambda x, y: torch.cat([x, y], 1))

    replace_pattern(module, lambda values: torch.cat(values, 1), lambda values: torch.concatenate(values, 1))

    assert torch.equal(module(X, X + 1), torch.cat([X, X + 1], 1))


def test_a_parameter_that_is_used_twice_stands_for_one_value(capture, calls):
    module = capture(lambda x, y: (x * x, x * y, torch.clamp(x, 1, 1), torch.clamp(x, 1, 3)))

    squares = replace_pattern(module, lambda v: v * v, lambda v: v**2)
    bounds = replace_pattern(module, lambda v, n: torch.clamp(v, n, n), lambda v, n: torch.zeros_like(v) + n)

    assert [len(squares), len(bounds)] == [1, 1]
    assert calls(module) == ["pow", "mul", "zeros_like", "add", "clamp"]


def test_two_parameters_may_stand_for_one_value(capture, calls):
    module = capture(lambda x: x + x)

    assert len(replace_pattern(module, lambda a, b: a + b, lambda a, b: torch.sub(a, -b))) == 1
    torch.testing.assert_close(module(X), X + X)


def test_a_pattern_may_be_the_whole_graph(capture, calls):
    module = capture(lambda x: torch.relu(x) + 1)

    replace_pattern(module, lambda x: torch.relu(x) + 1, sigmoid)

    module.graph.lint()
    assert calls(module) == ["sigmoid"]


def relu_used_twice(x):
    value = torch.relu(x)
    return value + 1, torch.neg(value)


def test_a_value_that_the_pattern_returns_may_be_used_elsewhere(capture):
    module = capture(relu_used_twice)

    assert len(replace_pattern(module, relu, lambda x: torch.clamp(x, min=0))) == 1
    module.graph.lint()


def test_a_value_that_is_used_elsewhere_belongs_to_no_match_that_keeps_it_inside(capture):
    module = capture(relu_used_twice)

    assert replace_pattern(module, lambda x: torch.relu(x) + 1, sigmoid) == []


def test_several_results_are_each_replaced(capture, calls):
    def program(x):
        doubled = x * 2
        return torch.relu(doubled), doubled.sum()

    def pattern(x):
        doubled = x * 2
        return doubled, torch.relu(doubled)

    def replacement(x):
        doubled = x + x
        return doubled, torch.clamp(doubled, min=0)

    module = capture(program)
    assert len(replace_pattern(module, pattern, replacement)) == 1

    module.graph.lint()
    assert sorted(calls(module)) == ["add", "clamp", "sum"]
    for ours, theirs in zip(module(X), program(X), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_user_between_two_results_comes_behind_the_replacement(capture):
    def program(x):
        first = x * 2
        between = first - 1
        return torch.relu(first), between

    def pattern(x):
        first = x * 2
        return first, torch.relu(first)

    module = capture(program)
    assert len(replace_pattern(module, pattern, lambda x: (x + x, torch.relu(x + x)))) == 1

    module.graph.lint()
    torch.testing.assert_close(module(X), program(X))


def test_results_of_separate_calls_are_found_together(capture, calls):
    module = capture(lambda x, y: torch.relu(x) - torch.neg(y))

    matches = replace_pattern(
        module, lambda a, b: (torch.neg(b), torch.relu(a)), lambda a, b: (torch.abs(b), torch.sigmoid(a))
    )

    module.graph.lint()
    assert len(matches) == 1
    torch.testing.assert_close(module(X, X), torch.sigmoid(X) - torch.abs(X))


def test_a_result_may_be_returned_twice(capture, calls):
    module = capture(lambda x: torch.relu(x) * 2)

    replace_pattern(
        module, lambda x: (torch.relu(x), torch.relu(x)), lambda x: (torch.sigmoid(x), torch.tanh(x))
    )
    assert calls(module) == ["relu", "mul"]  # One call is not two.

    def pattern(x):
        value = torch.relu(x)
        return value, value

    def replacement(x):
        value = torch.sigmoid(x)
        return value, value

    assert len(replace_pattern(module, pattern, replacement)) == 1
    assert calls(module) == ["sigmoid", "mul"]


def test_an_input_may_be_among_the_results_of_both(capture, calls):
    module = capture(lambda x: torch.relu(x) * 2)

    replace_pattern(module, lambda x: (torch.relu(x), x), lambda x: (torch.sigmoid(x), x))

    assert calls(module) == ["sigmoid", "mul"]


def test_results_may_be_nested(capture):
    module = capture(lambda x: torch.relu(x) + torch.neg(x))

    replace_pattern(
        module,
        lambda x: {"first": torch.relu(x), "rest": [torch.neg(x)]},
        lambda x: {"first": torch.tanh(x), "rest": [torch.abs(x)]},
    )

    torch.testing.assert_close(module(X), torch.tanh(X) + torch.abs(X))


def test_further_parameters_of_the_replacement_take_their_defaults(capture):
    module = capture(relu)

    replace_pattern(module, relu, lambda x, slope=0.5: F.leaky_relu(x, slope))

    torch.testing.assert_close(module(X), F.leaky_relu(X, 0.5))


def test_a_parameter_that_the_replacement_does_not_use_is_left_behind(capture, calls):
    module = capture(lambda x, y: torch.add(x, torch.neg(y)))

    replace_pattern(module, add, lambda a, b: torch.relu(a))

    module.graph.lint()
    assert calls(module) == ["neg", "relu"]


def test_a_returned_input_may_stand_for_a_slice(capture):
    module = capture(lambda x: x[1:] + 1)

    replace_pattern(module, lambda v, part: (v[part] + 1, part), lambda v, part: (v[part] - 1, part))

    torch.testing.assert_close(module(X), X[1:] - 1)


def test_a_callee_that_cannot_be_hashed_is_matched():
    class Twice:
        __hash__ = None

        def __call__(self, value):
            return value * 2

    def one_call(callee):
        graph = Graph()
        graph.output(graph.call_function(callee, (graph.placeholder("v"),)))
        return GraphModule({}, graph)

    twice = Twice()
    module = one_call(twice)

    assert len(replace_pattern(module, one_call(twice), lambda v: v * 3)) == 1
    assert replace_pattern(one_call(twice), one_call(Twice()), lambda v: v * 3) == []


def test_a_module_may_be_its_own_pattern(capture, calls):
    module = capture(lambda x: torch.relu(x) + 1)

    replace_pattern(module, module, lambda x: torch.sigmoid(x) - 1)

    module.graph.lint()
    assert calls(module) == ["sigmoid", "sub"]


def test_graphs_made_by_hand_serve_as_pattern_and_replacement(capture):
    def one_call(function):
        graph = Graph()
        graph.output(graph.call_function(function, (graph.placeholder("v"),)))
        return graph

    module = capture(relu)

    assert len(replace_pattern(module, one_call(torch.relu), one_call(torch.tanh))) == 1
    assert torch.equal(module(X), torch.tanh(X))


def test_a_graph_without_root_is_rewritten():
    graph = Graph()
    graph.output(graph.call_function(operator.neg, (graph.placeholder("x"),)))
    module = GraphModule({}, graph)

    replace_pattern(module, lambda x: -x, lambda x: x * -1)

    assert torch.equal(module(X), -X)


# -- filters and callbacks


def test_a_filter_decides_for_each_match(capture, calls):
    module = capture(lambda x: torch.relu(x) + torch.relu(x * 2))
    asked = []

    def is_behind_an_input(match, graph, pattern_graph):
        asked.append((graph is module.graph, len(pattern_graph.nodes)))
        return match.placeholder_nodes[0].op == "placeholder"

    replaced = replace_pattern_with_filters(module, relu, tanh, match_filters=[is_behind_an_input])

    assert calls(module) == ["tanh", "mul", "relu", "add"]
    assert asked == [(True, 3), (True, 3)]
    assert [type(place) for place in replaced] == [ReplacedPatterns]


def test_a_match_that_a_filter_refuses_is_in_no_other_matchs_way(capture, calls):
    module = capture(lambda x: torch.neg(torch.neg(torch.neg(x))))

    replace_pattern_with_filters(
        module,
        lambda x: torch.neg(torch.neg(x)),
        absolute,
        match_filters=[lambda match, graph, pattern: match.placeholder_nodes[0].op != "placeholder"],
    )

    assert calls(module) == ["neg", "abs"]


def test_all_filters_must_agree(capture):
    module = capture(relu)
    yes, no = (lambda *_: True), (lambda *_: False)

    replaced = replace_pattern_with_filters(module, relu, tanh, match_filters=[yes, no])

    assert replaced == []


def test_a_callback_chooses_the_replacement_for_each_match(capture, calls):
    module = capture(lambda x: torch.pow(x, 2) + torch.pow(x, 3))

    def choose(match, graph, pattern_graph):
        exponent = match.placeholder_nodes[1]
        replacement = Graph()
        base, _ = replacement.placeholder("base"), replacement.placeholder("exponent")
        result = base
        for _ in range(exponent - 1):
            result = replacement.call_function(operator.mul, (result, base))
        replacement.output(result)
        return replacement

    replaced = replace_pattern_with_filters(module, power, replacement_callback=choose)

    module.graph.lint()
    assert calls(module) == ["mul", "mul", "mul", "add"]
    assert [[node.name for node in place.replacements] for place in replaced] == [["mul"], ["mul_1", "mul_2"]]
    torch.testing.assert_close(module(X), X**2 + X**3)


def test_plain_values_can_be_ignored(capture, calls):
    module = capture(lambda x: (x + 1) * (x + 2.5))

    exact = replace_pattern(capture(lambda x: (x + 1) * (x + 2.5)), lambda x: x + 1, lambda x: x - 1)
    loose = replace_pattern_with_filters(module, lambda x: x + 1, lambda x: x - 1, ignore_literals=True)

    assert [len(exact), len(loose)] == [1, 2]


def test_ignored_plain_values_still_have_to_be_plain(capture):
    module = capture(lambda x, y: x + y)

    assert replace_pattern_with_filters(module, lambda x: x + 1, lambda x: x - 1, ignore_literals=True) == []


def test_an_anchor_can_be_found_by_name(capture, calls):
    module = capture(lambda x: torch.relu(x) + torch.tanh(x))

    replace_pattern_with_filters(module, sigmoid, absolute, node_name_match="tanh")

    assert calls(module) == ["relu", "abs", "add"]


# -- what new nodes know


def test_new_nodes_come_from_the_lines_of_the_old_ones(capture):
    module = capture(lambda x: torch.relu(x) + 1)
    old = [node.origins[0].source().line for node in module.graph.nodes if node.op == "call_function"]

    (place,) = replace_pattern_with_filters(
        module, lambda x: torch.relu(x) + 1, lambda x: torch.tanh(torch.sigmoid(x))
    )

    for node in place.replacements:
        assert sorted(origin.source().line for origin in node.origins) == old
        assert {origin.made_by for origin in node.origins} == {"replace_pattern"}
        assert "torch.relu(x) + 1" in node.stack_trace


def test_a_new_node_names_the_module_of_the_old_one(capture):
    class Block(nn.Module):
        def forward(self, x):
            return torch.relu(x)

    module = capture(nn.Sequential(Block()))

    (place,) = replace_pattern_with_filters(module, relu, sigmoid)

    assert list(place.replacements[0].meta["nn_module_stack"]) == ["", "0"]


def test_nodes_made_by_hand_take_the_lines_of_the_replacement():
    graph = Graph()
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))

    (place,) = replace_pattern_with_filters(GraphModule({}, graph), relu, tanh)

    (origin,) = place.replacements[0].origins
    assert origin.made_by == "replace_pattern"
    assert "torch.tanh(x)" in origin.source().text


def test_notes_go_over_unless_they_are_facts_about_a_value(capture):
    module = capture(lambda x: torch.relu(x) + 1)
    for node in module.graph.nodes:
        node.meta.update({"stage": 3, "who": node.name, "tensor_meta": "shape", "val": "value", "type": int})

    (place,) = replace_pattern_with_filters(
        module, lambda x: torch.relu(x) + 1, lambda x: torch.neg(torch.sigmoid(x))
    )

    inner, last = ({**node.meta} for node in place.replacements)
    assert (inner["stage"], last["stage"]) == (3, 3)
    assert "who" not in inner  # The old nodes do not agree.
    assert last["who"] == "add"
    assert not {"tensor_meta", "val", "type"} & (inner.keys() | last.keys())


def test_notes_of_the_replacement_win(capture):
    module = capture(relu)
    next(node for node in module.graph.nodes if node.name == "relu").meta["stage"] = 1
    replacement = capture(sigmoid)
    next(node for node in replacement.graph.nodes if node.name == "sigmoid").meta["stage"] = 2

    (place,) = replace_pattern_with_filters(module, relu, replacement)

    assert place.replacements[0].meta["stage"] == 2


def test_notes_are_not_shared_between_places(capture):
    module = capture(lambda x: torch.relu(x) + torch.relu(x))
    for node in module.graph.nodes:
        node.meta["list"] = []

    first, second = replace_pattern_with_filters(module, relu, tanh)
    first.replacements[0].meta["list"].append(1)

    assert second.replacements[0].meta["list"] == []


def test_the_annotation_of_a_value_goes_over(capture):
    module = capture(relu)
    module.graph.find_nodes(op="call_function")[0].type = torch.Tensor

    (place,) = replace_pattern_with_filters(module, relu, tanh)

    assert place.replacements[0].type is torch.Tensor


def test_something_else_than_a_graph_module_is_refused():
    import torch.fx

    traced = torch.fx.symbolic_trace(nn.ReLU())

    with pytest.raises(InvalidArgumentError) as caught:
        replace_pattern(traced, relu, tanh)

    assert "Cannot replace a pattern in a torch.fx.graph_module.GraphModule" in str(caught.value)
    assert "fxplug.symbolic_trace" in str(caught.value)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        for _ in range(2):
            x = self.act(x)
        return x * 2


@pytest.mark.parametrize("read", [0, 2, 3])
def test_calls_of_one_line_are_two_origins_whoever_has_read_them(read):
    module = fxplug.symbolic_trace(Twice())
    assert all(node.origins for node in list(module.graph.nodes)[1:read])
    pattern, replacement = fxplug.Graph(), fxplug.Graph()
    inner = pattern.call_module("act", (pattern.placeholder("a"),))
    pattern.output(pattern.call_module("act", (inner,)))
    replacement.output(replacement.call_function(torch.sigmoid, (replacement.placeholder("a"),)))

    assert len(fxplug.replace_pattern(module, pattern, replacement)) == 1
    (node,) = [node for node in module.graph.nodes if node.target is torch.sigmoid]
    assert len(node.origins) == 2

"""Which places are like a pattern."""

# ruff: noqa: PLW0108 - a pattern is a function of Python; functions of torch have no signature to trace

from __future__ import annotations

import math
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxplug.ir import Graph, RegionEntry
from fxplug.rewrite import SubgraphMatcher


def relu(x):
    return torch.relu(x)


def matches(program, pattern, capture, **options):
    module = capture(program)
    return SubgraphMatcher(capture(pattern), **options).match(module.graph)


def with_a_number(x, n):
    return x.view(n + 1, -1)


with_a_number.__annotations__["n"] = int


DIFFERENT = {
    "another_value": (lambda x: torch.add(x, 1), lambda x: torch.add(x, 2)),
    "integer_for_float": (lambda x: torch.add(x, 1), lambda x: torch.add(x, 1.0)),
    "integer_for_bool": (lambda x: torch.add(x, 1), lambda x: torch.add(x, True)),
    "other_zero": (lambda x: torch.add(x, 0.0), lambda x: torch.add(x, -0.0)),
    "other_complex_zero": (lambda x: torch.add(x, 1 + 0j), lambda x: torch.add(x, complex(1, -0.0))),
    "other_dtype": (lambda x: x.to(torch.float16), lambda x: x.to(torch.float32)),
    "other_keyword_value": (lambda x: x.sum(dim=1), lambda x: x.sum(dim=0)),
    "missing_keyword": (lambda x: x.sum(dim=1), lambda x: x.sum()),
    "other_value_by_position": (lambda x: torch.sum(x, 1), lambda x: torch.sum(x, dim=0)),
    "work_in_place": (lambda x: x.relu_(), relu),
    "work_in_place_by_a_flag": (lambda x: F.relu(x, inplace=True), relu),
    "scaled_other": (lambda x: x + x * 2, lambda x, y: torch.add(x, y, alpha=2)),
    "other_order": (lambda x: 2 - x, lambda x: x - 2),
    "numbers_for_tensors": (lambda x: x.view(x.shape[0] + 1, -1), lambda a, b: torch.add(a, b)),
    "number_that_an_annotation_tells": (with_a_number, lambda a, b: torch.add(a, b)),
    "where_of_a_mask": (lambda x: (x > 0).where(x > 1, x), lambda m, a, b: torch.where(m, a, b)),
    "other_slice": (lambda x: x[1:], lambda x: x[:1]),
    "index_for_slice": (lambda x: x[1:], lambda x: x[1]),
    "shorter_list": (lambda x: torch.cat([x, x]), lambda x: torch.cat([x, x, x])),
    "list_for_element": (lambda x: x[0, 1], lambda x: x[0, [1]]),
    "other_input": (lambda x, y: torch.sub(x, y) + x, lambda x, y: torch.sub(x, y) + y),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_call_is_no_match(name, capture):
    assert matches(*DIFFERENT[name], capture) == []


SAME = {
    "nan": (lambda x: torch.add(x, math.nan), lambda x: torch.add(x, math.nan)),
    "keyword_stands_for_value": (lambda x: torch.add(x, 2, alpha=3), lambda x, v: torch.add(x, 2, alpha=v)),
    "slice_and_ellipsis": (lambda x: x[1:, ..., None], lambda x: x[1:, ..., None]),
    "slice_with_traced_bound": (lambda x: x[: x.shape[0]], lambda x, n: x[:n]),
    "order_of_keywords": (lambda x: x.sum(dim=1, keepdim=True), lambda x: x.sum(keepdim=True, dim=1)),
    "tuple_for_list": (lambda x: torch.cat((x, x)), lambda x: torch.cat([x, x])),
    "list_of_sizes": (lambda x: x.permute([1, 0]), lambda x: x.permute((1, 0))),
    "positional_for_keyword": (lambda x: F.softmax(x, -1), lambda x: F.softmax(x, dim=-1)),
    "defaults_spelt_out": (
        lambda x: F.dropout(x) + 0,
        lambda x: F.dropout(x, p=0.5, training=True, inplace=False) + 0,
    ),
    "dimension_by_position": (lambda x: torch.sum(x, 1), lambda x: torch.sum(x, dim=1)),
    "default_of_a_builtin": (lambda x: torch.add(x, x), lambda a, b: torch.add(a, b, alpha=1)),
    "default_of_an_operator": (
        lambda x: torch.ops.aten.add.Tensor(x, x),
        lambda a, b: torch.ops.aten.add.Tensor(a, b, alpha=1),
    ),
    "keyword_of_an_operator": (
        lambda x: torch.ops.aten.sum.dim_IntList(x, [0]),
        lambda x: torch.ops.aten.sum.dim_IntList(x, dim=[0]),
    ),
}


class Activates(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.activation = activation

    def forward(self, x):
        return self.activation(x)


SPELLINGS = {
    "add": [
        lambda x, y: x + y,
        lambda x, y: torch.add(x, y),
        lambda x, y: torch.add(input=x, other=y, alpha=1),
        lambda x, y: x.add(y),
        lambda x, y: x.add(other=y),
    ],
    "mul": [lambda x, y: x * y, lambda x, y: torch.multiply(x, y), lambda x, y: x.mul(y)],
    "div": [lambda x, y: x / y, lambda x, y: torch.true_divide(x, y), lambda x, y: x.div(y)],
    "iadd": [lambda x, y: operator.iadd(x, y), lambda x, y: x.add_(y)],
    "matmul": [lambda x, y: x @ y, lambda x, y: torch.matmul(x, y), lambda x, y: x.matmul(y)],
    "power": [lambda x: x**2, lambda x: torch.pow(x, 2), lambda x: x.pow(exponent=2)],
    "relu": [lambda x: torch.relu(x), lambda x: F.relu(x), lambda x: F.relu(x, False), lambda x: x.relu()],
    "relu_in_place": [lambda x: F.relu(x, inplace=True), lambda x: torch.relu_(x), lambda x: x.relu_()],
    "softmax": [
        lambda x: F.softmax(x, -1),
        lambda x: torch.softmax(x, dim=-1),
        lambda x: x.softmax(-1),
    ],
    "sizes": [lambda x: x.view(2, 3), lambda x: x.view((2, 3)), lambda x: x.view([2, 3])],
    "reduced": [lambda x: x.sum(1), lambda x: torch.sum(x, dim=1), lambda x: x.sum(dim=1, keepdim=False)],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_of_a_call_is_found_by_every_other(name, capture):
    for program in SPELLINGS[name]:
        for pattern in SPELLINGS[name]:
            assert len(matches(program, pattern, capture)) == 1


MODULES = {
    "relu": (nn.ReLU(), lambda x: torch.relu(x)),
    "relu_in_place": (nn.ReLU(inplace=True), lambda x: x.relu_()),
    "leaky_relu": (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2)),
    "gelu": (nn.GELU(approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "flatten": (nn.Flatten(), lambda x: torch.flatten(x, 1)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_found_by_the_function_that_it_calls(name, capture):
    module, pattern = MODULES[name]
    assert len(SubgraphMatcher(capture(pattern)).match(capture(Activates(module)).graph)) == 1


OTHER_MODULES = {
    "other_setting": (nn.LeakyReLU(0.1), lambda x: F.leaky_relu(x, 0.2)),
    "in_place": (nn.ReLU(inplace=True), lambda x: torch.relu(x)),
    "not_in_place": (nn.ReLU(), lambda x: x.relu_()),
}


@pytest.mark.parametrize("name", OTHER_MODULES)
def test_a_module_with_other_settings_is_not(name, capture):
    module, pattern = OTHER_MODULES[name]
    assert SubgraphMatcher(capture(pattern)).match(capture(Activates(module)).graph) == []


def test_a_module_with_a_hook_does_more_than_the_function(capture):
    hooked = nn.ReLU()
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    assert SubgraphMatcher(capture(relu)).match(capture(Activates(hooked)).graph) == []


COMMUTED = {
    "sum": (lambda x: 1 + torch.relu(x), lambda a: torch.relu(a) + 1),
    "product_of_two_calls": (lambda x: torch.cos(x) * torch.sin(x), lambda a: torch.sin(a) * torch.cos(a)),
    "another_spelling": (lambda x: torch.add(x, torch.relu(x)), lambda a: torch.relu(a) + a),
    "both_of_two": (
        lambda x, y: (y * torch.cos(x)) + torch.relu(x),
        lambda a, b: torch.relu(a) + (torch.cos(a) * b),
    ),
    "the_inner_one": (lambda x, y: (y + torch.cos(x)) - x, lambda a, b: (torch.cos(a) + b) - a),
}


@pytest.mark.parametrize("name", COMMUTED)
def test_arguments_that_may_change_places_are_matched_in_either_order(name, capture):
    assert len(matches(*COMMUTED[name], capture)) == 1


def test_arguments_of_others_keep_their_places(capture):
    assert matches(lambda x: 1 - torch.relu(x), lambda a: torch.relu(a) - 1, capture) == []
    assert (
        matches(
            lambda x: torch.add(1, torch.relu(x), alpha=2),
            lambda a: torch.add(torch.relu(a), 1, alpha=2),
            capture,
        )
        == []
    )


@pytest.mark.parametrize("name", SAME)
def test_the_same_call_is_a_match_however_it_is_spelt(name, capture):
    assert len(matches(*SAME[name], capture)) == 1


def test_a_list_is_another_index_than_a_tuple(capture):
    assert matches(lambda x: x[0, 1], lambda x: x[[0, 1]], capture) == []
    assert matches(lambda x: x[[0, 1]], lambda x: x[0, 1], capture) == []
    assert len(matches(lambda x: x[[0, 1]], lambda x: x[[0, 1]], capture)) == 1


def relu_plus_itself(x):
    value = torch.relu(x)
    return value + value


def test_the_same_node_does_not_stand_for_two_calls_of_the_pattern(capture):
    assert matches(relu_plus_itself, lambda x: torch.relu(x) + torch.relu(x), capture) == []


def test_an_input_of_a_match_is_none_of_its_calls(capture):
    """What the second parameter stands for would be gone when the replacement needs it."""
    assert matches(relu_plus_itself, lambda a, b: torch.relu(a) + b, capture) == []


def test_matches_come_in_the_order_of_the_graph(capture):
    module = capture(lambda x: torch.relu(torch.relu(x) + 1) * torch.relu(x))
    matcher = SubgraphMatcher(capture(relu))

    assert [match.returning_nodes[0].name for match in matcher.match(module.graph)] == [
        "relu",
        "relu_1",
        "relu_2",
    ]


def test_overlapping_matches_are_kept_on_request(capture):
    pattern = lambda x: torch.neg(torch.neg(x))  # noqa: E731
    program = lambda x: torch.neg(torch.neg(torch.neg(x)))  # noqa: E731

    assert len(matches(program, pattern, capture)) == 1
    assert len(matches(program, pattern, capture, remove_overlapping_matches=False)) == 2


def test_placeholders_can_be_matched_with_inputs_only(capture):
    program = lambda x: torch.relu(torch.relu(x) + 2)  # noqa: E731

    assert len(matches(program, relu, capture)) == 2
    assert len(matches(program, relu, capture, match_placeholder=True)) == 1
    assert matches(lambda x: x + 2, lambda x, y: x + y, capture, match_placeholder=True) == []


def test_the_output_can_be_part_of_the_pattern(capture):
    program = lambda x: torch.relu(torch.relu(x))  # noqa: E731

    (match,) = matches(program, relu, capture, match_output=True)

    assert match.returning_nodes[0].name == "relu_1"
    assert matches(lambda x: (torch.relu(x), x), relu, capture, match_output=True) == []


def test_a_match_knows_inputs_and_results_in_order(capture):
    module = capture(lambda x, y: (torch.sub(y, x), torch.neg(y)))

    (match,) = SubgraphMatcher(capture(lambda a, b: (torch.neg(a), torch.sub(a, b)))).match(module.graph)

    assert [node.name for node in match.placeholder_nodes] == ["y", "x"]
    assert [node.name for node in match.returning_nodes] == ["neg", "sub"]
    assert [node.name for node in match.anchors] == ["neg", "sub"]
    assert [node.name for node in match.calls()] == ["sub", "neg"]


def test_ends_that_belong_together_are_found_from_one_another(capture):
    """Each half of the pattern occurs often; only what hangs together counts."""
    module = capture(lambda x: [(torch.relu(part), torch.neg(part)) for part in (x + 1, x + 2, x + 3)])

    found = SubgraphMatcher(capture(lambda v: (torch.relu(v), torch.neg(v)))).match(module.graph)

    assert [[node.name for node in match.returning_nodes] for match in found] == [
        ["relu", "neg"],
        ["relu_1", "neg_1"],
        ["relu_2", "neg_2"],
    ]


def test_a_way_round_by_an_outside_node_is_no_match(capture):
    """One half of the match would have to run before the outside node, the other one behind it."""

    def program(x):
        first = torch.relu(x)
        return torch.neg(torch.tanh(first)), first

    found = matches(program, lambda a, b: (torch.relu(a), torch.neg(b)), capture)

    assert found == []


def test_a_call_that_is_there_for_what_it_does_is_part_of_the_pattern(capture):
    def pattern(x, y):
        x.add_(y)
        return torch.relu(y)

    assert len(matches(lambda x, y: (x.add_(y), torch.relu(y))[1], pattern, capture)) == 1
    assert matches(lambda x, y: torch.relu(y), pattern, capture) == []


def test_a_pattern_of_thousands_of_calls_is_matched(capture):
    def long(x):
        for _ in range(3000):
            x = torch.neg(x)
        return x

    assert len(matches(long, long, capture, match_output=True)) == 1


# -- modules and attributes


class Net(nn.Module):
    def __init__(self, kind=nn.ReLU, name="act"):
        super().__init__()
        self.add_module(name, kind())
        self.name = name

    def forward(self, x):
        return getattr(self, self.name)(x)


def test_a_submodule_is_matched_by_path_and_class(capture):
    assert len(matches(Net(), Net(), capture)) == 1
    assert matches(Net(name="other"), Net(), capture) == []
    assert matches(Net(nn.Sigmoid), Net(), capture) == []


def test_a_submodule_is_matched_by_path_alone_where_the_pattern_has_no_root(capture):
    graph = Graph()
    graph.output(graph.call_module("act", (graph.placeholder("x"),)))

    module = capture(Net(nn.Sigmoid))

    assert len(SubgraphMatcher(graph).match(module.graph)) == 1


class Scaled(nn.Module):
    def __init__(self, name="scale", value=2.0):
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.tensor(value)))
        self.name = name

    def forward(self, x):
        return x * getattr(self, self.name)


def test_a_parameter_is_matched_by_path_whatever_its_value(capture):
    assert len(matches(Scaled(value=3.0), Scaled(), capture)) == 1
    assert matches(Scaled("other"), Scaled(), capture) == []


def test_a_parameter_is_not_matched_by_a_buffer(capture):
    class Buffered(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x):
            return x * self.scale

    assert matches(Buffered(), Scaled(), capture) == []


def test_a_constant_is_matched_by_value(capture):
    program = lambda x: x + torch.tensor([1.0, 2.0])  # noqa: E731

    assert len(matches(program, lambda x: x + torch.tensor([1.0, 2.0]), capture)) == 1
    assert matches(program, lambda x: x + torch.tensor([1.0, 3.0]), capture) == []
    assert matches(program, lambda x: x + torch.tensor([1, 2]), capture) == []


def test_a_constant_is_matched_when_only_the_graph_of_the_pattern_is_left(capture):
    module = capture(lambda x: x + torch.tensor([1.0, 2.0]))
    pattern = capture(lambda x: x + torch.tensor([1.0, 2.0])).graph

    assert pattern.owning_module is None
    assert len(SubgraphMatcher(pattern).match(module.graph)) == 1


def test_an_attribute_that_others_read_too_is_in_nobodys_way(capture):
    """All uses of a parameter share the node that reads it."""

    class Twice(Scaled):
        def forward(self, x):
            return x * self.scale + torch.neg(x) * self.scale

    assert len(matches(Twice(), Scaled(), capture)) == 2


# -- regions


def in_region(module, name, *entries):
    for node in module.graph.nodes:
        if node.name == name:
            node.region = tuple(RegionEntry(entry) for entry in entries)
    return module


def test_a_match_lies_in_one_region(capture):
    pattern = capture(lambda x: torch.relu(x) + 1)
    program = lambda x: torch.relu(x) + 1  # noqa: E731
    matcher = SubgraphMatcher(pattern)

    split = in_region(capture(program), "relu", torch.no_grad)
    inside = in_region(in_region(capture(program), "relu", torch.no_grad), "add", torch.no_grad)

    assert matcher.match(split.graph) == []
    assert len(matcher.match(inside.graph)) == 1


def test_a_region_of_the_pattern_is_part_of_it(capture):
    program = lambda x: torch.relu(x) + 1  # noqa: E731
    pattern = in_region(capture(program), "relu", torch.no_grad)
    matcher = SubgraphMatcher(pattern)

    same = in_region(capture(program), "relu", torch.no_grad)
    deeper = in_region(capture(program), "relu", torch.enable_grad, torch.no_grad)
    deeper = in_region(deeper, "add", torch.enable_grad)

    assert [len(matcher.match(module.graph)) for module in (capture(program), same, deeper)] == [0, 1, 1]

"""Patterns and replacements that cannot be used are refused before anything is changed, and the message says why."""

from __future__ import annotations

import pytest
import torch
import torch.fx
from torch import nn

from fxplug.errors import PatternError
from fxplug.ir import Graph
from fxplug.rewrite import SubgraphMatcher, replace_pattern, replace_pattern_with_filters


def sigmoid(x):
    return torch.sigmoid(x)


def tanh(x):
    return torch.tanh(x)


@pytest.fixture
def refusal(capture):
    """(pattern, replacement) -> the message; checks that nothing was changed."""

    def refuse(pattern, replacement=tanh, **options):
        module = capture(lambda x: torch.relu(x) + 1)
        version = module.graph.version
        with pytest.raises(PatternError) as caught:
            replace_pattern_with_filters(module, pattern, replacement, **options)
        assert module.graph.version == version
        return str(caught.value)

    return refuse


def relu(x):
    return torch.relu(x)


def test_a_pattern_that_computes_nothing(refusal):
    assert refusal(lambda x: x) == (
        "Cannot search for the pattern: it computes nothing, so it would match every value. Write at least one call "
        "into it. [FXP-R000]"
    )


def test_a_pattern_that_is_a_constant(refusal):
    assert "it computes nothing" in refusal(lambda: 5, lambda: 6)


def test_a_parameter_of_the_pattern_that_nothing_uses(refusal):
    message = refusal(lambda x, unused: torch.relu(x))

    assert "nothing uses its parameter 'unused'" in message
    assert "Take it out of pattern and replacement." in message


def test_a_value_of_the_pattern_that_nothing_uses(refusal):
    def pattern(x):
        x.sum()
        return torch.relu(x)

    message = refusal(pattern)

    assert (
        "nothing uses the value of its node 'sum_1' (%sum_1 : [num_users=0] = call_method[target=sum]"
        in message
    )
    assert message.endswith("Return it, or take it out. [FXP-R000]")


def test_a_pattern_with_a_variable_number_of_arguments(refusal):
    assert "its parameter '*values' takes a variable number of arguments" in refusal(
        lambda *values: torch.cat(values)
    )


def test_a_pattern_that_is_no_program(refusal):
    assert refusal("torch.relu") == (
        "Cannot use a builtins.str as a pattern: pass a function, a module, a fxplug.Graph or a fxplug.GraphModule. "
        "[FXP-R000]"
    )
    assert "a torch.fx.graph.Graph as a pattern" in refusal(torch.fx.symbolic_trace(nn.ReLU()).graph)


def test_a_graph_without_output(refusal):
    graph = Graph()
    graph.call_function(torch.relu, (graph.placeholder("x"),))

    assert "its graph has no output. Make one with graph.output(...)." in refusal(graph)
    with pytest.raises(PatternError):
        SubgraphMatcher(graph)


def test_no_replacement(refusal):
    assert "there is no replacement. Pass replacement or replacement_callback." in refusal(relu, None)


def test_a_replacement_with_fewer_parameters(refusal):
    assert refusal(lambda x, y: x + y, relu) == (
        "Cannot use the replacement: it takes (x), and the pattern takes (x, y). Parameters are matched by position. "
        "Give the replacement the parameters of the pattern; further ones need a default. [FXP-R000]"
    )


def test_a_replacement_with_more_parameters(refusal):
    assert "it takes (x, y), and the pattern takes (x)" in refusal(relu, lambda x, y: x + y)


def test_a_replacement_with_another_number_of_results(refusal):
    assert refusal(relu, lambda x: (x + 1, x + 2)) == (
        "Cannot use the replacement: it returns 2 values, and the pattern returns 1. Return one value for each. "
        "[FXP-R000]"
    )


def test_an_input_that_is_returned_and_would_be_replaced(refusal):
    message = refusal(lambda x: (torch.relu(x), x), lambda x: (torch.tanh(x), x * 2))

    assert (
        "as result 1 the pattern returns x, which it does not compute, and the replacement returns mul"
        in message
    )


def test_a_plain_result_that_would_be_replaced(refusal):
    assert "as result 1 the pattern returns 3" in refusal(
        lambda x: (torch.relu(x), 3), lambda x: (torch.tanh(x), 4)
    )


def test_two_values_for_one_result(refusal):
    def pattern(x):
        value = torch.relu(x)
        return value, value

    message = refusal(pattern, lambda x: (torch.sigmoid(x), torch.tanh(x)))

    assert (
        "the pattern returns 'relu' more than once, and the replacement returns sigmoid and tanh for it"
        in message
    )


def test_a_replacement_that_refers_to_what_nobody_has(refusal):
    graph = Graph()
    graph.output(graph.call_module("lost", (graph.placeholder("x"),)))

    assert refusal(relu, graph) == (
        "Cannot use the replacement: its node 'lost' refers to 'lost', which the module that is rewritten does not "
        "have. Pass a module that has it, or let the pattern refer to it too. [FXP-R000]"
    )

    root = nn.ReLU()
    graph.owning_module = root
    assert "which ReLU does not have" in refusal(relu, graph)


def test_a_replacement_is_checked_although_there_is_no_match(refusal):
    assert "it returns 2 values" in refusal(sigmoid, lambda x: (x + 1, x + 2))


def test_a_replacement_from_a_callback_is_checked_before_anything_is_changed(capture):
    module = capture(lambda x: torch.relu(x) + torch.relu(x * 2))
    version = module.graph.version
    replacements = iter([tanh, lambda x: (x, x)])

    with pytest.raises(PatternError, match="it returns 2 values"):
        replace_pattern_with_filters(module, relu, replacement_callback=lambda *_: next(replacements))

    assert module.graph.version == version


def test_what_cannot_be_traced_is_no_pattern(capture):
    from fxplug.errors import TraceError

    module = capture(relu)

    with pytest.raises(TraceError):
        replace_pattern(module, lambda x: torch.relu(x) if x.sum() > 0 else x, relu)

"""Patterns with conditions, many patterns in one sweep, and explanations."""

# ruff: noqa: PLW0108 - a pattern is a function of Python; functions of torch have no signature to trace

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.errors import InvalidArgumentError, PatternError
from fxplug.rewrite import AnyOf, Const, Module, Pattern, Rewriter, Wildcard, explain

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def relu_pattern(x):
    return torch.relu(x)


ALTERNATIVES = {
    "function": lambda x: torch.relu(x),
    "method_for_a_function": lambda x: x.relu(),
    "other_function": lambda x: F.gelu(x),
    "method": lambda x: x.tanh(),
    "module": nn.Sequential(nn.SiLU()),
}


class TestElements:
    @pytest.mark.parametrize("name", ALTERNATIVES)
    def test_any_of_stands_for_each_alternative_however_it_is_spelt(self, name, capture):
        activation = AnyOf(torch.relu, F.gelu, "tanh", nn.SiLU)

        assert len(Pattern(lambda x: activation(x)).matches(capture(ALTERNATIVES[name]))) == 1

    def test_any_of_stands_for_nothing_else(self, capture):
        module = capture(lambda x: torch.sigmoid(x) + F.gelu(x, approximate="tanh"))

        assert Pattern(lambda x: AnyOf(torch.relu, F.gelu, "tanh")(x)).matches(module) == []

    def test_a_module_is_found_by_class_and_attributes(self, capture):
        root = nn.Sequential(
            nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1, groups=2), nn.BatchNorm2d(4)
        )
        module = capture(root)

        every = Pattern(lambda x: Module(nn.BatchNorm2d)(Module(nn.Conv2d)(x)))
        grouped = Pattern(lambda x: Module(nn.BatchNorm2d)(Module(nn.Conv2d, groups=2)(x)))
        assert [[node.target for node in match.members] for match in every.matches(module)] == [
            ["0", "1"],
            ["2", "3"],
        ]
        assert [[node.target for node in match.members] for match in grouped.matches(module)] == [["2", "3"]]

    def test_a_derived_class_counts(self, capture):
        class Own(nn.Linear):
            pass

        Own.__module__ = "torch.nn.own"  # A leaf, as classes of torch are.
        assert len(Pattern(lambda x: Module(nn.Linear)(x)).matches(capture(nn.Sequential(Own(4, 4))))) == 1

    def test_a_wildcard_is_any_call_of_the_same_nodes(self, capture):
        module = capture(lambda x, y: torch.relu(torch.clamp(x, 0, 1)) + torch.relu(x.add(y)))

        one = Pattern(lambda x: torch.relu(Wildcard()(x)))
        two = Pattern(lambda x, y: torch.relu(Wildcard()(x, y)))
        assert [match.members[0].name for match in one.matches(module)] == ["clamp"]
        assert [match.members[0].name for match in two.matches(module)] == ["add"]

    def test_a_wildcard_is_no_module_with_hooks(self, capture):
        root = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        root[0].register_forward_hook(lambda module, args, result: result * 2)
        module = capture(root)
        module.add_submodule("0", root[0])  # With its hook, wherever captures leave it.

        assert Pattern(lambda x: torch.relu(Wildcard()(x))).matches(module) == []

    def test_a_module_may_be_called_with_keywords(self, capture):
        class Program(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                return torch.relu(self.linear(input=x))

        module = capture(Program())
        assert len(Pattern(lambda x: Module(nn.Linear)(x)).matches(module)) == 1
        assert len(Pattern(lambda x: Module(nn.Linear)(input=x)).matches(module)) == 1
        assert Pattern(lambda x: Module(nn.Linear)(x, x)).matches(module) == []

    def test_a_constant_is_a_plain_value_that_will_do(self, capture):
        module = capture(lambda x, y: x**2 + x**3 + x**y)

        small = Pattern(lambda x, n: x**n, n=Const(lambda n: n == 2))
        assert [match.placeholder_nodes[1] for match in small.matches(module)] == [2]
        assert len(Pattern(lambda x, n: x**n, n=Const()).matches(module)) == 2

    def test_an_argument_that_was_left_out_is_its_default(self, capture):
        weight = torch.ones(4, 4)
        module = capture(lambda x: F.linear(x, weight) + F.linear(x, weight, torch.ones(4)))

        found = Pattern(lambda x, w, b: F.linear(x, w, b)).matches(module)
        assert [match.placeholder_nodes[2] is None for match in found] == [True, False]


class TestKeptValues:
    @staticmethod
    def program(x):
        inner = torch.relu(x)
        return inner * 2, torch.neg(inner)

    def test_a_value_may_be_used_elsewhere_on_request(self, capture, calls):
        module = capture(self.program)
        expected = module(X)

        replaced = (
            Rewriter()
            .add(Pattern(lambda x: torch.relu(x) * 2, keep_used=True), lambda x: torch.clamp(x, min=0) * 2)
            .run(module)
        )

        module.graph.lint()
        assert len(replaced) == 1
        assert calls(module) == ["relu", "clamp", "mul", "neg"]
        torch.testing.assert_close(module(X), expected)

    def test_otherwise_the_place_is_left_alone(self, capture):
        assert Rewriter().add(lambda x: torch.relu(x) * 2, lambda x: x).run(capture(self.program)) == []

    def test_what_draws_random_numbers_is_not_computed_twice(self, capture):
        def program(x):
            inner = torch.relu(F.dropout(x))
            return inner * 2, torch.neg(inner)

        pattern = Pattern(lambda x: torch.relu(F.dropout(x)) * 2, keep_used=True)

        assert Rewriter().add(pattern, lambda x: F.dropout(x) * 2).run(capture(program)) == []


class TestRewriter:
    def test_rules_share_one_sweep_and_the_first_has_the_place(self, capture, calls):
        module = capture(lambda x: torch.relu(x) ** 2 + F.gelu(torch.relu(x)))
        rewriter = Rewriter()
        rewriter.add(Pattern(lambda x, n: torch.relu(x) ** n, n=Const()), lambda x, n: torch.sigmoid(x))
        rewriter.add(relu_pattern, lambda x: torch.tanh(x))
        rewriter.add(lambda x: F.gelu(x), lambda x: torch.cos(x))

        replaced = rewriter.run(module)

        # The place of the relu that comes first is claimed by the rule that is asked first where it ends.
        assert calls(module) == ["tanh", "pow", "tanh", "cos", "add"]
        assert len(replaced) == 3

    def test_at_one_node_the_rule_that_was_added_first_wins(self, capture, calls):
        module = capture(lambda x: torch.relu(x))
        Rewriter().add(relu_pattern, torch_cos).add(relu_pattern, torch_sin).run(module)

        assert calls(module) == ["cos"]

    def test_places_may_follow_one_another(self, capture):
        module = capture(lambda x: torch.relu(torch.relu(x)) * 1)
        rewriter = (
            Rewriter()
            .add(relu_pattern, lambda x: torch.clamp(x, min=0))
            .add(lambda x: x * 1, lambda x: x + 0)
        )

        assert len(rewriter.run(module)) == 3
        module.graph.lint()
        torch.testing.assert_close(module(X), torch.relu(X))

    def test_conditions_and_callbacks_are_asked_for_each_place(self, capture, calls):
        module = capture(lambda x: x**2 + x**3)

        def power(match):
            exponent = match.placeholder_nodes[1]
            return (lambda x, n: x * x) if exponent == 2 else (lambda x, n: x * x * x)

        rewriter = Rewriter().add(
            lambda x, n: x**n, callback=power, condition=lambda match: match.placeholder_nodes[1] > 2
        )

        assert len(rewriter.run(module)) == 1
        torch.testing.assert_close(module(X), X**2 + X**3)
        assert calls(module).count("pow") == 1

    def test_a_rule_that_does_not_fit_changes_nothing(self, capture):
        module = capture(lambda x: torch.relu(x) + F.gelu(x))
        before = str(module.graph)
        rewriter = Rewriter().add(relu_pattern, torch_cos).add(lambda x: F.gelu(x), lambda x, y: x)

        with pytest.raises(PatternError, match="it takes"):
            rewriter.run(module)
        assert str(module.graph) == before


def torch_cos(x):
    return torch.cos(x)


def torch_sin(x):
    return torch.sin(x)


REFUSED = {
    "no_alternative": (lambda: AnyOf(), "name at least one"),
    "number_as_alternative": (lambda: AnyOf(3), "Cannot use 3 in AnyOf"),
    "name_of_a_class": (lambda: Module("Linear"), "pass a class of modules"),
    "unknown_parameter": (
        lambda: Pattern(lambda x, n: x**n, m=Const()),
        r"no parameter 'm'\. Available: 'n', 'x'",
    ),
    "value_for_a_constraint": (lambda: Pattern(lambda x, n: x**n, n=2), r"pass Const\(predicate\)"),
    "no_replacement": (lambda: Rewriter().add(relu_pattern), "either a replacement or a callback"),
}


class TestBadInput:
    def test_an_element_cannot_be_called_elsewhere(self):
        with pytest.raises(PatternError, match=r"Cannot call Wildcard\(\) outside of a pattern"):
            Wildcard()(X)

    @pytest.mark.parametrize("name", REFUSED)
    def test_what_makes_no_sense_is_refused(self, name):
        make, message = REFUSED[name]
        with pytest.raises(PatternError, match=message):
            make()

    def test_only_graph_modules_are_rewritten(self):
        with pytest.raises(InvalidArgumentError, match=r"Cannot rewrite a torch\.nn"):
            Rewriter().add(relu_pattern, torch_cos).run(nn.Linear(2, 2))

    def test_a_predicate_that_fails_is_named(self, capture):
        pattern = Pattern(lambda x, n: x**n, n=Const(lambda n: n.missing))

        with pytest.raises(PatternError, match="raised AttributeError"):
            pattern.matches(capture(lambda x: x**2))


REASONS = {
    "other_callee": (
        relu_pattern,
        lambda x: torch.sigmoid(x),
        "sigmoid",
        "The node 'sigmoid' calls torch.sigmoid; the pattern calls torch.relu there.",
    ),
    "other_inner_callee": (
        lambda x: torch.relu(x) - 1,
        lambda x: torch.sigmoid(x) - 1,
        "sub",
        "The node 'sigmoid' calls torch.sigmoid; the pattern calls torch.relu there.",
    ),
    "other_value": (
        lambda x: torch.relu(x) - 1,
        lambda x: torch.relu(x) - 2,
        "sub",
        "The pattern has 1 where the graph has 2.",
    ),
    "input_for_a_call": (
        lambda x: torch.relu(x) - 1,
        lambda x: x - 1,
        "sub",
        "The node 'x' is the input 'x'; the pattern calls torch.relu there.",
    ),
    "number_for_a_call": (
        lambda x: torch.relu(x) - 1,
        lambda x: 2 - 1 - x,
        "sub",
        "The pattern calls torch.relu where the graph has 1.",
    ),
    "two_values_for_a_parameter": (
        lambda x: x * torch.cos(x),
        lambda x, y: x * torch.cos(y),
        "mul",
        "The parameter 'x' stands for the node 'x' in one place and for the node 'y' in another.",
    ),
    "node_for_a_constant": (
        Pattern(lambda x, n: x**n, n=Const()),
        lambda x, y: x**y,
        "pow_1",
        "The parameter 'n' must be Const(), and the graph has the node 'y'.",
    ),
    "used_elsewhere": (
        lambda x: torch.relu(x) * 2,
        TestKeptValues.program,
        "mul",
        "The value of 'relu' is used by 'neg' outside of the place, and the pattern does not return it.",
    ),
}


class TestExplanations:
    @staticmethod
    def reason(pattern, program, name):
        module = fxplug.symbolic_trace(program)
        node = next(node for node in module.graph.nodes if node.name == name)
        return str(explain(pattern, node))

    def test_a_place_is_named(self):
        assert (
            self.reason(lambda x: torch.relu(x) - 1, lambda x: x.relu() - 1, "sub")
            == "The pattern matches 'relu', 'sub'."
        )

    @pytest.mark.parametrize("name", REASONS)
    def test_what_stands_against_a_place_is_said(self, name):
        pattern, program, node, expected = REASONS[name]
        assert expected in self.reason(pattern, program, node).splitlines()

    def test_a_node_that_was_erased_is_refused(self):
        module = fxplug.symbolic_trace(lambda x: (torch.relu(x), x + 1)[1])
        node = module.graph.find_nodes(op="call_function", target=torch.relu)[0]
        module.graph.erase_node(node)

        with pytest.raises(PatternError, match="does not stand in its graph"):
            explain(relu_pattern, node)

"""The front door to rewriting: pattern and program are captured alike."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import replace_pattern, symbolic_trace
from fxplug.errors import PatternError

X = torch.linspace(-2, 2, 6).reshape(2, 3)


class Attention(nn.Module):
    def forward(self, x):
        return x.softmax(-1) @ x.t()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.attention(x))


class AttentionAlone(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        return self.attention(x)


def test_the_facade_offers_it():
    assert fxplug.replace_pattern is replace_pattern


def test_functions_are_captured_and_replaced(manager):
    module = symbolic_trace(Model(), manager=manager)

    matches = replace_pattern(
        module, lambda x: x.softmax(-1), lambda x: torch.log_softmax(x, -1).exp(), manager=manager
    )

    assert len(matches) == 1
    assert "log_softmax" in module.code
    torch.testing.assert_close(module(X), Model()(X))


def test_what_a_plugin_keeps_whole_is_whole_in_the_pattern_too(manager_with):
    manager = manager_with(fxplug_is_leaf_module=lambda module: isinstance(module, Attention) or None)
    module = symbolic_trace(Model(), manager=manager)

    matches = replace_pattern(module, AttentionAlone(), lambda x: x @ x.t(), manager=manager)

    assert len(matches) == 1
    assert [node.op for node in module.graph.nodes].count("call_module") == 1


def test_graphs_are_taken_as_they_are(manager):
    module = symbolic_trace(nn.ReLU(), manager=manager)
    pattern = symbolic_trace(lambda x: torch.relu(x) + 1, manager=manager)

    assert replace_pattern(module, pattern, pattern.graph, manager=manager) == []


def test_a_function_makes_no_submodule_superfluous(manager):
    class Act(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(x)

    class NewAct(nn.Module):
        def forward(self, x):
            return torch.sigmoid(x)

    by_function = symbolic_trace(Model(), manager=manager)
    by_module = symbolic_trace(Model(), manager=manager)

    replace_pattern(by_function, Act(), lambda x: x.sigmoid(), manager=manager)
    replace_pattern(by_module, Act(), NewAct(), manager=manager)

    assert [hasattr(module, "act") for module in (by_function, by_module)] == [True, False]


def test_constants_of_functions_are_found_and_taken(manager):
    module = symbolic_trace(lambda x: x + torch.tensor([1.0, 2.0, 3.0]), manager=manager)

    matches = replace_pattern(
        module,
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: x - torch.tensor([4.0, 5.0, 6.0]),
        manager=manager,
    )

    assert len(matches) == 1
    torch.testing.assert_close(module(X), X - torch.tensor([4.0, 5.0, 6.0]))


def test_what_is_no_program_is_refused(manager):
    module = symbolic_trace(nn.ReLU(), manager=manager)

    with pytest.raises(PatternError, match=r"Cannot use a builtins\.int as a pattern"):
        replace_pattern(module, 5, lambda x: x, manager=manager)

"""Capturing with the plugins' say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fxplug
from fxplug.api import symbolic_trace
from fxplug.errors import TraceError
from fxplug.plugins import Config, TraceConfig


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x) + 1


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_module"]


def test_the_facade_offers_it():
    assert fxplug.symbolic_trace is symbolic_trace


def test_a_trace_computes_what_the_module_computes_and_is_named_after_it(manager):
    model = Net()
    traced = symbolic_trace(model, manager=manager)
    x = torch.randn(2, 3)

    torch.testing.assert_close(traced(x), model(x))
    assert repr(traced).startswith("Net(")
    assert targets(traced) == ["block.linear"]
    assert traced.get_submodule("block.linear") is model.block.linear


def test_a_function_is_traced_and_gives_its_name(manager):
    def double(x):
        return x * 2

    traced = symbolic_trace(double, manager=manager)

    assert traced(torch.ones(2)).tolist() == [2, 2]
    assert repr(traced).startswith("double(")


def test_concrete_arguments_take_the_place_of_proxies(manager):
    def choose(x, flip):
        return -x if flip else x

    assert symbolic_trace(choose, {"flip": True}, manager=manager)(torch.ones(1), True).tolist() == [-1]


def test_a_plugins_leaf_rule_acts(manager_with):
    manager = manager_with(fxplug_is_leaf_module=lambda module: True if isinstance(module, Block) else None)

    assert targets(symbolic_trace(Net(), manager=manager)) == ["block"]


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("takes_path", [True, False])
def test_a_plugin_is_asked_of_each_module_of_a_class(manager_with, takes_path):
    model, asked = Blocks(), []
    leaves = {id(model.blocks[1]): True, id(model.blocks[3]): True, id(model.blocks[2]): False}

    def by_path(module, qualified_name):
        asked.append(qualified_name)
        return leaves.get(id(module))

    def by_module(module):
        asked.append(module)
        return leaves.get(id(module))

    traced = symbolic_trace(
        model, manager=manager_with(fxplug_is_leaf_module=by_path if takes_path else by_module)
    )

    assert targets(traced) == ["blocks.0.linear", "blocks.1", "blocks.2.linear", "blocks.3"]
    assert len(asked) == len(set(asked)) == len(model.blocks) + 2
    x = torch.randn(2, 3)
    torch.testing.assert_close(traced(x), model(x))


def test_a_plugins_notes_are_on_every_node(manager_with):
    manager = manager_with(fxplug_node_created=lambda node: {"sample.opcode": node.op})
    traced = symbolic_trace(Net(), manager=manager)

    assert [node.meta["sample.opcode"] for node in traced.graph.nodes] == [
        node.op for node in traced.graph.nodes
    ]


def test_the_users_globs_act(manager_with):
    manager = manager_with(Config(trace=TraceConfig(leaf_modules=("block",))))

    assert targets(symbolic_trace(Net(), manager=manager)) == ["block"]


def test_wrappers_are_taken_off_one_after_the_other(manager_with):
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

    manager = manager_with(
        fxplug_unwrap_module=lambda module: module.inner if isinstance(module, Wrapper) else None
    )
    traced = symbolic_trace(Wrapper(Wrapper(Net())), manager=manager)

    assert targets(traced) == ["block.linear"]
    assert repr(traced).startswith("Net(")


def test_a_program_that_cannot_be_captured_is_named_with_its_line(manager):
    def branch(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(TraceError, match=r"test_tracing\.py:\d+ in branch .*x if x\.sum\(\) > 0"):
        symbolic_trace(branch, manager=manager)

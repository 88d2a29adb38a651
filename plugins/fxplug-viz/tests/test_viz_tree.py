"""Graphs as trees of text."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

import fxplug
from fxplug.analyze import propagate_shapes
from fxplug_viz import rich_tree, tree_text


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return torch.clamp(self.linear(x), min=0) + x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        return self.second(self.first(x))


def traced():
    module = fxplug.symbolic_trace(Model())
    propagate_shapes(module, torch.ones(1, 2))
    return module


EXPECTED = """\
Model  8 nodes
├─ x  float32[1, 2]
├─ first  Block
│  ├─ first_linear  first.linear (Linear)  float32[1, 2]  weight [2, 2], bias [2]
│  ├─ clamp  torch.clamp  (%first_linear, min=0)  float32[1, 2]
│  └─ add  operator.add  float32[1, 2]
├─ second  Block
│  ├─ second_linear  second.linear (Linear)  float32[1, 2]  weight [2, 2], bias [2]
│  ├─ clamp_1  torch.clamp  (%second_linear, min=0)  float32[1, 2]
│  └─ add_1  operator.add  float32[1, 2]
└─ output  float32[1, 2]"""


def test_nodes_stand_in_their_modules():
    assert tree_text(traced()) == EXPECTED


def test_a_terminal_gets_the_same_lines():
    screen = Console(file=io.StringIO(), width=200, markup=False, highlight=False, emoji=False)

    screen.print(rich_tree(traced()))

    lines = [
        line.rstrip().replace("── ", "─ ").replace("│   ", "│  ")
        for line in screen.file.getvalue().splitlines()
    ]
    assert lines == EXPECTED.splitlines()


@pytest.mark.parametrize("width", [12, 30])
def test_in_a_narrow_terminal_every_node_keeps_to_one_line(width):
    screen = Console(file=io.StringIO(), width=width, markup=False, highlight=False, emoji=False)

    screen.print(rich_tree(traced()))

    lines = screen.file.getvalue().splitlines()
    assert len(lines) == len(EXPECTED.splitlines())
    assert max(map(len, lines)) <= width
    assert sum(line.rstrip().endswith("…") for line in lines) >= 6


def test_an_empty_graph_is_one_line():
    assert tree_text(fxplug.Graph()) == "graph  0 nodes"


def test_what_is_not_sound_is_told():
    module = traced()
    del module.first

    text = tree_text(module)

    assert "not sound: " in text
    assert "first.linear (does not exist)" in text


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=30))
def test_texts_stand_for_themselves(text):
    graph = fxplug.Graph()
    graph.output(graph.call_method("join", (graph.placeholder("x"), text)))

    lines = tree_text(graph, title=text, longest=1000).split("\n")

    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in repr(text))
    assert len(lines) == 4
    assert lines[2] == f"├─ join  (%x, {shown})"

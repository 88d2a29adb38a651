"""What became of a graph: added, removed, changed, moved, fused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import InvalidArgumentError
from fxplug_viz import diff, diff_dot_text


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout()

    def forward(self, x):
        x = self.linear(x)
        x = self.dropout(x)
        first = x.relu()
        second = x.sigmoid()
        return first + second


@pytest.fixture
def before():
    return fxplug.symbolic_trace(Model())


@pytest.fixture
def after(before):
    return copy.deepcopy(before)


def node(module, name):
    return next(node for node in module.graph.nodes if node.name == name)


def told(before, after):
    return diff(before, after).text().splitlines()


def test_a_graph_and_its_copy_are_the_same(before, after):
    difference = diff(before, after)

    assert difference.is_empty
    assert difference.text() == "7 nodes -> 7 nodes: 7 same"


def test_what_was_removed_stands_where_it_was(before, after):
    dropout = node(after, "dropout")
    dropout.replace_all_uses_with(dropout.args[0])
    after.graph.erase_node(dropout)

    assert told(before, after) == [
        "7 nodes -> 6 nodes: 4 same, 2 changed, 1 removed",
        "removed  dropout (Dropout)",
        "changed  relu: argument %dropout -> %linear",
        "changed  sigmoid: argument %dropout -> %linear",
    ]


def test_what_was_added_is_told(before, after):
    relu = node(after, "relu")
    with after.graph.inserting_after(relu):
        new = after.graph.call_function(torch.neg, (relu,))
    node(after, "add").replace_input_with(relu, new)

    assert told(before, after) == [
        "7 nodes -> 8 nodes: 6 same, 1 changed, 1 added",
        "added    neg (torch.neg)",
        "changed  add (operator.add): argument %relu -> %neg",
    ]


def test_what_calls_something_else_is_changed(before, after):
    node(after, "relu").target = "tanh"
    node(after, "add").args = (node(after, "relu"), 2)

    lines = told(before, after)

    assert lines[0] == "7 nodes -> 7 nodes: 5 same, 2 changed"
    assert lines[1].endswith("target relu -> tanh")
    assert lines[2] == "changed  add (operator.add): argument %sigmoid -> 2"


def test_what_only_stands_elsewhere_has_moved(before, after):
    node(after, "relu").prepend(node(after, "sigmoid"))

    assert told(before, after) == ["7 nodes -> 7 nodes: 6 same, 1 moved", "moved    sigmoid"]


def test_a_node_with_several_origins_was_fused_from_them(before, after):
    linear, dropout = node(after, "linear"), node(after, "dropout")
    linear.origins = (*linear.origins, *dropout.origins)
    dropout.replace_all_uses_with(linear)
    after.graph.erase_node(dropout)

    assert told(before, after) == [
        "7 nodes -> 6 nodes: 5 same, 1 fused",
        "fused    linear (Linear) + dropout (Dropout) -> linear (Linear)",
    ]


def test_every_node_of_both_graphs_is_in_one_entry(before):
    other = fxplug.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    changes = diff(before, other).changes

    assert sorted(n.name for change in changes for n in change.before) == sorted(
        n.name for n in before.graph.nodes
    )
    assert [change.after for change in changes if change.after is not None] == list(other.graph.nodes)


def test_graphs_with_other_inputs_and_without_outputs_are_compared():
    first, second = fxplug.Graph(), fxplug.Graph()
    for name in ("x", "y"):
        first.placeholder(name)
    second.placeholder("y")

    assert diff(first, second).text() == "2 nodes -> 1 node: 1 same, 1 removed\nremoved  x"
    assert diff(fxplug.Graph(), fxplug.Graph()).text() == "0 nodes -> 0 nodes: nothing to compare"


class Stranger(nn.Module):
    def forward(self, x):
        return torch.stack([x.cos(), x.exp()]).tanh()


def test_of_unrelated_programs_everything_is_removed_and_added(before):
    stranger = fxplug.symbolic_trace(Stranger())

    difference = diff(before, stranger)

    assert difference.is_unrelated
    assert difference.counts() == {"same": 0, "changed": 0, "moved": 0, "fused": 0, "added": 6, "removed": 7}
    assert difference.summary() == (
        "7 nodes -> 6 nodes: 6 added, 7 removed; the two programs have nothing in common"
    )
    assert "6 added, 7 removed; the two programs have nothing in common<" in diff_dot_text(difference)
    assert "removed  x" in difference.text()
    assert "added    output" in difference.text()


def program(*calls):
    """Return a graph without origins: a chain of method calls, each as (name, method)."""
    graph = fxplug.Graph()
    value = graph.placeholder("x")
    for name, method in calls:
        value = graph.create_node("call_method", method, (value,), name=name)
    graph.output(value)
    return graph


def test_without_origins_name_and_target_count_where_what_is_around_belongs_together():
    first = program(("a", "relu"), ("b", "tanh"), ("c", "cos"), ("d", "exp"))

    assert diff(first, program(("a", "relu"), ("b", "tanh"), ("c", "cos"), ("d", "exp"))).is_empty
    # The beginning is the same, the end is another one.
    assert told(first, program(("a", "relu"), ("b", "tanh"), ("e", "sin"), ("f", "log"))) == [
        "6 nodes -> 6 nodes: 3 same, 1 changed, 2 added, 2 removed",
        "removed  c (cos)",
        "removed  d (exp)",
        "added    e (sin)",
        "added    f (log)",
        "changed  output: argument %d -> %f",
    ]
    # The end is the same: two calls that hold each other.
    assert told(first, program(("e", "sin"), ("c", "cos"), ("d", "exp"))) == [
        "6 nodes -> 5 nodes: 3 same, 1 changed, 1 added, 2 removed",
        "removed  a (relu)",
        "removed  b (tanh)",
        "added    e (sin)",
        "changed  c (cos): argument %b -> %e",
    ]
    # Numbers in names are those of one capture.
    assert diff(program(("relu_3", "relu")), program(("relu_2", "relu"))).counts()["same"] == 3


@pytest.mark.parametrize(
    "calls",
    [
        [("a", "sin"), ("b", "log"), ("c", "cos"), ("d", "exp"), ("e", "neg")],
        [("z", "sin"), ("y", "log"), ("d", "exp")],  # Only a last call that is called alike.
        [("a", "cos"), ("d", "tan")],  # Names of something else.
    ],
)
def test_what_only_has_the_same_place_or_name_does_not_belong_together(calls):
    first = program(("a", "relu"), ("b", "tanh"), ("d", "exp"))
    assert diff(first, program(*calls)).is_unrelated


def test_calls_that_many_programs_have_do_not_hold_each_other():
    """Both add and add again, of other values and for other users."""

    def first(x):
        return ((x.relu() + 1) + 2).mean()

    def second(x, y):
        total = x.cos() + y.cos()
        return (total + total.exp()).tanh() * total.sin()

    assert diff(fxplug.symbolic_trace(first), fxplug.symbolic_trace(second)).is_unrelated


def test_nodes_of_other_origins_belong_together_by_name(before):
    """As where a file was edited between two captures."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.dropout = nn.Dropout()

        def forward(self, x):
            x = self.dropout(self.linear(x))
            return x.relu() + x.sigmoid()

    assert diff(before, fxplug.symbolic_trace(Model())).is_empty


def test_the_picture_has_what_is_gone_in_dashes(before, after):
    dropout = node(after, "dropout")
    dropout.replace_all_uses_with(dropout.args[0])
    after.graph.erase_node(dropout)

    text = diff_dot_text(diff(before, after))

    assert '"before: dropout" [label="{call_module: dropout|' in text
    assert '"linear" -> "before: dropout" [color="#b00020", style="dashed"];' in text
    assert '"before: dropout" -> "relu" [color="#b00020", style="dashed"];' in text
    assert '"linear" -> "relu" [color="#2e7d32", penwidth="1.5"];' in text
    assert ">4 same, 2 changed, 1 removed</FONT>" in text


def test_something_else_than_a_graph_is_refused(before):
    with pytest.raises(InvalidArgumentError, match="Cannot draw a Linear"):
        diff(before, nn.Linear(1, 1))

"""Errors inside generated code name the node that failed and the line of the program that it came from."""

from __future__ import annotations

import operator
import sys
import traceback

import pytest
import torch
from torch import nn

from fxplug.capture import Tracer
from fxplug.execute import GraphModule, Interpreter
from fxplug.execute.failures import add_note
from fxplug.ir import Graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = torch.relu(x)
        return self.linear(y)  # The line that fails.


BAD = torch.ones(2, 4)


def notes_of(run, *args, error=RuntimeError):
    with pytest.raises(error) as caught:
        run(*args)
    return caught.value.__notes__


def test_a_note_names_the_node_its_line_and_where_it_came_from(capture):
    module = capture(Net())
    (note,) = notes_of(module, BAD)

    lines = note.splitlines()
    assert lines[0] == (
        "While running node %linear : [num_users=1] = call_module[target=linear](args = (%relu,), kwargs = {})"
    )
    assert lines[1] == "in line 3 of the code of Net: linear = self.linear(relu);  relu = None"
    assert lines[2] == "which came from:"
    assert "return self.linear(y)  # The line that fails." in lines[-1]
    assert __file__ in note


def test_the_error_itself_is_as_it_was(capture):
    with pytest.raises(RuntimeError) as caught:
        capture(Net())(BAD)

    assert str(caught.value).startswith("mat1 and mat2 shapes cannot be multiplied")
    shown = "".join(traceback.format_exception(caught.value))
    assert ("While running node" in shown) is (sys.version_info >= (3, 11))  # Older ones do not show notes.


def test_the_node_is_that_of_the_edited_graph(capture):
    module = capture(lambda x: x + 1)
    module(1)
    (node,) = module.graph.find_nodes(op="call_function")
    node.target = operator.truediv
    node.args = (node.args[0], 0)
    (note,) = notes_of(module, 1, error=ZeroDivisionError)

    assert "call_function[target=operator.truediv]" in note
    assert "truediv" not in note.splitlines()[1].partition(":")[0]
    assert note.splitlines()[1].endswith("add = x / 0;  x = None")


def test_modules_inside_one_another_each_add_their_own(capture):
    inner = capture(Net())
    graph = Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    notes = notes_of(GraphModule({"inner": inner}, graph, "Outer"), BAD)

    assert ["%linear" in notes[0], "%inner" in notes[1]] == [True, True]
    assert "the code of Outer" in notes[1]


def test_the_innermost_line_counts_where_the_code_runs_inside_itself():
    def descend(x):
        return module.forward(x - 1) if x else x

    def fail(x):
        raise KeyError(x)

    graph = Graph()
    inner = graph.call_function(descend, (graph.placeholder("x"),), name="inner")
    graph.output(graph.call_function(fail, (inner,), name="deepest"))
    module = GraphModule(nn.Module(), graph)
    (note,) = notes_of(module, 1, error=KeyError)

    assert note.startswith("While running node %deepest")
    assert "in line 3 of the code" in note


def test_what_is_wrong_with_a_call_is_no_fault_of_a_node(capture):
    with pytest.raises(TypeError) as caught:
        capture(Net())(BAD, BAD, BAD)

    assert not getattr(caught.value, "__notes__", [])


def test_an_error_of_a_hook_is_no_fault_of_a_node(capture):
    module = capture(Net())
    module.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as caught:
        module(BAD)

    assert not getattr(caught.value, "__notes__", [])


def test_a_node_that_is_gone_is_told_by_its_line(capture):
    module = capture(lambda x: x + 1)

    def spoil(x, _):
        for node in module.graph.find_nodes(op="call_function"):
            node.name = "other"
        raise KeyError(x)

    module.graph.find_nodes(op="call_function")[0].target = spoil
    (note,) = notes_of(module, 1, error=KeyError)

    assert note.startswith("While running line 2 of the code of function: add = ")


def test_a_note_that_cannot_be_made_leaves_the_error(capture):
    class Odd:
        def __repr__(self):
            raise AssertionError

        __str__ = __repr__

    module = capture(lambda x: x + 1)
    (node,) = module.graph.find_nodes(op="call_function")
    node.args = (node.args[0], Odd())
    with pytest.raises(TypeError):
        module(1)
    with pytest.raises(TypeError):
        Interpreter(module).run(1)


def test_errors_while_a_module_is_traced_keep_their_kind(capture):
    class Refusing(Net):
        def forward(self, x):
            return bool(super().forward(x).sum() > 0)

    tracer = Tracer()
    inner = nn.Sequential(Refusing())
    with pytest.raises(ValueError, match="FXP-T"):
        tracer.trace(inner)


def test_the_interpreter_says_the_same(capture):
    module = capture(Net())
    (note,) = notes_of(Interpreter(module).run, BAD)

    assert note.startswith("While running node %linear")
    assert "The line that fails." in note


def test_notes_are_added_where_python_has_none(monkeypatch):
    monkeypatch.setattr("sys.version_info", (3, 10))
    error = ValueError("text")
    add_note(error, "first")
    add_note(error, "second")

    assert error.__notes__ == ["first", "second"]

"""What was assumed of the inputs when a program was captured goes with its graph, whatever module runs it."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

import fxplug
from fxplug import GuardError


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y.mean(0) if x.shape[0] > 2 else y


def _graph_of_another_module(root, captured):
    return fxplug.GraphModule(root, captured.graph)


def _copied_graph(root, captured):
    return fxplug.GraphModule(root, copy.deepcopy(captured.graph))


def _edited_graph(root, captured):
    graph = captured.graph
    node = next(iter(graph.find_nodes(op="call_module")))
    with graph.inserting_after(node):
        doubled = graph.call_function(torch.mul, (node, 1))
    node.replace_all_uses_with(doubled, delete_user_cb=lambda user: user is not doubled)
    return fxplug.GraphModule(root, graph)


def _assigned_graph(root, captured):
    other = fxplug.symbolic_trace(root.layer)
    other.layer = root.layer
    other.graph = captured.graph
    return other


def _graph_of_a_copy(root, captured):
    return fxplug.GraphModule(root, copy.deepcopy(captured).graph)


def _graph_of_a_pickled_module(root, captured):
    return fxplug.GraphModule(root, pickle.loads(pickle.dumps(captured)).graph)


def _interpreted(root, captured):
    graph = captured.graph
    return lambda x: fxplug.Interpreter(root, graph=graph).run(x)


@pytest.mark.parametrize(
    "make",
    [
        _graph_of_another_module,
        _copied_graph,
        _edited_graph,
        _assigned_graph,
        _graph_of_a_copy,
        _graph_of_a_pickled_module,
        _interpreted,
    ],
)
@pytest.mark.parametrize("mode", ["shape", "value"])
def test_guards_go_with_the_graph(make, mode):
    root = Asks().eval()
    captured = fxplug.trace(root, (torch.randn(4, 3),), mode=mode)
    other = make(root, captured)

    x = torch.randn(5, 3)
    torch.testing.assert_close(other(x), root(x))
    with pytest.raises(GuardError, match="> 2"):
        other(torch.randn(2, 3))


def test_guards_stay_when_the_captured_module_is_gone():
    root = Asks().eval()
    other = fxplug.GraphModule(root, fxplug.trace(root, (torch.randn(4, 3),)).graph)
    gc.collect()

    assert any(str(guard).startswith("x.shape[0] > 2") for guard in other.guards)
    with pytest.raises(GuardError):
        other(torch.randn(2, 3))


@pytest.mark.parametrize("policy", ["eager", "recapture"])
@pytest.mark.parametrize("make", [_graph_of_another_module, _copied_graph, _assigned_graph])
def test_no_other_program_runs_where_a_guard_does_not_hold_for_other_weights(make, policy):
    root = Asks().eval()
    captured = fxplug.trace(root, (torch.randn(4, 3),), on_guard_failure=policy)
    other = make(Asks().eval(), captured)

    x = torch.randn(2, 3)
    torch.testing.assert_close(captured(x), root(x))
    with pytest.raises(GuardError):
        other(x)


def test_an_edited_copy_of_its_own_graph_leaves_a_module_its_guards():
    root = Asks().eval()
    captured = fxplug.trace(root, (torch.randn(4, 3),), on_guard_failure="eager")
    captured.graph = copy.deepcopy(captured.graph)

    x = torch.randn(2, 3)
    torch.testing.assert_close(captured(x), root(x))


def test_guards_that_were_taken_away_are_gone_from_the_graph(tmp_path):
    root = Asks().eval()
    captured = fxplug.trace(root, (torch.randn(4, 3),))
    captured.set_guards(None)

    assert fxplug.GraphModule(root, captured.graph)(torch.randn(2, 3)).shape == (3,)


def test_guards_of_a_file_go_with_its_graph(tmp_path):
    root = Asks().eval()
    fxplug.save(fxplug.trace(root, (torch.randn(4, 3),)), tmp_path / "asks.fxplug")
    loaded = fxplug.load(tmp_path / "asks.fxplug")

    with pytest.raises(GuardError):
        fxplug.GraphModule(root, loaded.graph)(torch.randn(2, 3))

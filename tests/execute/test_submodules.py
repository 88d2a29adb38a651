"""Adding and deleting submodules of a graph module."""

from __future__ import annotations

import torch
from torch import nn

from fxplug.execute import GraphModule
from fxplug.ir import Graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.stack = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.unused = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("offset", torch.zeros(3))
        self.register_buffer("temporary", torch.zeros(3), persistent=False)
        self.plain = torch.ones(3)

    def forward(self, x):
        return self.stack(self.linear(x)) * self.scale + self.offset + self.temporary + self.plain


def test_add_submodule_makes_the_path(capture):
    module = capture(Net())
    relu = nn.ReLU()

    assert module.add_submodule("extra.deep.relu", relu)
    assert module.extra.deep.relu is relu
    assert module.get_submodule("extra.deep.relu") is relu


def test_add_submodule_keeps_what_is_on_the_way(capture):
    module = capture(Net())
    first = module.get_submodule("stack.0")

    assert module.add_submodule("stack.extra", nn.ReLU())
    assert module.get_submodule("stack.0") is first


def test_add_submodule_refuses_a_path_through_something_else(capture):
    module = capture(Net())

    assert not module.add_submodule("linear.weight.relu", nn.ReLU())
    assert not module.add_submodule("scale.relu", nn.ReLU())
    assert isinstance(module.scale, nn.Parameter)


def test_delete_submodule(capture):
    module = capture(Net())

    assert module.delete_submodule("stack.1")
    assert not module.delete_submodule("stack.1")
    assert not module.delete_submodule("no.such")
    assert not module.delete_submodule("scale")
    assert [name for name, _ in module.stack.named_children()] == ["0"]


def test_unused_submodules_are_deleted_and_no_others(capture):
    module = capture(Net())
    module.add_submodule("extra.deep", nn.Sequential(nn.ReLU(), nn.Tanh()))
    module.delete_all_unused_submodules()

    assert sorted(name for name, _ in module.named_modules()) == ["", "linear", "stack", "stack.0", "stack.1"]


def test_parts_of_a_used_module_are_used():
    graph = Graph()
    graph.output(graph.call_module("stack", (graph.placeholder("x"),)))
    module = GraphModule(Net(), graph)
    module.delete_all_unused_submodules()

    assert module.eval()(torch.ones(1, 3)).shape == (1, 3)


def test_module_whose_parameter_is_read_is_used(capture):
    class Root(Net):
        def forward(self, x):
            return x @ self.linear.weight

    module = capture(Root())
    module.delete_all_unused_submodules()
    assert module(torch.ones(1, 3)).shape == (1, 3)


def test_root_is_not_changed_when_submodules_of_a_capture_are_deleted(capture):
    root = Net()
    module = capture(root)
    module.delete_submodule("stack.1")
    module.delete_submodule("linear")

    assert isinstance(root.stack[1], nn.BatchNorm1d)
    assert isinstance(root.linear, nn.Linear)

"""Dead code: what has an effect stays, in the pass and in Graph.eliminate_dead_code alike."""

from __future__ import annotations

import logging
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fxplug.ir import Graph
from fxplug.passes import DeadCode, PassContext

CONTEXT = PassContext()


def by_the_pass(module):
    return DeadCode().run(module, CONTEXT).modified


def by_the_graph(module):
    return module.graph.eliminate_dead_code()


every_way = pytest.mark.parametrize("eliminate", [by_the_pass, by_the_graph])


def names(module):
    return [node.name for node in module.graph.nodes]


class Effects(nn.Module):
    """Seven ways to change something by a call whose value nobody uses."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.register_buffer("count", torch.zeros(()))
        self.norm = nn.BatchNorm1d(3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x, log=None):
        y = x * 1
        WAYS[self.way](self, y)
        return y + self.count


def out(self, y):
    torch.add(y, 1, out=y)


def augmented(self, y):
    y += 1


def item(self, y):
    y[0] = 5.0


def nested_relu(self, y):
    F.relu(y[0], inplace=True)


WAYS = {
    "method": lambda self, y: y.mul_(3),
    "functional keyword": lambda self, y: F.relu(y, inplace=True),
    "functional position": lambda self, y: F.relu(y, True),
    "module": lambda self, y: self.relu(y),
    "out": out,
    "buffer": lambda self, y: self.count.add_(1),
    "augmented": augmented,
    "item": item,
    "view": nested_relu,
    "method of a view": lambda self, y: y[:, 0].zero_(),
    "foreach": lambda self, y: torch._foreach_add_([y], 1),
}


@every_way
@pytest.mark.parametrize("way", WAYS)
def test_writes_are_kept(capture, way, eliminate):
    root = Effects(way)
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    module = capture(root)
    eliminate(module)
    with torch.no_grad():
        first, second = module(x), module(x)
    root.count.zero_()
    assert torch.equal(first, root(x))
    assert torch.equal(second, root(x))


@every_way
def test_running_statistics_are_kept(capture, eliminate):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x):
            self.norm(x)
            return x

    module = capture(Root())
    assert not eliminate(module)
    module(torch.randn(4, 3) + 5)
    assert module.norm.num_batches_tracked.item() == 1
    module.eval()
    assert eliminate(module)
    assert names(module) == ["x", "output"]


@every_way
def test_random_numbers_are_kept(capture, eliminate):
    def program(x):
        F.dropout(x)
        torch.rand_like(x)
        torch.bernoulli(x)
        return x

    module = capture(program)
    assert not eliminate(module)
    assert len(module.graph.nodes) == 5


@every_way
def test_messages_are_kept(eliminate, capture):
    logger = logging.getLogger("test")
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(print, (x,))
    graph.call_function(logger.info, ("%s", x))
    graph.output(x)
    module = capture(lambda x: x)
    module.graph = graph

    assert not eliminate(module)
    assert len(module.graph.nodes) == 4


@every_way
def test_user_functions_and_custom_leaves_are_kept(capture, eliminate):
    from fxplug.capture import Tracer

    class Counting(nn.Module):
        def forward(self, x):
            return x

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.leaf = Counting()
            self.hooked = nn.Linear(3, 3)
            self.hooked.register_forward_hook(lambda *_: None)

        def forward(self, x):
            self.leaf(x)
            self.hooked(x)
            return x

    class Shallow(Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return True

    module = capture(Root(), Shallow())
    assert not eliminate(module)
    assert names(module) == ["x", "leaf", "hooked", "output"]


@every_way
def test_backward_is_kept(capture, eliminate):
    class Attack(nn.Module):
        def forward(self, x):
            (x * 3).sum().backward()
            return x + x.grad

    module = capture(Attack())
    eliminate(module)
    assert module(torch.ones(2, requires_grad=True)).tolist() == [4, 4]


@every_way
@pytest.mark.parametrize("how", ["module", "functional"])
def test_renormalising_lookup_is_kept(capture, eliminate, how):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(4, 3, max_norm=0.1)

        def forward(self, tokens):
            if how == "module":
                self.embedding(tokens)
            else:
                F.embedding(tokens, self.embedding.weight, max_norm=0.1)
            return self.embedding.weight * 1

    tokens = torch.tensor([0, 1, 2])
    module = capture(Root())
    eliminate(module)
    with torch.no_grad():
        assert torch.equal(module(tokens), Root()(tokens))


@every_way
def test_dead_chains_go_as_a_whole(capture, eliminate):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y = torch.relu(self.linear(x) @ x.t()) * 2
            y.view(-1).shape[0]
            self.weight.sum()
            return x + 1

    module = capture(Root())
    assert eliminate(module)
    assert names(module) == ["x", "add", "output"]
    assert not eliminate(module)


@every_way
def test_unused_inputs_stay(capture, eliminate):
    module = capture(lambda x, y, z=3: x)

    assert not eliminate(module)
    assert names(module) == ["x", "y", "z", "output"]


def test_submodules_go_with_their_last_use(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(3, 3)
            self.dead = nn.Sequential(nn.Linear(3, 3))

        def forward(self, x):
            self.dead(x)
            return self.used(x)

    root = Root()
    module = capture(root)
    result = DeadCode().run(module, CONTEXT)
    assert [name for name, _ in module.named_modules()] == ["", "used"]
    assert result.summary == "removed 1 dead node"
    assert result.details == {"removed": 1}
    assert isinstance(root.dead[0], nn.Linear)


def test_nothing_to_remove_is_said(capture):
    result = DeadCode().run(capture(lambda x: x + 1), CONTEXT)

    assert (result.modified, result.summary) == (False, "nothing to remove")


def test_values_are_the_same_afterwards(capture):
    def program(x):
        unused = x * 2
        kept = x + 1
        torch.cat([unused, kept])
        return {"kept": [kept, kept * 3]}

    module = capture(program)
    x = torch.randn(3)
    before = module(x)
    assert by_the_pass(module)
    assert torch.equal(module(x)["kept"][1], before["kept"][1])
    module.graph.lint()


def test_predicate_of_the_caller_decides(capture):
    def program(x):
        x.add_(1)
        x * 2
        return x

    module = capture(program)
    assert module.graph.eliminate_dead_code(lambda node: node.target is operator.mul)
    assert names(module) == ["x", "mul", "output"]


def test_graph_of_a_module_that_is_gone_keeps_calls_of_modules(capture):
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            self.linear(x)
            return x

    graph = capture(Root()).graph
    assert graph.owning_module is None
    assert not graph.eliminate_dead_code()


def test_module_beside_the_owner_of_its_graph_is_the_one_that_is_asked(capture):
    """The root that a pass is given decides, also when another module owns the graph."""

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x):
            self.part(x)
            return x

    from fxplug.execute import GraphModule

    first = capture(Root())
    other = Root()
    other.part = nn.ReLU(inplace=True)
    second = GraphModule(other, first.graph)
    assert not by_the_pass(second)

"""What is left behind: nothing, however often a module is edited, compiled, copied and dropped."""

from __future__ import annotations

import copy
import gc
import linecache
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from fxplug.execute import Interpreter
from fxplug.ir import Graph

STATM = Path("/proc/self/statm")
PAGE = 4096
EDITS = 10_000
BOUND = (
    4 << 20
)  # A thousandth of a leak of 1 kB for each edit would show; the allocator's own noise does not.


def resident():
    gc.collect()
    return int(STATM.read_text().split()[1]) * PAGE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 2 + torch.ones(2)


X = torch.ones(1, 2)


def edit(module, number):
    graph = module.graph
    node = graph.find_nodes(op="call_function")[1]
    node.update_arg(1, number)
    with graph.inserting_after(node):
        extra = graph.call_function(torch.neg, (node,))
    graph.erase_node(extra)


@pytest.mark.skipif(not STATM.exists(), reason="reads what Linux tells of a process")
@pytest.mark.parametrize("use", ["call", "interpreter"])
def test_edits_leave_nothing_behind(capture, use):
    module = capture(Net())
    interpreter = Interpreter(module)
    run = {"call": lambda: module(X), "interpreter": lambda: interpreter.run(X)}[use]
    for number in range(EDITS // 10):  # Until caches and arenas have their size.
        edit(module, number)
        run()
    before = resident()
    for number in range(EDITS):
        edit(module, number)
        run()

    assert resident() - before < BOUND


@pytest.mark.skipif(not STATM.exists(), reason="reads what Linux tells of a process")
def test_modules_that_are_made_and_dropped_leave_nothing_behind(capture):
    root = Net()

    def use(number):
        module = capture(root)
        edit(module, number)
        module(X)
        copy.deepcopy(module)(X)

    for number in range(50):
        use(number)
    before = resident()
    for number in range(400):
        use(number)

    assert resident() - before < BOUND  # A module with its graph takes more than a hundredth of that.


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_dropping_a_module_frees_its_source_and_its_weights_at_once(capture):
    sources = set(linecache.cache)
    module = capture(Net())
    for number in range(5):
        edit(module, number)
        module(X)
    watched = [weakref.ref(one) for one in (*module.parameters(), module.forward.__func__, module.graph)]
    watched[-1:] = []  # Nodes and their graph refer to one another; the collector takes them.
    assert len(set(linecache.cache) - sources) == 1
    del module

    assert [one() for one in watched] == [None] * len(watched)
    assert set(linecache.cache) <= sources


@pytest.mark.usefixtures("no_collector")
def test_an_error_does_not_keep_a_module_alive_once_it_is_handled(capture):
    module = capture(Net())
    watched = weakref.ref(module.linear.weight)
    with pytest.raises(RuntimeError, match="shapes"):
        module(torch.ones(1, 3))
    del module

    assert watched() is None


USES = {
    "copy": lambda module, _: copy.copy(module)(X),
    "print_readable": lambda module, _: module.print_readable(print_output=False),
    "to_folder": lambda module, folder: module.to_folder(folder),
    "interpreter": lambda module, _: Interpreter(module).boxed_run([X]),
    "replica": lambda module, _: module._replicate_for_data_parallel(),
    "state_dict": lambda module, _: module.load_state_dict(module.state_dict()),
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_no_use_of_a_module_keeps_it_alive(capture, use, tmp_path):
    module = capture(Net())
    watched = weakref.ref(module.linear.weight)
    use(module, tmp_path / "folder")
    del module

    assert watched() is None


def test_a_graph_module_holds_its_function_once(capture):
    module = capture(Net())
    module(X)
    function = module.forward.__func__
    module(X)

    assert module.forward.__func__ is function
    assert sys.getrefcount(function) <= 4


def test_asking_for_effects_keeps_no_function_alive():
    def closure():
        weight = torch.zeros(8)

        def shift(x):
            return x + weight[0]

        return shift, weakref.ref(weight)

    shift, weight = closure()
    graph = Graph()
    node = graph.call_function(shift, (graph.placeholder("x"),))
    graph.output(node)
    assert node.is_impure()
    graph.eliminate_dead_code()
    node.normalized_arguments(nn.Module())
    del graph, node, shift
    gc.collect()

    assert weight() is None

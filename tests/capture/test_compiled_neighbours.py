"""torch.compile in one thread while traces run in another: what it compiles, and that it compiles it once."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from fxplug.capture import Tracer, wrap

pytestmark = pytest.mark.usefixtures("pristine_module_class")


class Net(nn.Module):
    def __init__(self, *, has_hook=False):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.act = nn.ReLU()
        self.register_buffer("scale", torch.full((3,), 0.5))
        if has_hook:  # Dynamo then goes through nn.Module.__call__; otherwise it takes the forward at once.
            self.act.register_forward_hook(lambda module, args, output: output + 1)

    def forward(self, x):
        self.calls = 1
        return self.act(self.linear(x)) * self.scale


class Broken(nn.Module):
    """Calls a module from what Dynamo makes of the second half of a function."""

    def __init__(self):
        super().__init__()
        self.net = Net(has_hook=True)

    def forward(self, x):
        torch._dynamo.graph_break()
        return self.net(x)


@wrap
def helper(x):
    return x + 1


wrap("len")


def program(x):
    return helper(x) * math.sqrt(x.shape[0]) * len(x)


class Calling(nn.Module):
    def __init__(self, action):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.action = action

    def forward(self, x):
        y = self.linear(x)
        self.action()
        return self.linear(y)


@pytest.fixture
def compiled():
    """(module, fullgraph) -> (the compiled module, the graphs that were made for it)."""
    torch._dynamo.reset()

    def compile_with_a_list(module, *, fullgraph=True):
        graphs: list = []

        def backend(module, inputs):
            graphs.append([str(node.target) for node in module.graph.nodes])
            return module.forward

        return torch.compile(module, backend=backend, fullgraph=fullgraph), graphs

    yield compile_with_a_list
    torch._dynamo.reset()


def while_a_trace_runs(work):
    """Do something in another thread in the middle of a trace, and return what comes of it."""
    results = []

    def in_another_thread():
        with ThreadPoolExecutor(1) as pool:
            results.append(pool.submit(work).result())

    Tracer().trace(Calling(in_another_thread))
    return results[0]


@pytest.mark.parametrize("has_hook", [False, True])
def test_model_is_compiled_as_a_whole_while_a_trace_runs(compiled, has_hook):
    net, x = Net(has_hook=has_hook), torch.randn(2, 3)
    serial, expected_graphs = compiled(net)
    serial(x)
    torch._dynamo.reset()
    module, graphs = compiled(net)
    result = while_a_trace_runs(lambda: module(x))

    torch.testing.assert_close(result, net(x))
    assert graphs == expected_graphs


@pytest.mark.parametrize("has_hook", [False, True])
def test_model_that_was_compiled_while_a_trace_ran_is_not_compiled_again(compiled, has_hook):
    net, x = Net(has_hook=has_hook), torch.randn(2, 3)
    module, graphs = compiled(net)
    while_a_trace_runs(lambda: module(x))
    module(x)
    while_a_trace_runs(lambda: module(x))
    assert len(graphs) == 1


@pytest.mark.parametrize("root", [Net, Broken])
def test_compiled_model_is_not_compiled_again_for_a_trace(compiled, root):
    net, x = root(), torch.randn(2, 3)
    module, graphs = compiled(net, fullgraph=False)
    module(x)
    made = len(graphs)
    torch.testing.assert_close(while_a_trace_runs(lambda: module(x)), net(x))
    assert len(graphs) == made


def test_compiled_model_runs_while_traces_start_and_stop(compiled):
    net, x = Net(has_hook=True), torch.randn(2, 3)
    expected = net(x)
    module, graphs = compiled(net)
    ended, differences = threading.Event(), []

    def run():
        while not ended.is_set():
            differences.append(not torch.equal(module(x), expected))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        for _ in range(300):
            Tracer().trace(net)
        ended.set()
        running.result()
    assert differences
    assert not any(differences)
    assert len(graphs) == 1


def test_wrapped_functions_are_compiled_as_a_whole_while_a_trace_runs(compiled):
    x = torch.randn(2, 3)
    module, graphs = compiled(program)
    torch.testing.assert_close(while_a_trace_runs(lambda: module(x)), program(x))
    assert len(graphs) == 1


def test_wrapped_functions_are_compiled_no_more_than_once_for_traces_and_once_for_the_rest(compiled):
    x = torch.randn(2, 3)
    module, graphs = compiled(program)
    for _ in range(4):
        torch.testing.assert_close(module(x), program(x))
        torch.testing.assert_close(while_a_trace_runs(lambda: module(x)), program(x))
    assert len(graphs) <= 2


ALONE = """
import sys, warnings
import torch
import fxplug

def doubled(x):
    return torch.relu(x + 1) * 2

def compiling(x):
    return torch.compile(doubled)(x).sum()

class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.tensor([1.0, 2.0]) * x

fxplug.trace(Scaled(), (torch.ones(2),))
print("torch._dynamo" in sys.modules)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Those of the compiler while it is imported.
    captured = fxplug.trace(compiling, (torch.ones(3),))
print("torch._dynamo" in sys.modules)
print([node.name for node in captured.graph.nodes])
print(captured(torch.full((3,), 2.0)).item())
"""


def test_a_capture_leaves_the_compiler_unloaded_and_sees_into_what_the_program_is_the_first_to_compile():
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == [
        "False",
        "True",
        "['x', 'add', 'relu', 'mul', 'sum_1', 'output']",
        "18.0",
    ], done.stderr

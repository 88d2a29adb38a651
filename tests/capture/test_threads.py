"""Eight threads that trace, beside eight threads that run models, compiled ones among them, all at the same time."""

from __future__ import annotations

import copy
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from fxplug.capture import Tracer, is_tracing
from fxplug.errors import TraceError

PATIENCE = 120.0
"""Seconds after which threads that do not come to an end are reported."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, x):
        return x + self.second(F.relu(self.first(x))) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.LayerNorm(4)))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Counting(nn.Module):
    """Updates a buffer and assigns an attribute: what a trace has to undo."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        self.count += 1
        return self.linear(x) * self.count


class Failing(nn.Module):
    """Fails while it is traced, below a module that was entered."""

    def __init__(self, error):
        super().__init__()
        self.net, self.error = Net(), error

    def forward(self, x):
        x = self.net(x)
        if is_tracing():
            self.last = self.net.last = x  # To be undone, since no other trace may meet it.
            raise self.error("in the middle of forward")
        return x


class Deciding(nn.Module):
    """Asks what no trace can answer."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x) if x.sum() > 0 else x


def surroundings():
    """Return everything that a trace could leave changed: the module class, code of functions, and what runs."""
    found = dict(vars(nn.Module))
    for kind in (nn.Module, torch.fx.Tracer):
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType):
                found |= {(kind, name, part): getattr(value, part) for part in ("__code__", "__defaults__")}
    found["torch.fx traces"] = bool(torch.fx._symbolic_trace.is_fx_tracing())
    found["fxplug traces"] = is_tracing()
    return found


def state_of(module):
    """Return what a module and those below it hold, by identity."""
    return {
        (path, name): id(value)
        for path, child in module.named_modules()
        for table in (vars(child), child._parameters, child._buffers, child._modules)
        for name, value in table.items()
    }


@pytest.fixture(autouse=True)
def everything_is_as_before():
    """Let threads change hands often, and fail the test if a trace leaves anything behind."""
    compiled_before(
        nn.Linear(4, 4), torch.ones(1, 4)
    )  # Dynamo has its own say in nn.Module, once and for all.
    interval, before = sys.getswitchinterval(), surroundings()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)
    torch._dynamo.reset()
    after = surroundings()
    changed = [key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)]
    assert changed == []


class Crowd:
    """Threads that start together; those that run models go on until all others are done."""

    def __init__(self, tracing, running):
        self.tracing, self.running = tracing, running
        self.problems = []
        self.traced = [0] * len(tracing)
        self.ran = [0] * len(running)
        self._gate = threading.Barrier(len(tracing) + len(running))
        self._deadline = time.monotonic() + PATIENCE

    def _goes_on(self):
        return not self.problems and time.monotonic() < self._deadline

    def _trace(self, number, work, times):
        self._gate.wait(PATIENCE)
        # However threads are scheduled, every model runs while traces do.
        while self._goes_on() and (self.traced[number] < times or min(self.ran) < 3):
            work()
            self.traced[number] += 1
            if is_tracing():
                self.problems.append("a trace does not end")

    def _run(self, number, work, times):
        self._gate.wait(PATIENCE)
        while self._goes_on() and (self.ran[number] < 3 or min(self.traced) < times):
            work()
            self.ran[number] += 1
            if is_tracing():
                self.problems.append("a thread traces that runs a model")

    def _watched(self, loop, number, work, times):
        try:
            loop(number, work, times)
        except BaseException as error:
            self.problems.append(repr(error))

    def run(self, times):
        loops = [(self._trace, n, work) for n, work in enumerate(self.tracing)]
        loops += [(self._run, n, work) for n, work in enumerate(self.running)]
        with ThreadPoolExecutor(len(loops)) as pool:
            for loop, number, work in loops:
                pool.submit(self._watched, loop, number, work, times)
        assert self.problems == []
        assert min(self.traced) >= times
        assert min(self.ran) >= 3
        return self


def traces(root):
    """Return what traces `root`, and finds the graph and the source that a trace by itself gives."""
    serial = Tracer().trace(root)
    expected = str(serial), serial.python_code().src

    def work():
        graph = Tracer().trace(root)
        assert (str(graph), graph.python_code().src) == expected

    return work


def fails(root, error):
    """Return what traces `root`, which fails."""

    def work():
        with pytest.raises(error):
            Tracer().trace(root)

    return work


def runs(module, x, expected):
    """Return what runs a module, and finds the result that it gives by itself."""

    def work():
        with torch.no_grad():
            torch.testing.assert_close(module(x), expected)

    return work


def runs_compiled(net, x, expected):
    """Return what runs a model that was compiled before, and compiles it anew a few times."""
    made = [compiled_before(copy.deepcopy(net), x)]

    def work():
        if len(made) < 4:  # Dynamo gives up on a function that it compiles too often.
            made.append(torch.compile(copy.deepcopy(net), backend="eager", fullgraph=True))
        for module in made:
            runs(module, x, expected)()

    return work


def counts(root):
    """Return what runs a model that counts its calls."""

    def work():
        before = root.count.clone()
        with torch.no_grad():
            root(torch.ones(1, 4))
        assert torch.equal(root.count, before + 1)

    return work


def compiled_before(net, x):
    module = torch.compile(net, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        module(x)
    return module


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def x():
    return torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.fixture
def running(net, x):
    """Eight threads that run models, one of them compiled ones.

    Not two: Dynamo itself is not made for threads that compile or run the same function at the same time.
    """
    with torch.no_grad():
        expected = net(x)
    return [
        *[runs(net, x, expected) for _ in range(6)],
        runs_compiled(net, x, expected),
        counts(Counting()),
    ]


def test_eight_threads_trace_as_one_does_beside_eight_that_run_models(net, running):
    failing, deciding = Failing(ValueError), Deciding()
    before = [state_of(root) for root in (net, failing, deciding)]
    tracing = [
        *[traces(net) for _ in range(4)],
        traces(Counting()),
        traces(lambda x, y: net.blocks[0].first.weight @ x.relu() + y),
        fails(failing, ValueError),
        fails(deciding, TraceError),
    ]

    Crowd(tracing, running).run(times=20)

    assert [state_of(root) for root in (net, failing, deciding)] == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_eight_threads_whose_traces_fail_leave_nothing_behind(net, running, error):
    roots = [Failing(error) for _ in range(8)]
    before = [state_of(root) for root in (net, *roots)]

    Crowd([fails(root, error) for root in roots], running).run(times=10)

    assert [state_of(root) for root in (net, *roots)] == before


def test_a_crowd_notices_what_goes_wrong(net, x):
    def wrong():
        raise LookupError

    with pytest.raises(AssertionError, match="LookupError"):
        Crowd([wrong, traces(net)], [runs(net, x, net(x))]).run(times=2)


class Waiting(nn.Module):
    """Does something in the middle of its forward."""

    def __init__(self, action):
        super().__init__()
        self.linear, self.action = nn.Linear(4, 4), action

    def forward(self, x):
        x = self.linear(x)
        self.action()
        return self.linear(x)


class OtherTrace:
    """A trace of torch.fx in another thread, from its beginning to its end in two steps."""

    def __init__(self, trace):
        self._inside, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: trace(Waiting(self._wait)))

    def _wait(self):
        self._inside.set()
        assert self._may_end.wait(PATIENCE)

    def begin(self):
        self._thread.start()
        assert self._inside.wait(PATIENCE)

    def end(self):
        self._may_end.set()
        self._thread.join(PATIENCE)


def by_torch_fx(root):
    torch.fx.Tracer().trace(root)


def by_make_fx(root):
    """As torch.compile does with most of its backends."""
    make_fx(root)(torch.ones(1, 4))


@pytest.fixture(params=[by_torch_fx, by_make_fx])
def other(request):
    trace = OtherTrace(request.param)
    yield trace
    trace.end()


@pytest.fixture
def serial():
    return str(Tracer().trace(Waiting(lambda: None)))


def test_torch_fx_may_begin_and_end_a_trace_in_another_thread_meanwhile(other, serial):
    assert str(Tracer().trace(Waiting(lambda: (other.begin(), other.end())))) == serial


def test_torch_fx_may_end_a_trace_in_another_thread_meanwhile(other, serial):
    other.begin()

    assert str(Tracer().trace(Waiting(other.end))) == serial


@pytest.mark.parametrize(
    "other", [by_make_fx], indirect=True
)  # A Tracer of torch.fx hears calls of all threads.
def test_torch_fx_may_begin_a_trace_in_another_thread_meanwhile(other, serial):
    assert str(Tracer().trace(Waiting(other.begin))) == serial


def test_torch_fx_does_not_seem_to_trace_for_ever(other):
    """Its flag, which libraries ask, is what it was before, in whatever order the traces begin and end."""
    other.begin()
    Tracer().trace(Waiting(lambda: None))
    other.end()
    assert not torch.fx._symbolic_trace.is_fx_tracing()


def test_models_may_be_compiled_with_aot_eager_in_another_thread_meanwhile(net, x):
    """Its backend traces with torch.fx, which changes the module class for all threads."""
    serial = str(Tracer().trace(Waiting(lambda: None)))

    def compile_in_another_thread():
        with ThreadPoolExecutor(1) as pool:
            pool.submit(compiled_before, net, x).result(PATIENCE)

    assert str(Tracer().trace(Waiting(compile_in_another_thread))) == serial

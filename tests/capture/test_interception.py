"""torch.nn.Module while traces run: other threads, nested traces, failures, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import operator
import sys
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.fx
from torch import nn
from torch.nn import functional as F

import fxplug
from fxplug.capture import Tracer, interception, is_tracing
from fxplug.capture.examples import ExampleTracer
from fxplug.errors import TraceError, TraceWarning

pytestmark = pytest.mark.usefixtures("pristine_module_class")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x):
        return x + self.second(F.relu(self.first(x))) * self.scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Calling(nn.Module):
    """Does something with a child in the middle of its forward."""

    def __init__(self, action):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.action = action

    def forward(self, x):
        y = self.linear(x)
        self.action()
        return self.linear(y)


PLAIN = ["x", "linear", "linear_1", "output"]


def names(graph):
    return [node.name for node in graph.nodes]


@pytest.fixture
def is_pristine(pristine_module_class):
    return pristine_module_class


def test_module_class_is_untouched_after_a_trace(is_pristine):
    inside = []
    Tracer().trace(Calling(lambda: inside.append(is_pristine())))

    assert inside == [False]
    assert is_pristine()


def test_functions_of_the_module_class_stay_the_same_objects_while_a_trace_runs():
    before = [nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__]
    inside: list = []
    Tracer().trace(
        Calling(lambda: inside.extend([nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__]))
    )

    assert len(inside) == 3
    assert all(one is other for one, other in zip(inside, before, strict=True))


def test_reads_of_parameters_are_left_alone_by_a_trace_on_examples_and_heard_by_one_inside_of_it():
    own = nn.Module.__getattr__.__code__
    inside: list = []

    def look():
        inside.append(nn.Module.__getattr__.__code__)
        graph = Tracer().trace(Block())
        inside.append([node.target for node in graph.nodes if node.op == "get_attr"])

    ExampleTracer((torch.ones(2, 3),), {}).trace(Calling(look))

    assert inside == [own, ["scale"]]
    assert nn.Module.__getattr__.__code__ is own


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_module_class_is_untouched_after_an_exception(error, is_pristine):
    def fail():
        raise error

    with pytest.raises(error):
        Tracer().trace(Calling(fail))
    assert is_pristine()
    assert not is_tracing()


def test_module_class_is_untouched_after_a_refused_program(is_pristine):
    with pytest.raises(TraceError):
        Tracer().trace(lambda x: x if x else -x)
    assert is_pristine()


def test_module_class_is_untouched_after_a_result_that_no_graph_holds(is_pristine):
    with pytest.raises(TraceError):
        Tracer().trace(lambda x: object())
    assert is_pristine()


def test_exception_that_the_program_catches_does_not_end_interception(capture):
    def swallow():
        with contextlib.suppress(TraceError):
            Tracer().trace(lambda x: x if x else -x)

    assert names(Tracer().trace(Calling(swallow))) == PLAIN


def test_trace_inside_a_trace():
    inner = []
    outer = Tracer().trace(Calling(lambda: inner.append(Tracer().trace(Net()))))

    assert names(outer) == PLAIN
    assert str(inner[0]) == str(Tracer().trace(Net()))


def test_trace_inside_a_trace_of_the_same_module():
    net = Net()

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            inner.append(Tracer().trace(net))
            return self.net(x)

    inner: list = []
    outer = Tracer().trace(Root())
    assert str(inner[0]) == str(Tracer().trace(net))
    assert len(outer.nodes) == len(inner[0].nodes)


def test_trace_of_torch_fx_inside_a_trace():
    inner = []
    outer = Tracer().trace(Calling(lambda: inner.append(torch.fx.Tracer().trace(Net()))))

    assert names(outer) == PLAIN
    assert names(inner[0]) == names(torch.fx.Tracer().trace(Net()))


def test_trace_inside_a_trace_of_torch_fx():
    inner = []
    outer = torch.fx.Tracer().trace(Calling(lambda: inner.append(Tracer().trace(Net()))))

    assert names(outer) == PLAIN
    assert str(inner[0]) == str(Tracer().trace(Net()))


def test_trace_of_torch_fx_is_not_kept_alive_by_a_trace_inside_it():
    root = Calling(lambda: Tracer().trace(Net()))
    torch.fx.Tracer().trace(root)
    ended = weakref.ref(root)
    del root
    gc.collect()
    assert ended() is None


def test_trace_of_torch_fx_inside_a_trace_reads_tensors():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.weight

    inner = []
    outer = Tracer().trace(Calling(lambda: inner.append(torch.fx.Tracer().trace(Scaled()))))

    assert names(outer) == PLAIN
    assert names(inner[0]) == ["x", "weight", "mul", "output"]


def test_what_others_put_into_the_module_class_is_there_after_a_trace():
    original, seen = nn.Module.__call__, []

    def profiled(self, *args, **kwargs):
        seen.append(type(self))
        return original(self, *args, **kwargs)

    nn.Module.__call__ = profiled
    try:
        Tracer().trace(Net())
        assert nn.Module.__call__ is profiled
    finally:
        nn.Module.__call__ = original


def test_what_others_put_into_the_module_class_is_called_while_a_trace_runs():
    original, seen = nn.Module.__call__, []

    def profiled(self, *args, **kwargs):
        seen.append(type(self))
        return original(self, *args, **kwargs)

    nn.Module.__call__ = profiled
    try:
        in_another_thread = Calling(lambda: run_in_thread(lambda: Net()(torch.ones(8))))
        Tracer().trace(in_another_thread)
        assert seen.count(Block) == 3
    finally:
        nn.Module.__call__ = original


class CallsModules:
    """Calls modules, and is no function."""

    def __init__(self, original):
        self.original = original
        self.seen: list = []

    def __get__(self, instance, owner):
        return self if instance is None else partial(self, instance)

    def __call__(self, module, *args, **kwargs):
        self.seen.append(type(module))
        return self.original(module, *args, **kwargs)


def test_what_is_no_function_in_the_module_class_is_put_back_too():
    original = nn.Module.__call__
    profiled = CallsModules(original)
    serial = str(Tracer().trace(Net()))
    nn.Module.__call__ = profiled  # type: ignore[method-assign]
    try:
        assert str(Tracer().trace(Net())) == serial
        assert nn.Module.__call__ is profiled
        in_another_thread = Calling(lambda: run_in_thread(lambda: Net()(torch.ones(8))))
        Tracer().trace(in_another_thread)
        assert profiled.seen.count(Block) == 3 + 3
    finally:
        nn.Module.__call__ = original


def test_what_others_put_into_the_module_class_while_a_trace_runs_stays():
    original = nn.Module.__call__

    def profiled(self, *args, **kwargs):
        return original(self, *args, **kwargs)

    def put():
        nn.Module.__call__ = profiled

    try:
        graph = Tracer().trace(Calling(put))
        assert nn.Module.__call__ is profiled
        assert names(graph) == PLAIN
    finally:
        nn.Module.__call__ = original


def run_in_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_thread_started_by_the_program_runs_models_as_usual():
    net, x = Net(), torch.randn(2, 8)
    expected, results = net(x), []

    graph = Tracer().trace(Calling(lambda: results.append(run_in_thread(lambda: (is_tracing(), net(x))))))
    assert names(graph) == PLAIN
    ((traced, result),) = results
    assert not traced
    torch.testing.assert_close(result, expected)


@pytest.fixture
def hasty_threads():
    """Makes threads change hands as often as possible."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(former)


class Crowd:
    """Threads that trace, beside threads that run models until the tracing is done."""

    def __init__(self):
        self.problems = []
        self._finished = threading.Event()

    def trace(self, root, times):
        """Trace again and again; the graph must always be the serial one."""
        serial = str(Tracer().trace(root))

        def work():
            for _ in range(times):
                if str(Tracer().trace(root)) != serial:
                    self.problems.append("a graph differs")
                if is_tracing():
                    self.problems.append("a trace does not end")

        return work

    def infer(self, root, x, accept):
        """Run a model until the tracing is done; every result must be accepted."""

        def work():
            with torch.no_grad():
                while not self._finished.is_set():
                    if not accept(root(x)):
                        self.problems.append("a result differs")

        return work

    def _watched(self, work):
        try:
            work()
        except BaseException as error:
            self.problems.append(repr(error))

    def run(self, tracing, inferring):
        threads = [threading.Thread(target=self._watched, args=(work,)) for work in [*tracing, *inferring]]
        for thread in threads:
            thread.start()
        for thread in threads[: len(tracing)]:
            thread.join()
        self._finished.set()
        for thread in threads[len(tracing) :]:
            thread.join()


@pytest.mark.usefixtures("hasty_threads")
def test_eight_tracing_threads_beside_eight_inference_threads(is_pristine):
    net, other = Net(), Calling(lambda: None)
    x = torch.randn(2, 8)
    with torch.no_grad():
        expected = net(x)
    crowd = Crowd()
    crowd.run(
        [crowd.trace((net, other)[index % 2], 15) for index in range(8)],
        [crowd.infer(net, x, lambda result: torch.equal(result, expected)) for _ in range(8)],
    )

    assert crowd.problems == []
    assert is_pristine()


class Counting(nn.Module):
    """Updates a buffer, and does something while its forward is traced."""

    def __init__(self, action):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(3))
        self.action = action

    def forward(self, x):
        self.count += 1
        if is_tracing():
            self.action(self)
        return self.linear(x) * self.count


SHARED = "until the trace ends, a buffer that was assigned is a proxy for every thread"


def test_what_hears_of_methods_is_made_once():
    Tracer().trace(nn.ReLU())
    before = list(interception._lasting_groups.values())
    Tracer().trace(nn.ReLU())

    assert before
    assert all(map(operator.is_, before, interception._lasting_groups.values()))


def test_model_that_updates_a_buffer_can_run_while_it_is_traced():
    x = torch.randn(2, 3)
    results: list = []
    Tracer().trace(Counting(lambda root: results.append(run_in_thread(lambda: root(x)))))

    assert type(results[0]) is torch.Tensor


@pytest.mark.xfail(strict=True, reason=SHARED)
def test_model_that_updates_a_buffer_can_be_traced_twice_at_once():
    graphs: list = []

    def trace_too(root):
        root.action = lambda root: None
        graphs.append(run_in_thread(lambda: str(Tracer().trace(root))))

    root = Counting(trace_too)
    with contextlib.suppress(TraceError), warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        Tracer().trace(root)
    assert type(root.count) is torch.Tensor
    assert graphs == [str(Tracer().trace(root))]


@pytest.mark.usefixtures("hasty_threads")
def test_failing_traces_do_not_disturb_others(is_pristine):
    net = Net()
    serial = str(Tracer().trace(net))

    def fail_or_trace(index):
        if index % 2:
            with pytest.raises(TraceError):
                Tracer().trace(lambda x: x if x else -x)
            return serial
        return str(Tracer().trace(net))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(fail_or_trace, range(48))) == {serial}
    assert is_pristine()


def test_one_tracer_per_asyncio_task(is_pristine):
    net = Net()
    serial = str(Tracer().trace(net))
    seen = []

    async def trace():
        await asyncio.sleep(0)
        graph = Tracer().trace(net)
        seen.append(is_tracing())
        await asyncio.sleep(0)
        return str(graph)

    async def main():
        return await asyncio.gather(
            *[trace() for _ in range(5)], *[asyncio.to_thread(Tracer().trace, net) for _ in range(3)]
        )

    assert {str(graph) for graph in asyncio.run(main())} == {serial}
    assert seen == [False] * 5
    assert is_pristine()


def test_task_that_is_started_by_a_program_runs_after_the_trace():
    x = torch.randn(2, 3)
    results = []

    async def main():
        root = Calling(lambda: tasks.append(asyncio.get_running_loop().create_task(later())))
        tasks: list = []

        async def later():
            return root.linear(x)

        Tracer().trace(root)
        results.append((await tasks[0], root.linear(x)))

    asyncio.run(main())
    ((result, expected),) = results
    torch.testing.assert_close(result, expected)


def test_task_of_a_finished_trace_is_not_recorded_while_another_trace_runs():
    copied: list = []
    root = Calling(lambda: copied.append(contextvars.copy_context()))
    graph = Tracer().trace(root)
    size = len(graph.nodes)
    x = torch.randn(2, 3)
    results: list = []
    Tracer().trace(Calling(lambda: results.append(copied[0].run(root.linear, x))))
    assert isinstance(results[0], torch.Tensor)
    assert len(graph.nodes) == size


def test_garbage_collector_is_as_before():
    assert gc.isenabled()
    Tracer().trace(Net())
    assert gc.isenabled()
    gc.disable()
    try:
        Tracer().trace(Net())
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(TraceError):
        Tracer().trace(lambda x: x if x else -x)
    assert gc.isenabled()


def test_a_mode_is_heard_of_again_where_its_function_was_another_one_for_a_while(monkeypatch):
    def program(x):
        return x * 2 if torch.is_grad_enabled() else x * 3

    with monkeypatch.context() as patch:
        patch.setattr(torch, "is_grad_enabled", lambda: False)
        replaced = fxplug.symbolic_trace(program)
        assert replaced.graph.state_guards == ()
    own = torch.is_grad_enabled
    module = fxplug.symbolic_trace(program)

    assert torch.is_grad_enabled is own
    assert torch.equal(replaced(torch.ones(1)), torch.tensor([3.0]))
    assert [guard.asked for guard in module.graph.state_guards] == ["torch.is_grad_enabled"]

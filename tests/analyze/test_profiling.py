"""Profiles name what took the time and the memory, and leave everything as it was."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze import profiling
from fxplug.errors import AnalysisError, ConfigError, UnknownNameError
from fxplug.plugins import PluginManager

NONE = PluginManager(candidates=[], environ={})
KIB = 1024


def profiled(program, *inputs, **options):
    return fxplug.profile(program, inputs, manager=NONE, **{"runs": 3, "warm_up": 1, **options})


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x) + torch.rand_like(x)


def test_every_call_is_timed_in_every_run():
    found = profiled(Net().eval(), torch.ones(4, 8), runs=5)

    assert [node.target for node in found.nodes] == [
        *("Linear", "BatchNorm1d", "relu") * 2,
        "rand_like",
        "add",
    ]
    assert all(len(node.times) == 5 and min(node.times) > 0 for node in found.nodes)
    assert (found.runs, found.warm_up, found.device) == (5, 1, "cpu")
    assert found.threads == torch.get_num_threads()
    first = found.nodes[0]
    assert first.line.startswith(f"{__file__}:")
    assert first.modules == (
        ("", "Net"),
        ("blocks", "Sequential"),
        ("blocks.0", "Block"),
        ("blocks.0.linear", "Linear"),
    )


def test_what_takes_long_is_what_the_profile_says(monkeypatch):
    # A clock that only a slow call moves.
    clock = [0.0]
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: clock[0])

    class Slow(nn.Module):
        def forward(self, x):
            clock[0] += 2.0
            return x + 1

    class Fast(nn.Module):
        def forward(self, x):
            clock[0] += 0.5
            return x + 1

    class Tracer(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return True

    model = nn.Sequential(Fast(), Slow())
    found = profiled(fxplug.GraphModule(model, Tracer().trace(model)), torch.ones(2))

    assert [node.seconds for node in found.nodes] == [0.5, 2.0]
    assert (found.sum_seconds, found.whole_seconds, found.covered) == (2.5, 2.5, 1.0)
    (first, second) = found.rows("kind", sort="seconds")
    assert (first.name, first.seconds, first.share, first.spread) == ("Slow", 2.0, 0.8, 0.0)
    assert (second.name, second.share) == ("Fast", 0.2)
    assert str(found) == (
        "2 calls, 2.5e+03 ms as a whole, 2.5e+03 ms in sum (100% without measuring), medians of 3 runs on cpu"
    )


def test_times_are_medians_and_spreads_quartiles():
    node = profiling.NodeProfile("x", "call_function", "f", (1.0, 2.0, 3.0, 4.0, 100.0), 0, 0)

    assert (node.seconds, node.spread) == (3.0, (4.0 - 2.0) / 2 / 3.0)


def test_measuring_an_empty_step_is_counted_and_taken_off():
    found = profiling.Profile(
        (profiling.NodeProfile("x", "call_function", "f", (1.0,), 0, 0),), (1.0,), 0, 0.25, "cpu", 1
    )
    assert found.covered == 0.75
    assert profiled(Net().eval(), torch.ones(4, 8)).overhead_seconds > 0


def test_memory_of_nodes_is_that_of_their_tensors():
    def program(x):
        y = x + 1
        z = y.view(16, 16).mul_(2)
        return z * z

    found = {
        node.name: (node.allocated_bytes, node.peak_bytes)
        for node in profiled(program, torch.ones(256)).nodes
    }

    assert found == {"add": (KIB, KIB), "view": (0, KIB), "mul_": (0, KIB), "mul": (KIB, 2 * KIB)}


def test_nothing_is_left_changed():
    model = Net().train()
    model.blocks[0].calls = []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.ones(4, 8)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)

    profiled(model, x)

    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(x, torch.ones(4, 8))
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    assert int(model.blocks[0].norm.num_batches_tracked) == 0


class Growing(nn.Module):
    """Keeps all that it has seen, as a cache of keys and values does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        x.add_(1)
        self.seen.add_(x)
        return self.seen * 2


def test_every_run_starts_from_the_same_state():
    values = []

    class Watching(nn.Module):
        def forward(self, x):
            values.append(x.tolist())
            return x

    class Tracer(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, Watching)

    model = nn.Sequential(Growing(), Watching())
    profiled(fxplug.GraphModule(model, Tracer().trace(model)), torch.zeros(4), runs=2)

    assert len(values) == 1 + 2 * 3  # One for memory, and two of either kind behind one of warming up.
    assert all(value == [2.0] * 4 for value in values)


def test_regions_are_entered_around_the_nodes_in_them():
    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x
            z = y @ y
        return z.float() + x

    seen = profiled(program, torch.eye(16))

    assert len(seen.nodes) == 4
    assert not torch.is_autocast_enabled("cpu")
    assert seen.nodes[0].allocated_bytes == 16 * 16 * 2


def test_rows_by_module_and_kind():
    found = profiled(Net().eval(), torch.ones(4, 8))

    rows = {row.name: row for row in found.rows("module")}
    assert rows[""].calls == len(found.nodes)
    assert rows["blocks"].calls == 6
    assert rows["blocks.1"].calls == 3
    assert rows[""].share == 1.0
    assert {row.name: row.calls for row in found.rows("kind")}["Linear"] == 2
    assert sorted((row.seconds for row in found.rows(sort="seconds")), reverse=True) == [
        row.seconds for row in found.rows(sort="seconds")
    ]


def test_progress_is_told():
    told = []
    profiled(Net().eval(), torch.ones(4, 8), progress=lambda *counts: told.append(counts))

    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


# -- what cannot be profiled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"runs": 0}, "Cannot profile with runs=0: give a whole number from 1 on. [FXP-F000]"),
        ({"runs": True}, "Cannot profile with runs=True: give a whole number from 1 on. [FXP-F000]"),
        ({"runs": 2.5}, "Cannot profile with runs=2.5: give a whole number from 1 on. [FXP-F000]"),
        ({"warm_up": -1}, "Cannot profile with warm_up=-1: give a whole number from 0 on. [FXP-F000]"),
    ],
)
def test_numbers_of_runs_that_cannot_be(options, text):
    with pytest.raises(ConfigError) as caught:
        profiled(Net(), torch.ones(4, 8), **options)
    assert str(caught.value) == text


def test_the_meta_device_computes_nothing():
    with pytest.raises(ConfigError, match=r"Cannot profile a program on the meta device.*fxplug\.cost"):
        profiled(Net().to("meta"), torch.ones(4, 8, device="meta"))


def test_a_model_that_fails_at_a_node():
    calls = []

    class Failing(nn.Module):
        def forward(self, x):
            calls.append(time.perf_counter())
            if len(calls) > 2:
                raise ValueError("no more")
            return x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Failing()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return self.part(x) + 1

    class Tracer(fxplug.Tracer):
        def is_leaf_module(self, m, module_qualified_name):
            return isinstance(m, Failing)

    model = Model()
    module = fxplug.GraphModule(model, Tracer().trace(model))
    with pytest.raises(
        AnalysisError,
        match=r"^The module fails at node 'part' \(.*test_profiling.py:\d+ in forward\): ValueError: no more\. \[",
    ):
        profiled(module, torch.ones(2))
    assert float(module.count) == 0


def test_wrong_inputs():
    with pytest.raises(
        fxplug.api.ExampleError, match=r"Cannot run Net on the example inputs \(float32\[4, 9\]\)"
    ):
        profiled(Net(), torch.ones(4, 9))
    with pytest.raises(AnalysisError, match=r"The module fails at node 'blocks_0_linear'"):
        profiled(fxplug.symbolic_trace(Net(), manager=NONE), torch.ones(4, 9))


def test_a_column_that_does_not_exist():
    found = profiled(Net().eval(), torch.ones(4, 8))

    with pytest.raises(UnknownNameError, match=r"no column named 'second'. Did you mean 'seconds'"):
        found.rows(sort="second")


def test_a_program_without_calls():
    found = profiled(nn.Identity().forward, torch.ones(2))

    assert (found.nodes, found.sum_seconds, found.peak_bytes, found.rows("module")) == ((), 0.0, 0, [])


def test_devices_that_work_ahead_are_waited_for_behind_every_call(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    devices = [SimpleNamespace(is_cuda=True, get_device=lambda: 1), SimpleNamespace(is_cuda=False)]
    wait = profiling._waiting_for(devices)
    module = fxplug.symbolic_trace(_two_calls, manager=NONE)

    timer = profiling._Timer(module, wait)
    timer.run(torch.ones(2))

    assert waited == [1] * 4  # Before and behind each of two calls.
    assert len(timer.times) == 2


def _two_calls(x):
    return torch.relu(x + 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_profiled():
    found = profiled(Net().eval().cuda(), torch.ones(4, 8, device="cuda"))

    assert found.device == "cuda:0"
    assert all(node.seconds > 0 for node in found.nodes)
    assert found.peak_bytes > 0

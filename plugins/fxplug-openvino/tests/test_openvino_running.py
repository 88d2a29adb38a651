"""Compiled models: kept and loaded again, several calls at once, memory that is shared, numbers that are too large."""

from __future__ import annotations

import copy
import gc
import importlib.util
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import BackendError, CacheWarning, LoweringError, PassError, StorageError
from fxplug.lower import ArtefactCache, Slot, lower, lowered_partitions
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_openvino import OpenVINOBackend, plugin, runtime
from fxplug_openvino.layout import Layout

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
)
X = torch.linspace(-1, 1, 24).reshape(2, 3, 2, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        y = self.conv(x).relu()
        return {"scores": self.head(y.mean((2, 3))), "more": (y, None, 3)}


@pytest.fixture
def manager():
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "openvino")], environ={})


@pytest.fixture
def module():
    torch.manual_seed(0)
    return fxplug.symbolic_trace(Net().eval())


def run(module, inputs=(X,), *, backend=None, **options):
    lowered = lower(module, backend or OpenVINOBackend(), inputs, name="openvino", **options)
    assert lowered.fallback == ""
    return lowered.module


def check(found, module, x=X):
    torch.testing.assert_close(found(x), module(x), atol=1e-5, rtol=1e-5)


# -- kept


def test_the_cache_keeps_what_was_compiled(module, tmp_path):
    class Counting(OpenVINOBackend):
        compiled = 0

        def compile(self, *arguments):
            self.compiled += 1
            return super().compile(*arguments)

    cache = ArtefactCache(tmp_path)
    for compiled in (1, 0, 0):
        backend = Counting()
        check(run(module, backend=backend, cache=cache), module)
        assert backend.compiled == compiled
    (entry,) = cache.entries()
    assert "openvino 20" in entry.about
    assert "processor" in entry.about
    other = Counting(precision="bf16")
    run(module, backend=other, cache=cache)
    assert other.compiled == 1


def test_what_openvino_refuses_is_compiled_again(module, tmp_path):
    cache = ArtefactCache(tmp_path)
    run(module, cache=cache)
    (entry,) = cache.entries()
    head = cache.get(entry.key).partition(b"\n")[0]
    cache.put(entry.key, head + b"\nno model", backend="openvino", about="")
    with pytest.warns(CacheWarning, match="refuses it"):
        check(run(module, cache=cache), module)


def test_converters_of_ones_own_are_not_kept(tmp_path):
    from fxplug_openvino import ConverterRecord

    record = ConverterRecord(torch.ops.aten.relu.default, lambda build, x: x.output)
    assert OpenVINOBackend(converters=[record]).environment() is None


def test_a_file_is_loaded_in_a_fresh_process(module, manager, tmp_path):
    fxplug.save(run(module), tmp_path / "model.fxplug", manager=manager)
    torch.save({"x": X, "y": module(X)["scores"]}, tmp_path / "expected.pt")
    program = f"""
        import torch, fxplug
        from fxplug.lower import lowered_partitions
        from fxplug.plugins import PluginCandidate, PluginManager
        from fxplug_openvino import OpenVINOBackend, plugin
        OpenVINOBackend.compile = None
        manager = PluginManager(candidates=[PluginCandidate.of_module(plugin, "openvino")], environ={{}})
        known = torch.load({str(tmp_path / "expected.pt")!r})
        module = fxplug.load({str(tmp_path / "model.fxplug")!r}, manager=manager)
        found = module(known["x"])
        is_equal = torch.allclose(found["scores"], known["y"], atol=1e-5)
        print(list(lowered_partitions(module)), is_equal, found["more"][1:])
    """
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip() == "['submod_0'] True (None, 3)", found.stderr


def test_what_was_loaded_is_saved_and_loaded_again(module, manager, tmp_path):
    loaded = run(module)
    for number in range(3):
        fxplug.save(loaded, tmp_path / f"{number}", manager=manager)
        loaded = fxplug.load(tmp_path / f"{number}", manager=manager)
        check(loaded, module)


def pickled(module):
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("engines", ["", "stored", "rebuild"])
def test_what_is_lowered_is_copied_and_pickled(module, manager, tmp_path, copied, engines):
    made = run(module, on_mismatch="eager")
    if engines:
        fxplug.save(made, tmp_path / "m", manager=manager)
        made = fxplug.load(tmp_path / "m", engines=engines, manager=manager)
    for _ in range(2):
        made = copied(made)
        check(made, module)
        check(made, module, torch.cat((X, X)))
    assert lowered_partitions(made)["submod_0"].submit(X).result() is not None
    fxplug.save(made, tmp_path / "again", manager=manager)
    check(fxplug.load(tmp_path / "again", manager=manager), module)


def test_a_pickle_of_another_version_is_refused(module, monkeypatch):
    data = pickle.dumps(run(module))
    monkeypatch.setattr(runtime, "environment", lambda *_: {"openvino": "1999.1"})
    with pytest.raises(BackendError, match=r"compiled with .*openvino 20.*; here it is openvino 1999\.1"):
        pickle.loads(data)


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_new_weights_are_refused_where_openvino_keeps_the_old(manager, tmp_path, is_loaded, is_whole):
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)

        def forward(self, x):
            y = self.first(x)
            return self.second(y if is_whole else torch.fft.fft(y).real)

    found = fxplug.optimize(
        Program().eval(), (torch.ones(2, 3),), measure=False, backend="openvino", manager=manager
    ).module
    if is_loaded:
        fxplug.save(found, tmp_path / "m", manager=manager)
        found = fxplug.load(tmp_path / "m", manager=manager)

    with pytest.raises(PassError, match=r"'submod_0\.first\.weight' is lowered to 'openvino.*FXP-P031"):
        fxplug.load_original_state_dict(found, Program().state_dict())


def test_a_flipped_byte_is_refused(module, manager, tmp_path):
    path = tmp_path / "model.fxplug"
    fxplug.save(run(module), path, manager=manager)
    content = bytearray(path.read_bytes())
    content[content.index(b'{"version": 1, "inputs"') + 500] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"checksum|damaged"):
        fxplug.load(path, manager=manager)
    with pytest.raises(StorageError, match=r"the checksum of the engine of partition 'submod_0' is wrong"):
        fxplug.load(path, manager=manager, lazy=True)


def test_a_model_of_another_version_is_refused(module, manager, tmp_path, monkeypatch):
    fxplug.save(run(module), tmp_path / "m", manager=manager)
    here = OpenVINOBackend.environment
    monkeypatch.setattr(OpenVINOBackend, "environment", lambda self: {**here(self), "openvino": "1.0"})
    with pytest.raises(StorageError, match=r"was compiled by .* with openvino 20.*; here it is openvino 1.0"):
        fxplug.load(tmp_path / "m", manager=manager)
    check(fxplug.load(tmp_path / "m", manager=manager, engines="rebuild"), module)


def test_without_openvino_a_file_says_what_to_install(module, manager, tmp_path, monkeypatch):
    fxplug.save(run(module), tmp_path / "m", manager=manager)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(StorageError, match=r"pip install \"fxplug-openvino\[engine\]\""):
        fxplug.load(tmp_path / "m", manager=manager)
    check(fxplug.load(tmp_path / "m", manager=manager, engines="eager"), module)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b'{"version": 2}', b"[1]"]
    + [
        Layout(((0, None),), Slot(0), (torch.float32,), 1).written().replace(old, new)
        for old, new in ((b'"slot": 0', b'"slot": 1'), (b"float32", b"load"), (b"[0, null]", b'["a", null]'))
    ],
)
def test_a_damaged_head_is_nothing(line):
    assert Layout.read(line) is None


def test_a_layout_is_written_and_read():
    layout = Layout(((0, None), (1, 2)), {"a": [Slot(0), (None, 1.5)]}, (torch.bfloat16,), 7)
    assert Layout.read(layout.written()) == layout
    assert Layout((), object(), (), 7).written() is None


# -- several calls at once


@pytest.mark.parametrize("hint", ["latency", "throughput"])
def test_calls_are_under_way_at_once(hint):
    module = fxplug.symbolic_trace(nn.Conv2d(3, 8, 3).eval())
    inputs = [torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    lowered = run(module, (inputs[0],), backend=OpenVINOBackend(hint=hint, threads=2))
    (part,) = lowered_partitions(lowered).values()
    model = part.engine.compiled_model

    assert str(model.get_property("PERFORMANCE_HINT")) == hint.upper()
    assert model.get_property("INFERENCE_NUM_THREADS") == 2
    pending = [part.submit(x) for x in inputs]
    for x, call in zip(inputs, pending, strict=True):
        torch.testing.assert_close(call.result(), module(x), atol=1e-5, rtol=1e-5)
        assert call.done()
        assert call.result() is call.result()
    part.submit(inputs[0])  # Nobody waits for it, and its memory lives until it is done.
    gc.collect()
    with pytest.raises(LoweringError, match="input 0 is float32 2x3x4x4"):
        part.submit(torch.ones(2, 3, 4, 4))


def test_inputs_and_results_are_not_copied():
    module = fxplug.symbolic_trace(nn.ReLU())
    x = torch.randn(4, 5)
    lowered = run(module, (x,))
    (part,) = lowered_partitions(lowered).values()
    request, results, given = part.engine._prepared((x,))

    assert given[0].data_ptr() == x.data_ptr()
    assert request.get_input_tensor(0).data.ctypes.data == x.data_ptr()
    assert request.get_output_tensor(0).data.ctypes.data == results[0].data_ptr()


# -- whole numbers


class Adding(nn.Module):
    def forward(self, x):
        return x + 1


class Squaring(nn.Module):
    def forward(self, x):
        return x * x


class WithConstant(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.tensor([2**40, 1]))

    def forward(self, x):
        return x + self.table


@pytest.mark.parametrize(
    ("program", "good", "bad"),
    [
        (Adding(), [1000, -5], [2**31 - 1, 0]),
        (Adding(), [7, 8], [-(2**40), 0]),
        (Squaring(), [9, -9], [2**20, 0]),  # It goes in, and its square is too large.
    ],
)
def test_whole_numbers_that_need_64_bits_are_an_error_or_run_in_pytorch(program, good, bad):
    module = fxplug.symbolic_trace(program)
    good, bad = torch.tensor(good), torch.tensor(bad)
    lowered = run(module, (good,))
    assert torch.equal(lowered(good), program(good))
    with pytest.raises(LoweringError, match=r"input 0 holds whole numbers beyond \d+") as caught:
        lowered(bad)
    assert caught.value.code == "FXP-L003"
    assert torch.equal(run(module, (good,), on_mismatch="eager")(bad), program(bad))


def test_constants_that_need_64_bits_stay_in_pytorch():
    module = fxplug.symbolic_trace(WithConstant())
    lowered = lower(module, OpenVINOBackend(), (torch.tensor([1, 2]),), name="openvino")
    assert "its whole numbers may need 64 bits" in lowered.fallback
    assert torch.equal(lowered.module(torch.tensor([1, 2])), torch.tensor([2**40 + 1, 3]))


def test_places_in_tables_are_whole_numbers_that_fit():
    embedding = nn.Embedding(10, 4).eval()
    module = fxplug.symbolic_trace(embedding)
    ids = torch.tensor([[1, 2], [9, 0]])
    check(run(module, (ids,)), module, ids)


def test_sizes_that_are_left_open_reach_other_calls():
    linear = nn.Linear(4, 6).eval()

    def program(x):
        y = linear(x).view(x.shape[0], -1, 2).transpose(1, 2)
        return y.reshape(x.size(0) * 2, 3) + x.shape[0]

    inputs = torch.linspace(-1, 1, 12).reshape(3, 4)
    lowered = run(
        fxplug.symbolic_trace(program), (inputs,), backend=OpenVINOBackend(dynamic_batch=True), strict=True
    )
    for count in (3, 5, 1):
        given = torch.linspace(-2, 2, 4 * count).reshape(count, 4)
        torch.testing.assert_close(lowered(given), program(given), atol=1e-5, rtol=1e-5)

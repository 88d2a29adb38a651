"""A file is complete or not there."""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
import threading
import weakref
import zipfile

import pytest
import torch
from torch import nn

from fxplug.errors import StorageError
from fxplug.execute import GraphModule
from fxplug.ir import Graph
from fxplug.storage import container, load, save


@pytest.fixture
def module(trace):
    return trace(lambda x: torch.relu(x) + 1)


def test_a_new_file_replaces_the_old_one(trace, module, tmp_path):
    path = tmp_path / "module.fxplug"
    save(module, path)
    save(trace(lambda x: x - 1), path)

    assert load(path)(torch.tensor(1)).item() == 0
    assert os.listdir(tmp_path) == ["module.fxplug"]


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()]
)
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(
    trace, module, tmp_path, monkeypatch, failure, function
):
    path = tmp_path / "module.fxplug"
    save(module, path)
    before = path.read_bytes()

    def fail(*_args, **_kwargs):
        raise failure

    monkeypatch.setattr(os, function, fail)
    with pytest.raises((StorageError, KeyboardInterrupt, MemoryError)) as caught:
        save(trace(lambda x: x - 1), path)

    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["module.fxplug"]
    if isinstance(failure, OSError):
        assert str(caught.value) == (
            f"Cannot save to {str(path)!r}: No space left on device. Check that the folder exists, can be "
            f"written and has room. [FXP-S001]"
        )


def test_a_refused_module_leaves_the_old_file(trace, module, tmp_path):
    path = tmp_path / "module.fxplug"
    save(module, path)
    before = path.read_bytes()
    refused = trace(lambda x: x + 1)
    refused.graph.find_nodes(op="call_function")[0].target = os.path.join

    with pytest.raises(StorageError):
        save(refused, path)

    assert path.read_bytes() == before


def test_a_folder_that_does_not_exist(module, tmp_path):
    path = tmp_path / "missing" / "module.fxplug"
    with pytest.raises(StorageError) as caught:
        save(module, path)

    assert str(caught.value) == (
        f"Cannot save to {str(path)!r}: No such file or directory. Check that the folder exists, can be "
        f"written and has room. [FXP-S001]"
    )


def test_a_path_that_is_a_folder(module, tmp_path):
    with pytest.raises(StorageError, match=r"Cannot save to .*: Is a directory"):
        save(module, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_file_has_the_permissions_that_other_files_get(module, tmp_path):
    (tmp_path / "other").touch()
    save(module, tmp_path / "module.fxplug")

    assert stat.S_IMODE((tmp_path / "module.fxplug").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "other").stat().st_mode
    )


def test_a_file_keeps_the_permissions_of_the_one_that_it_replaces(trace, module, tmp_path, monkeypatch):
    path = tmp_path / "module.fxplug"
    save(module, path)
    path.chmod(0o4600)
    meanwhile = []
    original = container._write_members

    def write_members(*args):
        meanwhile.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir())
        original(*args)

    monkeypatch.setattr(container, "_write_members", write_members)
    save(trace(lambda x: x - 1), path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(meanwhile) == [0o600, 0o4600]
    assert load(path)(torch.tensor(1)).item() == 0


def test_a_file_is_never_readable_by_more_than_the_one_that_it_replaces(trace, module, tmp_path, monkeypatch):
    path = tmp_path / "module.fxplug"
    save(module, path)
    path.chmod(0o600)

    def refuse(*_args, **_kwargs):
        raise PermissionError

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "fchmod", refuse)
    save(trace(lambda x: x - 1), path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(path)(torch.tensor(1)).item() == 0


def test_a_link_goes_on_leading_to_the_file(trace, module, tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "module.fxplug", tmp_path / "link.fxplug"
    save(module, target)
    link.symlink_to(os.path.join("folder", "module.fxplug"))
    save(trace(lambda x: x - 1), link)

    assert link.is_symlink()
    assert load(target)(torch.tensor(1)).item() == 0
    assert os.listdir(target.parent) == ["module.fxplug"]


def test_two_writers_of_one_path_both_leave_a_complete_file(trace, tmp_path):
    path = tmp_path / "module.fxplug"
    modules = [trace(lambda x: x + 1), trace(lambda x: x - 1)]
    errors: list[BaseException] = []

    def write(module):
        try:
            for _ in range(10):
                save(module, path)
                load(path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert os.listdir(tmp_path) == ["module.fxplug"]


def test_a_file_that_is_saved_while_another_thread_writes_to_its_weights_is_no_damaged_one(tmp_path):
    graph = Graph()
    graph.output(graph.get_attr("weight"))
    weight = torch.zeros(4 << 20)
    module = GraphModule({"weight": weight}, graph)
    has_ended = threading.Event()

    def train():
        while not has_ended.is_set():
            weight.add_(1)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(10):
            save(module, tmp_path / "module.fxplug")
            assert load(tmp_path / "module.fxplug")().shape == weight.shape
    finally:
        has_ended.set()
        thread.join()


KILLED = """
import os, signal, sys
import torch
from torch import nn
import fxplug
from fxplug.storage import save

module = fxplug.symbolic_trace(nn.Sequential(nn.Linear(64, 64)))
save(module, sys.argv[1], progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(module, tmp_path):
    path = tmp_path / "module.fxplug"
    save(module, path)
    before = path.read_bytes()

    result = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)

    assert result.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert load(path)(torch.tensor(1)).item() == 2
    # What it had written is left behind, under a name that is nobody's.
    (left,) = set(os.listdir(tmp_path)) - {"module.fxplug"}
    assert left.startswith(".fxplug-")
    save(module, path)
    assert load(path)(torch.tensor(1)).item() == 2


WRITER = """
import sys
import torch
import fxplug
from fxplug.storage import load, save

graph = fxplug.Graph()
graph.output(graph.get_attr("w"))
module = fxplug.GraphModule({"w": torch.full((5000,), float(sys.argv[2]))}, graph)
for _ in range(20):
    save(module, sys.argv[1])
    found = load(sys.argv[1])()
    assert found[0] in (1, 2) and found.eq(found[0]).all()
"""


def test_two_processes_that_write_one_path_never_leave_a_mixture(tmp_path):
    path = tmp_path / "module.fxplug"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), number]) for number in ("1", "2")]

    assert [writer.wait() for writer in writers] == [0, 0]
    assert os.listdir(tmp_path) == ["module.fxplug"]


def test_nothing_in_the_module_names_a_member_of_the_archive(trace, tmp_path):
    model = nn.Module()
    model.register_buffer("con", torch.ones(1))
    model.register_buffer("a:b\\c", torch.ones(1))
    graph = Graph()
    graph.output((graph.get_attr("con"), graph.get_attr("a:b\\c")))
    save(GraphModule(model, graph), tmp_path / "module.fxplug")

    with zipfile.ZipFile(tmp_path / "module.fxplug") as archive:
        assert archive.namelist() == ["graph.json", "modules.json", "weights.safetensors", "manifest.json"]


def test_progress_is_told_of_every_byte_of_weights(tmp_path):
    graph = Graph()
    graph.output((graph.get_attr("small"), graph.get_attr("large")))
    tensors = {"small": torch.ones(3), "large": torch.ones(5 << 20)}
    written: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    save(
        GraphModule(tensors, graph),
        tmp_path / "m.fxplug",
        progress=lambda done, total: written.append((done, total)),
    )
    load(tmp_path / "m.fxplug", progress=lambda done, total: read.append((done, total)))

    for steps in (written, read):
        assert len(steps) == 3
        assert [done for done, _ in steps] == sorted({done for done, _ in steps})
        assert steps[-1][0] == steps[-1][1] >= (20 << 20) + 12


def test_what_could_not_be_loaded_is_not_written(module, tmp_path, monkeypatch):
    monkeypatch.setitem(container.LARGEST, "graph.json", 100)
    with pytest.raises(StorageError) as caught:
        save(module, tmp_path / "module.fxplug")

    message = str(caught.value)
    assert "graph.json would have " in message
    assert (
        "more than the 100 that a file may have. Save the parts of the module in files of their own."
        in message
    )
    assert os.listdir(tmp_path) == []


def test_saving_changes_neither_the_module_nor_its_random_state(module, tmp_path):
    before, state = str(module), torch.get_rng_state()
    version = module.graph.version
    save(module, tmp_path / "module.fxplug")

    assert (str(module), module.graph.version) == (before, version)
    assert torch.equal(torch.get_rng_state(), state)


def test_saving_and_loading_keep_no_weights_alive(trace, tmp_path):
    gc.collect()
    gc.disable()
    try:
        module = trace(nn.Sequential(nn.Linear(2, 2)))
        weight = weakref.ref(module.get_parameter("0.weight"))
        save(module, tmp_path / "module.fxp")
        del module
        assert weight() is None
        loaded = load(tmp_path / "module.fxp")
        weight = weakref.ref(loaded.get_parameter("0.weight"))
        del loaded
        assert weight() is None
    finally:
        gc.enable()

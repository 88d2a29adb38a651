"""A file is complete or not there."""

from __future__ import annotations

import gc
import os
import stat
import threading
import weakref

import pytest
import torch
from torch import nn

from fxplug.errors import StorageError
from fxplug.storage import load, save


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
            f"written and has room. [FXP-S000]"
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
        f"written and has room. [FXP-S000]"
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

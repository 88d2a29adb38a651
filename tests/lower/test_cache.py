"""Compiled engines are kept: found again, never mistaken for others, and never in the way."""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import CacheWarning, ConfigError
from fxplug.lower import ArtefactCache, Backend, Support, lower
from fxplug.plugins import load_config

sys.path.insert(0, str(Path(__file__).parent))
from keeping_backend import Keeping, traced

X = torch.linspace(-1, 1, 6).reshape(2, 3)
KEY = "0" * 64


@pytest.fixture
def cache(tmp_path):
    return ArtefactCache(tmp_path / "kept")


@pytest.fixture
def module():
    torch.manual_seed(0)
    return traced()


def run(module, backend, cache, inputs=(X,), **options):
    lowered = lower(module, backend, inputs, name="keeping", cache=cache, **options)
    assert lowered.fallback == ""
    torch.testing.assert_close(lowered.module(*inputs), module(*inputs))
    return lowered


def test_an_engine_is_compiled_once(module, cache):
    first, second = Keeping(), Keeping()
    run(module, first, cache)
    run(module, second, cache)

    assert (first.compiled, first.restored) == (1, 0)
    assert (second.compiled, second.restored) == (0, 1)
    (entry,) = cache.entries()
    assert (entry.backend, entry.about, entry.fault) == ("keeping", "quick-engine 3.1, processor test", "")


def test_a_program_captured_again_has_the_same_key(cache):
    for _ in range(2):
        torch.manual_seed(0)
        backend = Keeping()
        run(traced(), backend, cache)
    assert backend.compiled == 0


def change_weights(module, backend):
    with torch.no_grad():
        module.first.weight[0, 0] += 1
    return {}


def change_graph(module, backend):
    (node,) = (node for node in module.graph.nodes if node.target == "tanh")
    node.target = "sigmoid"
    return {}


def change_attribute(module, backend):
    module.first.note = "other"
    return {}


def change_sizes(module, backend):
    return {"inputs": (torch.ones(5, 3),)}


def change_strides(module, backend):
    return {"inputs": (torch.ones(3, 2).t(),)}


def change_dtype(module, backend):
    module.double()
    return {"inputs": (X.double(),)}


def change_version(module, backend):
    backend.versions["quick-engine"] = "3.2"
    return {}


def change_options_of_the_call(module, backend):
    return {"options": {"deep": True}}


def change_own_options(module, backend):
    backend.options = type(backend.options)(level=2)
    return {}


@pytest.mark.parametrize(
    "change",
    [
        change_weights,
        change_graph,
        change_attribute,
        change_sizes,
        change_strides,
        change_dtype,
        change_version,
        change_options_of_the_call,
        change_own_options,
    ],
)
def test_whatever_decides_what_is_compiled_decides_the_key(module, cache, change):
    run(module, Keeping(), cache)
    backend = Keeping()
    more = change(module, backend)
    run(module, backend, cache, **more)

    assert (backend.compiled, backend.restored) == (1, 0)
    assert len(cache.entries()) == 2


def test_backends_of_different_classes_do_not_meet(module, cache):
    class Other(Keeping):
        pass

    run(module, Keeping(), cache)
    other = Other()
    run(module, other, cache)
    assert other.compiled == 1


def test_a_backend_that_keeps_nothing_is_left_alone(module, cache):
    class Plain(Backend):
        def supports(self, node, context):
            return Support(ok=True)

        def compile(self, subgraph, example_inputs, options):
            return nn.Sequential(subgraph)

    run(module, Plain(), cache)
    assert cache.entries() == []
    assert not cache.folder.exists()


def damage_bytes(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def empty(path):
    path.write_bytes(b"")


def from_elsewhere(path):
    path.write_bytes(b"PK something else")


def damage_head(path):
    path.write_bytes(path.read_bytes().replace(b'"size"', b'"side"', 1))


def as_of_another_key(path):
    path.write_bytes(path.read_bytes().replace(path.stem.encode(), KEY.encode(), 1))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (damage_bytes, "its checksum is wrong"),
        (truncate, "it is truncated"),
        (empty, "it is no file of this version"),
        (from_elsewhere, "it is no file of this version"),
        (damage_head, "its head is damaged"),
        (as_of_another_key, "it was written for something else"),
    ],
)
def test_what_is_damaged_or_foreign_is_compiled_again_with_a_warning(module, cache, fault, reason):
    run(module, Keeping(), cache)
    (path,) = cache.folder.glob("*.artefact")
    fault(path)
    backend = Keeping()
    with pytest.warns(CacheWarning) as caught:
        run(module, backend, cache)

    (warning,) = caught
    assert repr(str(path)) in str(warning.message)
    assert reason in str(warning.message)
    assert backend.compiled == 1
    again = Keeping()
    run(module, again, cache)  # It was replaced.
    assert again.compiled == 0


def test_what_the_engine_refuses_is_compiled_again_with_a_warning(module, cache):
    class Refusing(Keeping):
        def restore(self, artefact):
            raise ValueError("not mine")

    run(module, Refusing(), cache)
    backend = Refusing()
    with pytest.warns(CacheWarning, match=r"'keeping' refuses it \(ValueError: not mine\)"):
        run(module, backend, cache)
    assert backend.compiled == 1


def test_an_engine_that_cannot_be_kept_works_all_the_same(module, cache):
    class Failing(Keeping):
        def artefact(self, engine):
            raise RuntimeError("no export today")

    with pytest.warns(CacheWarning, match="no export today"):
        run(module, Failing(), cache)
    assert cache.entries() == []


# -- folders


def test_a_folder_that_is_none_is_told_once(module, tmp_path):
    (tmp_path / "file").write_text("")
    cache = ArtefactCache(tmp_path / "file")
    with pytest.warns(CacheWarning) as caught:
        run(module, Keeping(1, "tanh"), cache)

    (warning,) = caught  # And not for each of the two partitions.
    assert "check that the folder can be written" in str(warning.message)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_folder_that_is_full_or_read_only_is_done_without(module, cache, monkeypatch, number):
    replace = Path.replace

    def refuse(self, target):
        if self.parent == cache.folder:
            raise OSError(number, os.strerror(number), str(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    backend = Keeping()
    with pytest.warns(CacheWarning, match=os.strerror(number)):
        run(module, backend, cache)

    assert backend.compiled == 1
    assert list(cache.folder.iterdir()) == []


def test_old_entries_make_room(tmp_path):
    cache = ArtefactCache(tmp_path, size_limit=4000)
    keys = [f"{number:064x}" for number in range(4)]
    for number, key in enumerate(keys):
        assert cache.put(key, bytes(600), backend="b", about="")
        os.utime(tmp_path / f"{key}.artefact", (number, number))
    assert cache.get(keys[0]) is not None  # Now it is the one that was used last.
    (tmp_path / "notes.txt").write_text("somebody's")

    assert cache.put("f" * 64, bytes(1300), backend="b", about="")
    assert cache.get(keys[0]) is not None
    assert cache.get(keys[1]) is None
    assert sum(entry.size for entry in cache.entries()) <= 4000
    assert not cache.put(KEY, bytes(4000), backend="b", about="")
    assert (tmp_path / "notes.txt").exists()


def test_cleaning_leaves_what_belongs_to_others(cache):
    cache.put(KEY, b"engine", backend="b", about="")
    cache.put("1" * 64, b"engine", backend="b", about="")
    damage_head(cache.folder / f"{KEY}.artefact")
    (cache.folder / "notes.txt").write_text("somebody's")
    (cache.folder / ".old.tmp").write_text("")
    os.utime(cache.folder / ".old.tmp", (1, 1))
    (cache.folder / ".new.tmp").write_text("")

    assert [entry.key for entry in cache.clean(10_000)] == [KEY]
    assert [entry.key for entry in cache.clean()] == ["1" * 64]
    assert sorted(path.name for path in cache.folder.iterdir()) == [".new.tmp", "notes.txt"]


def test_sizes_below_nothing_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"Cannot use a cache of -1 bytes"):
        ArtefactCache(tmp_path, -1)


def _write_and_read(folder, number, faults):
    warnings.simplefilter("error")
    cache = ArtefactCache(folder, 200_000)
    end = time.monotonic() + 1
    try:
        while time.monotonic() < end:
            for key in range(4):
                found = cache.get(f"{key:064x}")
                if found is not None and found != bytes([key]) * 40_000:
                    faults.put(f"{number}: something else at {key}")
                if not cache.put(f"{key:064x}", bytes([key]) * 40_000, backend="b", about=""):
                    faults.put(f"{number}: not kept")
            cache.clean(80_000)
    except Exception as error:
        faults.put(f"{number}: {error!r}")


def test_two_processes_share_a_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    faults = context.Queue()
    workers = [
        context.Process(target=_write_and_read, args=(tmp_path, number, faults)) for number in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert [worker.exitcode for worker in workers] == [0, 0]
    assert faults.empty()
    assert not list(tmp_path.glob(".*.tmp"))


# -- configuration


def test_the_configuration_names_the_folder(tmp_path):
    file = tmp_path / "fxplug.toml"
    file.write_text('[cache]\nfolder = "engines"\nsize_limit = 5000\n')
    cache = load_config(file).artefact_cache()

    assert (cache.folder, cache.size_limit) == (tmp_path / "engines", 5000)
    assert load_config(file, environ={}).cache.folder == "engines"
    file.write_text("[cache]\nsize_limit = -1\n")
    with pytest.raises(ConfigError, match=r"'cache.size_limit' is -1"):
        load_config(file)
    file.write_text("")
    assert load_config(file).artefact_cache() is None


def test_optimize_uses_the_cache_of_the_configuration(tmp_path):
    from keeping_backend import Net, manager

    file = tmp_path / "fxplug.toml"
    file.write_text('[cache]\nfolder = "engines"\n')
    backends = [Keeping(), Keeping()]
    plugins = manager(*backends)
    plugins.config = load_config(file)
    torch.manual_seed(0)
    model = Net().eval()
    for _ in range(2):
        fxplug.optimize(model, (X,), backend="keeping", manager=plugins, measure=False)

    assert [(backend.compiled, backend.restored) for backend in backends] == [(1, 0), (0, 1)]

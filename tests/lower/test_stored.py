"""Lowered modules in files: loaded with what was compiled, or with a clear reason why not."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
from fxplug.analyze import described_copy, shape_text
from fxplug.errors import ConfigError, LoweringError, StorageError
from fxplug.execute import GraphModule
from fxplug.lower import LoweredPartition, lower, lowered_partitions
from fxplug.plugins import PluginManager
from fxplug.semantics.internals import without_data
from fxplug.storage import summarize

sys.path.insert(0, str(Path(__file__).parent))
from keeping_backend import Keeping, manager, traced

X = torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return traced()


def lowered(module, backend=None, **options):
    backend = backend if backend is not None else Keeping(1, "tanh")
    return lower(module, backend, (X,), name="keeping", **options).module


@pytest.fixture
def path(module, tmp_path):
    fxplug.save(lowered(module), tmp_path / "model.fxplug", manager=manager())
    return tmp_path / "model.fxplug"


def test_what_was_compiled_is_used_again(module, path):
    first, second = Keeping(), Keeping()
    loaded = fxplug.load(path, manager=manager(first, second))

    assert list(lowered_partitions(loaded)) == ["submod_0", "submod_1"]
    assert (first.restored, second.restored) == (0, 0)  # Bytes reach no engine before the module is called.
    assert torch.equal(loaded(X), module(X))
    assert (first.compiled, second.compiled) == (0, 0)
    assert (first.restored, second.restored) == (1, 1)
    assert torch.equal(loaded(X + 1), module(X + 1))
    assert first.restored == 1


def test_shapes_are_known_without_the_engine(module, path):
    """An engine would read the memory of tensors that have none."""
    first, second = Keeping(), Keeping()
    loaded = fxplug.load(path, manager=manager(first, second))

    known = described_copy(loaded, X)

    shapes = {node.name: shape_text(node) for node in known.graph.nodes}
    assert (shapes["submod_0"], shapes["submod_1"]) == ("float32[2, 3]", "float32[2, 2]")
    assert (first.restored, second.restored) == (0, 0)
    assert torch.equal(loaded(X), module(X))
    with pytest.raises(LoweringError, match="Cannot run partition"):
        loaded(without_data(X[:1])[1])


def test_it_is_restored_in_a_fresh_process(module, path, tmp_path):
    torch.save({"x": X, "y": module(X)}, tmp_path / "expected.pt")
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import torch, fxplug
        from keeping_backend import Keeping, manager
        made = [Keeping(), Keeping()]
        known = torch.load({str(tmp_path / "expected.pt")!r})
        module = fxplug.load({str(path)!r}, manager=manager(*made))
        print(torch.equal(module(known["x"]), known["y"]), [(b.compiled, b.restored) for b in made])
    """
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip() == "True [(0, 1), (0, 1)]", found.stderr


@pytest.mark.parametrize(("engines", "compiled"), [("rebuild", 1), ("eager", 0)])
def test_a_file_can_be_loaded_without_its_engines(module, path, engines, compiled):
    backend = Keeping()
    loaded = fxplug.load(path, engines=engines, manager=manager(backend))

    assert torch.equal(loaded(X), module(X))
    assert (backend.compiled, backend.restored) == (compiled, 0)


def test_options_are_those_with_which_it_was_compiled(module, tmp_path):
    fxplug.save(lowered(module, Keeping(7)), tmp_path / "m", manager=manager())
    (part,) = lowered_partitions(fxplug.load(tmp_path / "m", manager=manager())).values()
    assert part.origin.maker.options.level == 7


def test_profiles_and_what_happens_with_other_inputs_are_kept(module, tmp_path):
    for on_mismatch in ("error", "eager"):
        fxplug.save(lowered(module, on_mismatch=on_mismatch), tmp_path / on_mismatch, manager=manager())
    other = torch.ones(5, 3)
    with pytest.raises(LoweringError, match="input 0 is float32 5x3, and float32 2x3 is expected"):
        fxplug.load(tmp_path / "error", manager=manager())(other)
    assert torch.equal(fxplug.load(tmp_path / "eager", manager=manager())(other), module(other))


def test_what_was_loaded_is_saved_again(module, path, tmp_path):
    once = fxplug.load(path, manager=manager())
    fxplug.save(once, tmp_path / "unused", manager=manager())
    once(X)
    fxplug.save(once, tmp_path / "used", manager=manager())
    for name in ("unused", "used"):
        backend = Keeping()
        assert torch.equal(fxplug.load(tmp_path / name, manager=manager(backend))(X), module(X))
        assert backend.restored == 1


def test_copies_of_what_was_loaded_work(module, path):
    loaded = copy.deepcopy(fxplug.load(path, manager=manager()))
    assert torch.equal(loaded(X), module(X))


@pytest.mark.parametrize("is_called", [False, True])
def test_pickles_of_what_was_loaded_work(module, path, is_called, monkeypatch):
    loaded = fxplug.load(path, manager=manager())
    if is_called:
        loaded(X)
    data = pickle.dumps(loaded)
    assert torch.equal(pickle.loads(data)(X), module(X))

    moved = pickle.loads(data)
    for part in lowered_partitions(moved).values():
        monkeypatch.setattr(part.origin.maker, "versions", {"quick-engine": "9.9"})
    if is_called:
        assert torch.equal(moved(X), module(X))  # It holds what runs.
    else:
        with pytest.raises(
            LoweringError, match=r"compiled with quick-engine 3\.1.*; here it is quick-engine 9\.9"
        ):
            moved(X)


def test_threads_make_an_engine_once(module, path):
    backend = Keeping()
    loaded = fxplug.load(path, manager=manager(backend))
    results = []
    threads = [threading.Thread(target=lambda: results.append(loaded(X))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert backend.restored == 1
    assert all(torch.equal(result, module(X)) for result in results)


def test_saving_changes_nothing(module, tmp_path):
    part = lowered(module)
    before = [type(inner) for inner in part.modules()]
    fxplug.save(part, tmp_path / "m", manager=manager())
    assert [type(inner) for inner in part.modules()] == before
    assert torch.equal(part(X), module(X))


# -- what a file says


def test_the_manifest_says_who_compiled_what_with_what(path):
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    first, second = manifest["engines"]

    assert {name: first[name] for name in ("partition", "backend", "distribution", "version")} == {
        "partition": "submod_0",
        "backend": "keeper:keeping",
        "distribution": "fxplug-keeper",
        "version": "0",
    }
    assert first["environment"] == {"quick-engine": "3.1", "processor": "test"}
    assert len(first["sha256"]) == 64
    assert second["sha256"] != first["sha256"]
    assert list(manifest["plugins"]) == ["keeper"]
    assert summarize(path).engines[0] == (
        "submod_0: keeper:keeping of fxplug-keeper 0, compiled with quick-engine 3.1, processor test"
    )


# -- what is refused


def test_another_version_is_refused_and_compiled_anew_if_asked(module, path):
    def newer(*_):
        backend = Keeping()
        backend.versions["quick-engine"] = "4.0"
        return backend

    with pytest.raises(StorageError) as caught:
        fxplug.load(path, manager=manager(newer()))
    message = (
        "the engine of partition 'submod_0' was compiled by fxplug-keeper 0 with quick-engine 3.1; here it is "
        "quick-engine 4.0. Compile it anew: load(..., engines='rebuild'); or run it in PyTorch: engines='eager'."
    )
    assert str(caught.value) == f"Cannot load {str(path)!r}: {message} [FXP-S000]"
    assert torch.equal(fxplug.load(path, engines="rebuild", manager=manager(newer(), newer()))(X), module(X))


def test_a_missing_plugin_is_named(module, path):
    nobody = PluginManager(candidates=[], environ={})
    with pytest.raises(StorageError) as caught:
        fxplug.load(path, manager=nobody)
    assert "is run by the backend 'keeper:keeping', which the plugin 'keeper' of fxplug-keeper 0" in str(
        caught.value
    )
    assert "pip install fxplug-keeper==0" in str(caught.value)
    assert torch.equal(fxplug.load(path, engines="eager", manager=nobody)(X), module(X))


@pytest.mark.parametrize("lazy", [False, True])
def test_a_flipped_byte_is_refused(path, lazy):
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        weights = archive.read("weights.safetensors")
    engine = weights.index(b"PK\x03\x04")  # The engines of this backend are files.
    place = content.index(weights) + engine + 40
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])

    with pytest.raises(StorageError, match=r"checksum|damaged"):
        fxplug.load(path, lazy=lazy, manager=manager())


def test_an_engine_that_refuses_says_what_to_do(path):
    class Refusing(Keeping):
        def restore(self, artefact):
            raise RuntimeError("not mine")

    loaded = fxplug.load(path, manager=manager(Refusing(), Refusing()))
    with pytest.raises(LoweringError) as caught:
        loaded(X)
    assert "its engine cannot be restored: RuntimeError: not mine" in str(caught.value)
    assert "engines='rebuild'" in str(caught.value)


def test_options_that_are_gone_are_named(path):
    plugins = manager()
    plugins.backend_options = lambda *_: (_ for _ in ()).throw(ConfigError("There is no option 'level'."))
    with pytest.raises(StorageError, match="cannot be made as it was when the file was written"):
        fxplug.load(path, manager=plugins)


def test_a_backend_of_nobody_cannot_be_saved(module, tmp_path):
    with pytest.raises(StorageError) as caught:
        fxplug.save(lowered(module), tmp_path / "m", manager=PluginManager(candidates=[], environ={}))
    assert "partition 'submod_0' is run by the backend 'keeping', which is needed to load it again" in str(
        caught.value
    )
    assert not (tmp_path / "m").exists()


def test_engines_are_one_of_three(path):
    with pytest.raises(ConfigError, match=r"Cannot load with engines='new': use one of 'stored'"):
        fxplug.load(path, engines="new", manager=manager())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inputs", [{"tensor": [1]}]),
        ("inputs", [{"tensor": [torch.float32, [2], [1], "cp("]}]),
        ("inputs", [{"tensor": [torch.float32, [2], [1], "nonsense"]}]),
        ("profile", [{"colour": 1}]),
        ("profile", [{"dtype": torch.float32, "sizes": (2, 3), "device": "nonsense"}]),
        ("profile", [{"dtype": torch.float32, "sizes": (2, 3), "device": -1}]),
        ("profile", [{"dtype": torch.float32, "sizes": 1, "device": "cpu"}]),
        ("profile", [{"dtype": torch.float32, "sizes": (2.5, 3), "device": "cpu"}]),
        ("profile", [{"dtype": 1, "sizes": (2, 3), "device": "cpu"}]),
        ("backend", 3),
        ("options", []),
        ("on_mismatch", "sideways"),
        ("on_mismatch", torch.ones(2)),
        ("partition", torch.ones(2)),
        ("environment", {"quick-engine": 1}),
        ("environment", {"quick-engine": torch.ones(2)}),
    ],
)
def test_what_was_tampered_with_is_refused(path, tmp_path, field, value):
    stored = fxplug.storage.load(path)
    stored.submod_0.about[field] = value
    fxplug.storage.save(stored, tmp_path / "m")
    with pytest.raises(StorageError):
        fxplug.load(tmp_path / "m", manager=manager())


def test_engines_in_modules_that_are_shared_many_times_are_found_without_walking_every_path(path, tmp_path):
    stored = fxplug.storage.load(path)
    shared = nn.Sequential(stored.submod_0)
    for _ in range(60):
        shared = nn.Sequential(shared, shared)
    stored.extra = shared
    fxplug.storage.save(stored, tmp_path / "m")

    loaded = fxplug.load(tmp_path / "m", manager=manager())
    inner = loaded.extra
    while isinstance(inner, nn.Sequential):
        inner = inner[-1]
    assert inner is loaded.submod_0
    assert isinstance(inner, LoweredPartition)


def test_an_engine_in_the_program_of_an_engine_is_replaced_too(module, path, tmp_path):
    stored = fxplug.storage.load(path)
    inner = fxplug.storage.load(path)
    stored.submod_0.program.inner = inner.submod_0
    fxplug.storage.save(stored, tmp_path / "m")

    loaded = fxplug.load(tmp_path / "m", engines="eager")
    assert isinstance(loaded.submod_0.inner, GraphModule)
    assert torch.equal(loaded(X), module(X))


def test_an_engine_that_cannot_be_kept_is_compiled_when_it_is_called(module, tmp_path):
    class Forgetful(Keeping):
        def environment(self):
            return None

    fxplug.save(lowered(module, Forgetful()), tmp_path / "m", manager=manager())
    backend = Forgetful()
    assert torch.equal(fxplug.load(tmp_path / "m", manager=manager(backend))(X), module(X))
    assert (backend.compiled, backend.restored) == (1, 0)

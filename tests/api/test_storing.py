"""Files of graph modules through the public names, and pickles behind a switch."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

import fxplug
from fxplug.errors import StorageError


class Marker:
    def __reduce__(self):
        return exec, ("raise AssertionError('the pickle was run')",)


@pytest.fixture
def module():
    torch.manual_seed(0)
    return fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval())


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_is_refused_and_not_run(tmp_path, legacy):
    path = tmp_path / "m.pt"
    torch.save(Marker(), path, _use_new_zipfile_serialization=not legacy)

    with pytest.raises(StorageError) as caught:
        fxplug.load(path)

    assert str(caught.value) == (
        f"Cannot load {str(path)!r}: it is a pickle, as torch.save writes it, which runs whatever its author "
        "put there. Ask for a file that fxplug.save wrote, or, if you trust whoever made it, pass "
        "allow_pickle=True. [FXP-S013]"
    )


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_is_loaded_with_a_warning_when_it_is_allowed(tmp_path, module, legacy):
    path = tmp_path / "m.pt"
    torch.save(module, path, _use_new_zipfile_serialization=not legacy)

    with pytest.warns(
        UserWarning, match="is a pickle: loading it runs whatever its author put there"
    ) as caught:
        loaded = fxplug.load(path, allow_pickle=True)

    assert caught[0].filename == __file__
    x = torch.ones(2, 3)
    assert torch.equal(loaded(x), module(x))
    assert loaded.code == module.code


def test_a_pickle_of_something_else(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")

    with (
        pytest.warns(UserWarning, match="is a pickle"),
        pytest.raises(
            StorageError, match=r"it holds a torch\.nn\.modules\.linear\.Linear, not a fxplug\.GraphModule"
        ),
    ):
        fxplug.load(tmp_path / "m.pt", allow_pickle=True)


def test_a_pickle_that_fails(tmp_path):
    torch.save(Marker(), tmp_path / "m.pt")

    with (
        pytest.warns(UserWarning, match="is a pickle"),
        pytest.raises(StorageError, match="unpickling it raised AssertionError: the pickle was run"),
    ):
        fxplug.load(tmp_path / "m.pt", allow_pickle=True)


def test_a_file_of_fxplug_is_loaded_as_ever_where_pickles_are_allowed(tmp_path, module):
    fxplug.save(module, tmp_path / "m.fxplug")

    assert fxplug.load(tmp_path / "m.fxplug", allow_pickle=True, lazy=True).code == module.code


def test_a_file_that_is_neither_is_called_damaged(tmp_path):
    (tmp_path / "m").write_bytes(b"PK\x03\x04 nonsense")

    for allowed in (False, True):
        with pytest.raises(StorageError, match="damaged or not an fxplug file"):
            fxplug.load(tmp_path / "m", allow_pickle=allowed)


def test_the_manifest_says_which_plugins_are_needed(tmp_path, module):
    fxplug.save(module, tmp_path / "m.fxplug")

    with zipfile.ZipFile(tmp_path / "m.fxplug") as archive:
        assert json.loads(archive.read("manifest.json"))["plugins"] == {}


# -- copies and pickles keep the data form, and do not trace anew


def marked(module):
    node = next(iter(module.graph.nodes))
    node.meta["cost"] = (1, 2)
    (call,) = module.graph.find_nodes(op="call_module", target="1")
    call.name = "renamed_by_hand"
    return module


@pytest.mark.parametrize("make", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_keep_names_notes_and_origins_without_a_trace(module, make, monkeypatch):
    marked(module)

    def trace(*_args, **_kwargs):
        raise AssertionError("a copy was traced")

    monkeypatch.setattr(fxplug.Tracer, "trace", trace)
    copied = make(module)

    assert str(copied.graph) == str(module.graph)
    assert copied.code == module.code
    assert next(iter(copied.graph.nodes)).meta["cost"] == (1, 2)
    for one, other in zip(copied.graph.nodes, module.graph.nodes, strict=True):
        assert [origin.to_data() for origin in one.origins] == [origin.to_data() for origin in other.origins]
    x = torch.ones(2, 3)
    assert torch.equal(copied(x), module(x))


WORKERS = """
import multiprocessing, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
import fxplug

class Data(Dataset):
    def __init__(self, module):
        self.module = module
    def __len__(self):
        return 4
    def __getitem__(self, index):
        with torch.no_grad():
            return self.module(torch.full((3,), float(index)))

def call(module):
    return module(torch.ones(3)).tolist()

if __name__ == "__main__":
    torch.manual_seed(0)
    module = fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3)).requires_grad_(False))
    expected = module(torch.ones(3)).tolist()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(call, [module]) == [expected]
    loader = DataLoader(Data(module), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    rows = torch.cat(list(loader))
    assert torch.equal(rows, torch.stack([module(torch.full((3,), float(n))) for n in range(4)]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a second is enough elsewhere, not there")
def test_modules_go_to_other_processes_and_to_the_workers_of_a_loader(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(WORKERS)

    subprocess.run([sys.executable, str(program)], check=True, cwd=tmp_path)


def test_a_state_dict_goes_through_torch_save_and_fits_a_loaded_module(tmp_path, module):
    fxplug.save(module, tmp_path / "m.fxplug")
    loaded = fxplug.load(tmp_path / "m.fxplug", lazy=True)
    torch.save(loaded.state_dict(), tmp_path / "weights.pt")

    other = fxplug.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval())
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))

    x = torch.ones(2, 3)
    assert torch.equal(other(x), module(x))

"""Files of every version that was ever written are loaded for ever."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path

import pytest
import torch

from fxplug.storage import FORMAT_VERSION, load, save
from fxplug.storage.migrations import MIGRATIONS

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = range(1, FORMAT_VERSION + 1)


def test_there_is_a_golden_file_and_a_migration_for_each_version():
    assert [GOLDEN / f"version-{version}.fxplug" for version in VERSIONS] == sorted(GOLDEN.glob("*.fxplug"))
    assert list(MIGRATIONS) == list(range(1, FORMAT_VERSION))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_file_holds_what_it_always_held(golden, bits, version, lazy):
    expected = golden.golden_module(version)
    loaded = load(GOLDEN / f"version-{version}.fxplug", lazy=lazy, provisions=golden.provisions)

    assert loaded.code == expected.code
    assert [str(guard) for guard in loaded.guards] == [str(guard) for guard in expected.guards]
    assert loaded.assumptions == expected.assumptions
    assert repr(loaded) == repr(expected)
    ours, theirs = (dict(module.state_dict()) for module in (loaded, expected))
    assert bits(ours) == bits(theirs)
    assert loaded.tied is loaded.linear.weight
    assert loaded.linear is loaded.again
    assert loaded.view.untyped_storage().data_ptr() == loaded.tied.untyped_storage().data_ptr()
    assert loaded.names == {"plain": [1, 2.5, None, "text"]}
    x = torch.ones(2, 4)
    assert bits(loaded(x)) == bits(expected(x))
    for one, other in zip(loaded.graph.nodes, expected.graph.nodes, strict=True):
        assert [origin.to_data() for origin in one.origins] == [origin.to_data() for origin in other.origins]
        assert (one.region, one.type, str(one.meta)) == (other.region, other.type, str(other.meta))


def test_a_golden_file_names_the_plugin_that_it_needs(golden):
    for version in VERSIONS:
        with pytest.raises(Exception, match=r"plugin 'golden' of fxplug-golden 1\.2\.3") as caught:
            load(GOLDEN / f"version-{version}.fxplug")
        assert "pip install fxplug-golden==1.2.3" in str(caught.value)


def test_the_present_version_is_written_as_it_was(golden, tmp_path):
    path = tmp_path / "new.fxplug"
    save(golden.golden_module(), path, provisions=golden.provisions)

    for name in ("graph.json", "modules.json", "weights.safetensors"):
        with (
            zipfile.ZipFile(path) as new,
            zipfile.ZipFile(GOLDEN / f"version-{FORMAT_VERSION}.fxplug") as old,
        ):
            assert new.read(name) == old.read(name), "what is written has changed: raise the version"


def test_a_file_of_version_1_keeps_its_plugins_when_it_is_damaged(opened, tmp_path):
    path = tmp_path / "old.fxplug"
    path.write_bytes((GOLDEN / "version-1.fxplug").read_bytes())
    stored = opened(path)
    assert "golden" in json.loads(stored.members["graph.json"])["providers"]

    stored.members["graph.json"] = b"[]"
    stored.write()

    assert stored.refusal() == (
        "Cannot load 'FILE': graph.json is a list where dict was expected. The file is damaged. [FXP-S000]"
    )


def test_bits_tell_zeros_and_nans_apart(bits):
    assert bits(0.0) != bits(-0.0)
    assert bits(math.nan) == bits(math.nan)
    assert bits(torch.tensor(0.0)) != bits(torch.tensor(-0.0))

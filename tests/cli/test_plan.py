"""``fxplug plan``, ``fxplug cache`` and ``fxplug backends show``."""

from __future__ import annotations

import json

import pytest

from fxplug.lower import ArtefactCache

INPUT = ("--example", "1x3x8x8")
EAGER = ("--backend", "eager")


def test_a_plan_is_a_table(fxplug):
    result = fxplug("plan", "models.py:net", *INPUT, *EAGER, "--pin", "relu=")

    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "2 of 2 calls are supported by eager"
    assert lines[3].split()[:4] == ["submod_0", "eager", "1", "1"]
    assert "1 call stays in PyTorch:" in lines
    assert lines[-1].startswith("relu ")
    assert "models.py:" in lines[-1]
    assert "it is pinned to PyTorch" in lines[-1]


def test_a_plan_is_data(fxplug):
    result = fxplug("plan", "models.py:net", *INPUT, *EAGER, "--together", "conv, relu", "--json")
    data = json.loads(result.output)

    assert (data["format"], data["version"], data["coverage"]) == ("fxplug-plan", 1, 1.0)
    assert [part["nodes"] for part in data["partitions"]] == [["conv", "relu"]]
    assert data["missing"] == []


def test_transfers_are_weighed(fxplug):
    result = fxplug("plan", "models.py:net", *INPUT, *EAGER, "--max-transfer", "0")
    assert "There is no partition: all calls run in PyTorch." in result.output
    assert "more than max_transfer=0 allows" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*INPUT, "--backend", "eagre"), "There is no backend named 'eagre'. Did you mean 'eager'?"),
        ((*INPUT, *EAGER, "--pin", "relu"), "'relu' is not NODE=BACKEND"),
        ((*INPUT, *EAGER, "--pin", "rule="), "Cannot decide where node 'rule' runs"),
        ((*INPUT, *EAGER, "--pin", "relu=fast"), "Cannot pin node 'relu' to 'fast'"),
        ((*INPUT,), "Missing option '--backend'"),
        (EAGER, "Models are run, so they need inputs"),
    ],
)
def test_what_makes_no_sense_is_refused(fxplug, arguments, message):
    result = fxplug("plan", "models.py:net", *arguments)
    assert result.exit_code != 0
    assert message in result.stderr


def test_the_cache_is_listed_and_cleaned(fxplug, tmp_path):
    (tmp_path / "fxplug.toml").write_text('[cache]\nfolder = "kept"\n')
    options = ("--config", str(tmp_path / "fxplug.toml"))
    assert "0 engines" in fxplug("cache", "list", *options).output

    kept = ArtefactCache(tmp_path / "kept")
    kept.put("a" * 64, b"engine", backend="quick", about="quick-engine 3.1")
    listed = fxplug("cache", "list", *options).output
    assert "quick-engine 3.1" in listed
    assert listed.splitlines()[-1].startswith("1 engines, ")
    (entry,) = json.loads(fxplug("cache", "list", "--json", *options).output)["entries"]
    assert (entry["backend"], entry["key"]) == ("quick", "a" * 64)

    assert "0 engines removed" in fxplug("cache", "clean", "--keep", "5000", *options).output
    assert "1 engines removed" in fxplug("cache", "clean", *options).output
    assert kept.entries() == []


def test_a_cache_has_to_be_named(fxplug, tmp_path):
    result = fxplug("cache", "list")
    assert result.exit_code != 0
    assert "the configuration names none" in result.stderr
    assert "0 engines" in fxplug("cache", "list", "--folder", str(tmp_path / "other")).output


def test_a_backend_is_shown(fxplug):
    result = fxplug("backends", "show", "inductor")
    assert "mode = 'default'" in result.output
    assert "It has no converters of single operators" in result.output
    assert json.loads(fxplug("backends", "show", "eager", "--json").output)["operators"] == {}

"""A host that knows only what a test gives it, and distributions that are gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import fxplug
from fxplug.ir import OUTSIDE, effects
from fxplug.plugins import (
    EffectRecord,
    PluginCandidate,
    PluginManager,
    default_manager,
    discover,
    hookimpl,
    load_config,
)
from fxplug.testing import FakeSite, IsolationError, isolated_host

LEAF = """
import fxplug

@fxplug.hookimpl
def fxplug_is_leaf_module(module):
    return True if type(module).__name__ == "Block" else None
"""


class Block(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x) * x


def leaf_plugin() -> ModuleType:
    module = ModuleType("fxplug_leaf")
    exec(LEAF, vars(module))
    return module


def opcodes(**arguments) -> list[str]:
    return [node.op for node in fxplug.symbolic_trace(nn.Sequential(Block()), **arguments).graph.nodes]


# -- fake distributions -----------------------------------------------------------------------------------------


def test_discovery_finds_a_fake_distribution_with_its_metadata(site):
    made = site.install("leaf", LEAF, version="2.1", requires=["fxplug>=0.1,<0.2"])

    (found,) = [candidate for candidate in discover() if candidate.name == "leaf"]

    assert (found.distribution, found.version, found.target) == ("fxplug-leaf", "2.1", "fxplug_leaf")
    assert found.requires == ("fxplug>=0.1,<0.2",)
    assert found == made.candidate() or found.target == made.candidate().target


def test_path_and_modules_are_as_before_afterwards(tmp_path):
    path, modules = list(sys.path), set(sys.modules)
    with FakeSite(tmp_path / "site") as site:
        made = site.install("gone", "value = 1")
        assert made.candidate().load().value == 1
        assert "fxplug_gone" in sys.modules

    assert sys.path == path
    assert set(sys.modules) == modules


# -- the isolated host ------------------------------------------------------------------------------------------


def test_a_manager_knows_modules_candidates_and_fake_distributions_and_no_others(site):
    made = site.install("leaf", LEAF, requires=["fxplug>=0.1,<0.2"])
    candidate = PluginCandidate.of_module(ModuleType("other"), "other")

    with isolated_host(site) as host:
        manager = host.manager(made, candidate, ModuleType("fxplug_named.plugin"))

    assert [info.name for info in manager.plugin_infos()] == ["leaf", "named", "other"]
    assert opcodes(manager=manager) == ["placeholder", "call_module", "output"]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (discover, "Cannot look for installed plugins in a test that is isolated from them"),
        (PluginManager, "Cannot look for installed plugins|Cannot read FXPLUG_STRICT"),
        (lambda: PluginManager(candidates=[]), "Cannot read FXPLUG_STRICT in a test that is isolated"),
        (load_config, "Cannot read FXPLUG_CONFIG in a test that is isolated from the environment"),
        (default_manager, "Cannot read FXPLUG_CONFIG in a test that is isolated from the environment"),
        (lambda: fxplug.symbolic_trace(Block()), "Cannot read FXPLUG_CONFIG"),
        (lambda: os.environ["FXPLUG_DISABLE_PLUGINS"], "plugin_manager\\(module, environ="),
        (lambda: os.getenv("FXPLUG_DISABLE_PLUGINS"), "FXPLUG_DISABLE_PLUGINS"),
    ],
)
def test_what_depends_on_the_machine_is_refused(ask, message):
    with isolated_host(), pytest.raises(IsolationError, match=message) as caught:
        ask()

    assert caught.value.code == "FXP-H020"


def test_other_variables_can_be_used(monkeypatch):
    monkeypatch.setenv("FXPLUG_STRICT", "1")
    with isolated_host():
        os.environ["SOME_VARIABLE"] = "1"
        assert os.getenv("SOME_VARIABLE") == os.environ.copy()["SOME_VARIABLE"] == "1"
        assert "FXPLUG_STRICT" not in list(os.environ)
        del os.environ["SOME_VARIABLE"]

    assert os.environ["FXPLUG_STRICT"] == "1"
    assert "SOME_VARIABLE" not in os.environ


def test_discovery_may_look_into_the_folder_of_the_test(site):
    site.install("leaf", LEAF)

    with isolated_host(site):
        assert [candidate.name for candidate in discover([str(site.folder)])] == ["leaf"]


def test_a_loaded_plugin_takes_part_where_no_manager_is_named_until_the_host_ends(monkeypatch):
    monkeypatch.setenv("FXPLUG_CONFIG", "")
    monkeypatch.setenv("FXPLUG_LOAD_PLUGINS", "")
    outside = default_manager()
    without = opcodes()

    with isolated_host() as host:
        host.load(leaf_plugin())
        inside = opcodes()
        host.load(ModuleType("more"), name="more")
        assert [info.name for info in default_manager().plugin_infos()] == ["leaf", "more"]

    assert inside == ["placeholder", "call_module", "output"]
    assert without == opcodes() == ["placeholder", "call_function", "call_function", "output"]
    assert default_manager() is outside


def test_what_a_loaded_plugin_says_about_effects_counts_until_the_host_ends():
    def act(x):
        return x

    module = ModuleType("fxplug_effect")
    module.fxplug_register_effects = hookimpl(lambda: [EffectRecord(act, OUTSIDE)])
    with isolated_host() as host:
        host.load(module)
        assert effects.target_entry(act) is OUTSIDE

    assert effects.target_entry(act) is None


def test_a_plugin_that_cannot_be_loaded_is_an_error():
    module = ModuleType("fxplug_wrong")
    module.fxplug_is_leaf = hookimpl(lambda module: None)

    with isolated_host() as host, pytest.raises(fxplug.PluginError, match="unknown hook 'fxplug_is_leaf'"):
        host.load(module)


# -- the pytest plugin ------------------------------------------------------------------------------------------

TESTS = """
import os
import sys

import pytest


def test_nothing_of_fxplug_is_loaded_before_a_fixture_is_used():
    assert "torch" not in sys.modules
    assert "fxplug.plugins" not in sys.modules


def test_a_distribution_is_written(fake_distribution, plugin_manager):
    made = fake_distribution("leaf", "import fxplug", version="3.0", requires=["fxplug>=99"])
    assert str(made.folder) in sys.path
    with pytest.warns(UserWarning, match="requires fxplug >=99"):
        (info,) = plugin_manager(made, version="0.1.0").plugin_infos()
    assert (info.name, info.version, info.status) == ("leaf", "3.0", "incompatible")


def test_it_is_gone():
    assert not [entry for entry in sys.path if entry.endswith("site-packages") and "pytest" in entry]
    from fxplug.plugins import discover

    assert "leaf" not in [candidate.name for candidate in discover()]


def test_discovery_is_refused(plugin_manager):
    from fxplug.plugins import discover
    from fxplug.testing import IsolationError

    assert plugin_manager().plugin_infos() == []
    with pytest.raises(IsolationError):
        discover()


def test_a_plugin_is_loaded(load_plugin):
    import types

    from fxplug.plugins import default_manager

    load_plugin(types.ModuleType("anything"), name="mine")
    assert [info.name for info in default_manager().plugin_infos()] == ["mine"]
"""


def test_the_fixtures_are_there_when_the_plugin_is_named_and_only_then(tmp_path):
    (tmp_path / "test_fixtures.py").write_text(TESTS)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    assert "5 passed" in run("-p", "fxplug.testing.pytest_plugin")
    assert "fixture 'plugin_manager' not found" in run("-k", "refused")

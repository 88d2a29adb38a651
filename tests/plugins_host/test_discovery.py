"""Which plugins are found, and that finding imports nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fxplug
from fxplug.plugins import PluginCandidate, discover

# Where the fxplug under test is: a checkout or an installation.
CORE = Path(fxplug.__file__).resolve().parents[1]


def test_plugins_are_found_by_metadata_alone_and_sorted_by_name(site):
    site.install("zeta", "raise RuntimeError('imported')")
    site.install("alpha", "raise RuntimeError('imported')", version="2.5", requires=["fxplug>=0.1", "numpy"])

    alpha, zeta = site.candidates()

    assert (alpha.name, alpha.distribution, alpha.version) == ("alpha", "fxplug-alpha", "2.5")
    assert alpha.requires == ("fxplug>=0.1", "numpy")
    assert zeta.name == "zeta"
    assert not [name for name in sys.modules if name.startswith("fake_plugin_")]


def test_what_lies_in_the_working_directory_is_ignored(site, monkeypatch):
    site.install("local")
    monkeypatch.chdir(site.folder)

    assert discover([str(site.folder)]) == []
    assert discover([""]) == []
    assert discover(["."]) == []


def test_what_is_also_installed_elsewhere_is_found_from_the_working_directory(site, tmp_path, monkeypatch):
    site.install("local")
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    assert [candidate.name for candidate in discover(["", str(project), str(site.folder)])] == ["local"]


def test_the_folder_of_installed_packages_may_be_the_working_directory(site, monkeypatch):
    site.install("local")
    monkeypatch.setattr("site.getsitepackages", lambda: [str(site.folder)])
    monkeypatch.chdir(site.folder)

    assert [candidate.name for candidate in discover([str(site.folder)])] == ["local"]


def test_a_distribution_hides_a_later_one_of_the_same_name(site, tmp_path):
    site.install("twice", version="2.0")
    other = type(site)(tmp_path / "other")
    other.install("twice", version="1.0")

    (found,) = discover([str(site.folder), str(other.folder)])

    assert found.version == "2.0"


def test_a_damaged_distribution_does_not_hide_the_others(site):
    site.install("broken")
    site.install("good")
    (site.folder / "fxplug_broken-1.0.dist-info" / "entry_points.txt").write_text("[fxplug]\nbroken\n")

    with pytest.warns(UserWarning, match=r"Plugin 'broken' \(fxplug-broken .* cannot be read"):
        manager = site.manager()

    assert [(info.name, info.status) for info in manager.plugin_infos()] == [
        ("broken", "failed"),
        ("good", "active"),
    ]


@pytest.mark.parametrize("name", ["tensor-rt", "fxplug-tensor-rt", "FXplug_Tensor.RT", "tensor_rt"])
def test_a_plugin_is_called_by_its_own_name_and_by_that_of_its_distribution(name):
    candidate = PluginCandidate("tensor-rt", "fxplug_tensor_rt", "1", "module", object)

    assert candidate.is_called(name)
    assert not candidate.is_called("tensor")


PROGRAM = """
import sys
import fxplug, fxplug.plugins, fxplug.plugins.default
assert "pydantic" not in sys.modules and "click" not in sys.modules and "rich" not in sys.modules
assert not [name for name in sys.modules if name.startswith("fake_plugin_")]
assert fxplug.plugins.default.__dict__["_default"].manager is None
fxplug.plugins.default_manager()
assert "pydantic" not in sys.modules, "there is no configuration to be read"
assert [name for name in sys.modules if name.startswith("fake_plugin_")]
"""


def test_importing_the_host_imports_no_plugin_and_no_pydantic(site, tmp_path):
    site.install("lazy")
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CORE), str(site.folder)]),
        "FXPLUG_CONFIG": "",
    }

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr

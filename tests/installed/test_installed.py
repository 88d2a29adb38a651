"""What pip has put in place. Run by tox, which says which plugins it has installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys

import pytest

_EXPECTED = os.environ.get("FXPLUG_EXPECT_PLUGINS")

pytestmark = pytest.mark.skipif(
    _EXPECTED is None, reason="FXPLUG_EXPECT_PLUGINS is not set: run by tox, which installs the distributions"
)


def expected_plugins() -> set[str]:
    return set(filter(None, (_EXPECTED or "").split(",")))


def test_the_installed_core_is_tested_and_not_the_checkout():
    fxplug = importlib.import_module("fxplug")

    assert fxplug.__file__ is not None
    assert "site-packages" in fxplug.__file__


def test_exactly_the_expected_plugins_are_installed():
    entry_points = importlib.metadata.entry_points(group="fxplug")

    assert {point.name for point in entry_points} == expected_plugins()


def test_every_plugin_is_imported_from_its_own_distribution():
    for point in importlib.metadata.entry_points(group="fxplug"):
        module = point.load()

        assert point.value == f"fxplug_{point.name}.plugin"
        assert "site-packages" in module.__file__
        assert point.dist is not None
        assert point.dist.name == f"fxplug-{point.name}"


def test_importing_fxplug_imports_no_plugin_and_nothing_that_only_the_command_line_needs(tmp_path):
    program = "import sys, fxplug; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = set(run_python("-c", program, cwd=tmp_path).split())

    assert "fxplug" in loaded
    assert not loaded & {"click", "pydantic", "rich"}
    assert not {name for name in loaded if name.startswith("fxplug_")}


def test_the_command_prints_the_installed_version(tmp_path):
    assert importlib.metadata.version("fxplug") in run_python("-m", "fxplug", "--version", cwd=tmp_path)


def run_python(*arguments: str, cwd: os.PathLike[str]) -> str:
    completed = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout

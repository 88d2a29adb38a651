"""All plugins of this project in one environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fxplug.testing import check_plugin

PLUGINS = ["openvino", "quant", "tensorrt", "viz"]


def test_every_plugin_is_listed_as_active(tmp_path):
    listing = subprocess.run(
        [sys.executable, "-m", "fxplug", "plugins", "list"],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert listing.returncode == 0, listing.stderr
    active = [line for line in listing.stdout.splitlines() if "active" in line]
    assert [name for name in PLUGINS if not any(name in line for line in active)] == [], listing.stdout


@pytest.mark.parametrize("name", PLUGINS)
def test_every_plugin_passes_the_checks_as_it_is_installed(name):
    report = check_plugin(name)

    report.raise_failures()
    outcomes = {finding.check: finding.outcome for finding in report.findings}
    # These need the metadata and the file of an installed distribution.
    assert {outcomes["range"], outcomes["import-effects"], outcomes["import-light"]} == {"passed"}

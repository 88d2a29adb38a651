"""What needs a plugin, where that plugin is not installed: files say what to install, exported programs just run."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "fxplug-quant"

WRITE = """
import sys, torch, fxplug, fxplug_quant
from torch import nn
folder = sys.argv[1]
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 8)).eval()
inputs = torch.randn(2, 3, 8, 8)
with torch.no_grad():
    static = fxplug_quant.convert(fxplug_quant.prepare(model, None, inputs).calibrate([inputs]))
    dynamic = fxplug_quant.convert(fxplug_quant.prepare(model, {"mode": "dynamic-int8"}, inputs))
    for name, module in (("static", static), ("dynamic", dynamic)):
        fxplug.save(module, f"{folder}/{name}.fxplug")
        fxplug.export_python(module, f"{folder}/{name}")
        torch.save((inputs, module(inputs)), f"{folder}/{name}.pt")
"""

READ = """
import sys, torch, fxplug
for name in ("static", "dynamic"):
    try:
        fxplug.load(f"{sys.argv[1]}/{name}.fxplug")
    except fxplug.errors.StorageError as error:
        print((error.code, str(error)))
"""

RUN = """
import importlib, importlib.util, sys
sys.path.insert(0, sys.argv[1])
sys.modules["fxplug"] = None
import torch
assert importlib.util.find_spec("fxplug_quant") is None
for name in ("static", "dynamic"):
    inputs, expected = torch.load(f"{sys.argv[1]}/{name}.pt")
    with torch.no_grad():
        print(torch.equal(importlib.import_module(name).load()(inputs), expected))
"""


@pytest.fixture(scope="module")
def written(full_environment, tmp_path_factory) -> Path:
    """A folder with files and packages that were made where the plugin is."""
    folder = tmp_path_factory.mktemp("quantized")
    full_environment.python("-W", "ignore", "-c", WRITE, str(folder))
    return folder


@pytest.fixture(scope="module")
def without_quant(full_environment, files, written) -> Iterator[object]:
    """The environment while the plugin is not installed in it."""
    (wheel,) = files.glob(f"{NAME.replace('-', '_')}-*.whl")
    full_environment.python("-m", "pip", "uninstall", "--yes", NAME)
    try:
        yield full_environment
    finally:
        full_environment.install("--no-index", str(wheel))


def test_the_error_names_the_distribution_and_the_version_to_install(without_quant, written, files):
    (wheel,) = files.glob(f"{NAME.replace('-', '_')}-*.whl")
    version = wheel.name.split("-")[1]
    found = without_quant.python("-W", "ignore", "-c", READ, str(written)).splitlines()

    assert len(found) == 2
    for line in found:
        code, message = ast.literal_eval(line)
        assert code == "FXP-S006"
        assert f"was brought by the plugin 'quant' of {NAME} {version}, which takes no part here." in message
        assert f"Install it (pip install {NAME}=={version})" in message


def test_exported_programs_run_without_plugin_and_core(without_quant, written):
    assert without_quant.python("-W", "ignore", "-c", RUN, str(written)).split() == ["True", "True"]

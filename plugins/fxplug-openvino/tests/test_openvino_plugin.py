"""What the plugin tells fxplug, and how it behaves with and without OpenVINO."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
import fxplug_openvino
from fxplug.errors import BackendError, ConfigError, LoweringError
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_openvino import OpenVINOBackend, OpenVINOOptions, plugin

MISSING = (
    "Cannot build with OpenVINO: its runtime is not installed. Install it with: "
    'pip install "fxplug-openvino[engine]"'
)


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "openvino")], environ={})


def compile_something() -> nn.Module:
    module = fxplug.symbolic_trace(nn.Linear(4, 2).eval())
    return OpenVINOBackend().compile(module, (torch.randn(1, 4),), {})


# -- what it offers ---------------------------------------------------------------------------------------------


def test_it_offers_one_backend():
    (record,) = plugin.fxplug_register_backends()

    assert record.name == "openvino"
    assert record.options is OpenVINOOptions
    assert record.requires == ("openvino",)
    backend = record.factory(device="GPU", precision="bf16")
    assert isinstance(backend, OpenVINOBackend)
    assert backend.options == OpenVINOOptions("GPU", "bf16")


def test_the_host_takes_the_plugin(manager):
    (info,) = manager.plugin_infos()

    assert info.status == "active"
    assert info.hooks == ("fxplug_register_backends",)
    assert info.backends == ("openvino:openvino",)
    assert isinstance(manager.find_backend("openvino").create(), OpenVINOBackend)


def test_the_host_refuses_an_unknown_precision(manager):
    with pytest.raises(ConfigError) as caught:
        manager.backend_options("openvino", {"precision": "fp8"})

    assert "'precision' is 'fp8'" in str(caught.value)
    assert "'bf16'" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"device": ""},
            "Cannot use device='' for OpenVINO: it names no device. Give one such as 'CPU' or 'GPU.0'. [FXP-F000]",
        ),
        (
            {"precision": "fp8"},
            (
                "Cannot use precision='fp8' for OpenVINO: it is no precision hint. Use one of 'default', 'f32', "
                "'bf16', 'f16'. [FXP-F000]"
            ),
        ),
    ],
    ids=["device", "precision"],
)
def test_a_value_that_is_not_allowed_is_refused(options, message):
    with pytest.raises(ConfigError) as caught:
        OpenVINOBackend(**options)

    assert str(caught.value) == message


# -- with and without the engine --------------------------------------------------------------------------------


def test_without_openvino_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)

    with pytest.raises(BackendError) as caught:
        compile_something()

    assert caught.value.message == MISSING


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"openvino/__init__.py": "raise RuntimeError('imported')"}, "of unknown version"),
        (
            {
                "openvino/__init__.py": "raise RuntimeError('imported')",
                "openvino-2026.4.dist-info/METADATA": "Metadata-Version: 2.1\nName: openvino\nVersion: 2026.4\n",
            },
            "2026.4",
        ),
    ],
    ids=["bare", "installed"],
)
def test_an_engine_is_found_without_being_imported(monkeypatch, tmp_path, files, found):
    from fxplug_openvino._engine import find_engine

    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.delitem(sys.modules, "openvino", raising=False)
    elsewhere = [entry for entry in sys.path if not any(Path(entry).glob("openvino*"))]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *elsewhere])
    importlib.invalidate_caches()

    assert find_engine() == found
    assert "openvino" not in sys.modules


def test_optimize_reports_coverage_and_stays_in_pytorch(manager, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    inputs = torch.randn(2, 4)

    result = fxplug.optimize(model, inputs, passes=[], backend="openvino", manager=manager, measure=False)

    assert result.lowering is not None
    assert result.lowering.coverage == 1.0
    assert any(MISSING in warning for warning in result.warnings)
    assert torch.equal(result.module(inputs), model(inputs))


def test_in_strict_mode_staying_in_pytorch_is_an_error(manager, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)

    with pytest.raises(LoweringError, match="its runtime is not installed"):
        fxplug.optimize(
            nn.Linear(4, 4).eval(),
            torch.randn(2, 4),
            passes=[],
            backend="openvino",
            manager=manager,
            measure=False,
            strict=True,
        )


def test_the_plugin_is_imported_and_asked_where_openvino_cannot_be():
    program = """
import sys
sys.modules["openvino"] = None
from fxplug_openvino import plugin
(record,) = plugin.fxplug_register_backends()
record.factory()
assert sys.modules["openvino"] is None
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )

    assert completed.returncode == 0, completed.stderr


def test_one_module_alone_may_import_openvino_and_none_does_at_import():
    assert fxplug_openvino.__file__ is not None
    importers = {
        path.name
        for path in Path(fxplug_openvino.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported_names(node)
        if name.partition(".")[0] == "openvino"
    }

    assert importers <= {"_engine.py"}


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []

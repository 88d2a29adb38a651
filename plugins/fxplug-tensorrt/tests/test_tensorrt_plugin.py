"""What the plugin tells fxplug, and how it behaves with and without TensorRT."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import fxplug
import fxplug_tensorrt
from fxplug.errors import BackendError, ConfigError, LoweringError
from fxplug.plugins import PluginCandidate, PluginManager
from fxplug_tensorrt import TensorRTBackend, TensorRTOptions, plugin
from fxplug_tensorrt._trt import Engine, find_engine

MISSING = (
    "Cannot build with TensorRT: neither TensorRT for RTX nor TensorRT is installed. Install the former with: "
    'pip install "fxplug-tensorrt[rtx]"'
)


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager(candidates=[PluginCandidate.of_module(plugin, "tensorrt")], environ={})


@pytest.fixture
def no_engine(monkeypatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)


def broken_engine(monkeypatch, tmp_path) -> None:
    """Put an engine in place that cannot be imported."""
    (tmp_path / "tensorrt_rtx").mkdir()
    (tmp_path / "tensorrt_rtx" / "__init__.py").write_text("raise OSError('libnvinfer.so: no such file')")
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


def compile_something() -> nn.Module:
    module = fxplug.symbolic_trace(nn.Linear(4, 2).eval())
    return TensorRTBackend().compile(module, (torch.randn(1, 4),), {})


# -- what it offers ---------------------------------------------------------------------------------------------


def test_it_offers_one_backend():
    (record,) = plugin.fxplug_register_backends()

    assert record.name == "tensorrt"
    assert record.options is TensorRTOptions
    assert record.requires == ("tensorrt_rtx",)
    backend = record.factory(precision="bf16", min_block_size=3)
    assert isinstance(backend, TensorRTBackend)
    assert backend.options == TensorRTOptions("bf16", 3)


def test_the_host_takes_the_plugin(manager):
    (info,) = manager.plugin_infos()

    assert info.status == "active"
    assert info.hooks == ("fxplug_register_backends", "fxplug_register_report_sections")
    assert info.backends == ("tensorrt:tensorrt",)
    assert isinstance(manager.find_backend("tensorrt").create(), TensorRTBackend)


def test_the_host_refuses_an_unknown_precision(manager):
    with pytest.raises(ConfigError) as caught:
        manager.backend_options("tensorrt", {"precision": "fp8"})

    assert "'precision' is 'fp8'" in str(caught.value)
    assert "'bf16'" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"precision": "fp8"},
            (
                "Cannot use precision='fp8' for TensorRT: it is no precision. Use one of 'fp32', 'tf32', "
                "'fp16', 'bf16'. "
                "[FXP-F000]"
            ),
        ),
        (
            {"min_block_size": 0},
            (
                "Cannot use min_block_size=0 for TensorRT: a group has at least 1 call. Give 1 to take every group, or "
                "a larger number to leave small ones in PyTorch. [FXP-F000]"
            ),
        ),
    ],
    ids=["precision", "min_block_size"],
)
def test_a_value_that_is_not_allowed_is_refused(options, message):
    with pytest.raises(ConfigError) as caught:
        TensorRTBackend(**options)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"batch_sizes": (4, 2, 8)}, "batch_sizes=(4, 2, 8)"),
        ({"batch_sizes": (4,)}, "give the smallest, the usual and the largest size"),
        ({"workspace_mib": -1}, "workspace_mib=-1"),
        ({"optimization_level": 6}, "give 0 to 5, or -1 to leave it open"),
    ],
)
def test_a_number_that_is_not_allowed_is_refused(options, part):
    with pytest.raises(ConfigError, match="for TensorRT") as caught:
        TensorRTOptions(**options)

    assert part in str(caught.value)


def test_lists_of_a_configuration_file_become_options(manager):
    found = manager.backend_options("tensorrt", {"targets": ["SM86"], "batch_sizes": [1, 2, 4]})

    assert TensorRTOptions(**found) == TensorRTOptions(targets=("SM86",), batch_sizes=(1, 2, 4))


# -- with and without the engine --------------------------------------------------------------------------------


def test_without_tensorrt_the_error_says_what_to_install(no_engine):
    with pytest.raises(BackendError) as caught:
        compile_something()

    assert caught.value.message == MISSING


def test_an_engine_that_cannot_be_imported_is_named(monkeypatch, tmp_path):
    broken_engine(monkeypatch, tmp_path)

    with pytest.raises(BackendError) as caught:
        compile_something()

    assert (
        "is installed, but cannot be imported (OSError: libnvinfer.so: no such file)" in caught.value.message
    )


@pytest.mark.parametrize(
    ("modules", "distribution", "found"),
    [
        ([], None, None),
        (["tensorrt"], None, Engine("tensorrt", "TensorRT of unknown version")),
        (["tensorrt"], "tensorrt", Engine("tensorrt", "TensorRT 11.0")),
        (["tensorrt", "tensorrt_rtx"], "tensorrt_rtx", Engine("tensorrt_rtx", "TensorRT for RTX 11.0")),
    ],
    ids=["none", "bare", "datacentre", "both"],
)
def test_an_engine_is_found_without_being_imported(monkeypatch, tmp_path, modules, distribution, found):
    for name in ("tensorrt", "tensorrt_rtx"):
        if name in modules:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported')")
            monkeypatch.delitem(sys.modules, name, raising=False)
        else:
            monkeypatch.setitem(sys.modules, name, None)
    if distribution is not None:
        metadata = tmp_path / f"{distribution}-11.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 11.0\n")
    elsewhere = [entry for entry in sys.path if not any(Path(entry).glob("tensorrt*"))]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *elsewhere])
    importlib.invalidate_caches()

    assert find_engine() == found
    assert not [name for name in modules if name in sys.modules]


def test_optimize_reports_coverage_and_stays_in_pytorch(manager, no_engine):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    inputs = torch.randn(2, 4)

    result = fxplug.optimize(model, inputs, passes=[], backend="tensorrt", manager=manager, measure=False)

    assert result.lowering is not None
    assert result.lowering.coverage == 1.0
    assert any(MISSING in warning for warning in result.warnings)
    assert torch.equal(result.module(inputs), model(inputs))


def test_in_strict_mode_staying_in_pytorch_is_an_error(manager, no_engine):

    with pytest.raises(LoweringError, match="neither TensorRT for RTX nor TensorRT is installed"):
        fxplug.optimize(
            nn.Linear(4, 4).eval(),
            torch.randn(2, 4),
            passes=[],
            backend="tensorrt",
            manager=manager,
            measure=False,
            strict=True,
        )


HAS_ENGINE = importlib.util.find_spec("tensorrt_rtx") is not None


def test_the_doctor_is_told_what_to_install(no_engine):
    from fxplug_tensorrt._trt import why_not_here

    (record,) = plugin.fxplug_register_backends()

    assert record.problem is why_not_here
    assert why_not_here() == (
        'neither TensorRT for RTX nor TensorRT is installed. Run: pip install "fxplug-tensorrt[rtx]". What it would '
        "run of a model is said without it, by a table of calls."
    )


@pytest.mark.skipif(not HAS_ENGINE, reason="TensorRT for RTX is not installed")
@pytest.mark.parametrize(
    ("reason", "explanation"),
    [
        (
            "cudaError 35: CUDA driver version is insufficient for CUDA runtime version",
            "this machine has no NVIDIA driver, or one that is too old for this TensorRT",
        ),
        (
            "cudaError 100: no CUDA-capable device is detected",
            "this machine has an NVIDIA driver, and no GPU that it shows to this process",
        ),
        (
            "Target GPU SM 70 is not supported by this TensorRT release",
            "TensorRT runs no engines on the GPU of this machine",
        ),
    ],
    ids=["driver", "gpu", "other gpu"],
)
def test_the_doctor_is_told_what_is_missing(monkeypatch, reason, explanation):
    from fxplug_tensorrt import _trt

    monkeypatch.setattr(_trt, "why_engines_do_not_run", lambda: reason)

    told = _trt.why_not_here()

    assert told.startswith(f"{explanation} ({reason}). ")
    assert 'name their GPUs with targets, such as ["SM86"], in [tool.fxplug.backends.tensorrt].' in told


def test_the_doctor_is_told_nothing_where_engines_run(monkeypatch):
    from fxplug_tensorrt import _trt

    monkeypatch.setattr(_trt, "find_engine", lambda: Engine("tensorrt_rtx", "TensorRT for RTX 9"))
    monkeypatch.setattr(_trt, "why_engines_do_not_run", lambda: "")

    assert _trt.why_not_here() == ""


def test_the_doctor_is_told_why_tensorrt_cannot_be_imported(monkeypatch, tmp_path):
    from fxplug_tensorrt import _trt

    broken_engine(monkeypatch, tmp_path)
    _trt.why_engines_do_not_run.cache_clear()

    assert (
        "is installed, but cannot be imported (OSError: libnvinfer.so: no such file)" in _trt.why_not_here()
    )


@pytest.mark.skipif(
    os.environ.get("FXPLUG_EXPECT_PLUGINS") != "tensorrt", reason="this environment may do without TensorRT"
)
def test_nothing_is_skipped_for_want_of_an_engine_in_the_environment_of_this_plugin():
    assert [name for name in ("tensorrt_rtx", "torchvision") if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize("command", [("plan",), ("optimize", "--no-measure")], ids=["plan", "optimize"])
def test_the_command_line_lists_and_explains_without_tensorrt(tmp_path, command):
    (tmp_path / "model.py").write_text("from torch import nn\nbuild = lambda: nn.Linear(4, 2).eval()\n")
    # As if neither edition were there, whatever is installed.
    (tmp_path / "without.py").write_text(
        "import runpy, sys\n"
        "sys.modules['tensorrt'] = sys.modules['tensorrt_rtx'] = None\n"
        "runpy.run_module('fxplug', run_name='__main__')\n"
    )
    arguments = [*command, "model.py:build", "--example", "1x4", "--backend", "tensorrt"]
    completed = subprocess.run(
        [sys.executable, "without.py", *arguments],
        cwd=tmp_path, env={**os.environ, "COLUMNS": "400", "FXPLUG_LOAD_PLUGINS": "tensorrt"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert completed.returncode == 0, completed.stdout + completed.stderr
    told = " ".join((completed.stdout + completed.stderr).split())
    assert ("1 of 1 calls are supported by tensorrt" if command == ("plan",) else MISSING) in told


def test_the_plugin_is_imported_and_asked_where_tensorrt_cannot_be():
    program = """
import sys
sys.modules["tensorrt"] = sys.modules["tensorrt_rtx"] = None
from fxplug_tensorrt import plugin
(record,) = plugin.fxplug_register_backends()
record.factory()
assert sys.modules["tensorrt"] is sys.modules["tensorrt_rtx"] is None
"""
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )

    assert completed.returncode == 0, completed.stderr


def test_one_module_alone_may_import_tensorrt_and_none_does_at_import():
    assert fxplug_tensorrt.__file__ is not None
    importers = {
        path.name
        for path in Path(fxplug_tensorrt.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported_names(node)
        if name.partition(".")[0] in {"tensorrt", "tensorrt_rtx"}
    }

    assert importers <= {"_trt.py"}


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []

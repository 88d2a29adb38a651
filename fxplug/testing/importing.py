"""Checking what importing a plugin does, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fxplug.semantics.internals import COMPILER

if TYPE_CHECKING:
    from fxplug.testing.report import Findings
    from fxplug.testing.subject import Subject

__all__ = ["check_import"]

_PROBE = Path(__file__).with_name("probe.py")
_SECONDS = 300

_HEAVY = frozenset(
    {
        "IPython",
        "coremltools",
        "cv2",
        "graphviz",
        "h5py",
        "ipywidgets",
        "jax",
        "keras",
        "matplotlib",
        "modelopt",
        "nncf",
        "notebook",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "openvino",
        "pandas",
        "plotly",
        "pycuda",
        "scipy",
        "seaborn",
        "sklearn",
        "tensorflow",
        "tensorrt",
        "tensorrt_rtx",
        "timm",
        COMPILER,
        "torch.onnx",
        "torch_tensorrt",
        "torchao",
        "torchaudio",
        "torchvision",
        "transformers",
        "triton",
        "tvm",
    }
)
"""Libraries that take long to import, and parts of torch that torch itself does not load."""


@dataclass(frozen=True)
class _Seen:
    """What the probe wrote down."""

    error: str = ""
    changed: list[str] = field(default_factory=list[str])
    output: str = ""
    effects: list[str] = field(default_factory=list[str])
    imported: list[str] = field(default_factory=list[str])
    backends: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def check_import(subject: Subject, findings: Findings) -> None:
    """Check that importing the entry module does nothing else, and loads nothing heavy."""
    target = subject.candidate.target.partition(":")[0]
    title = f"module {target!r}"
    if not _can_be_found(target):
        reason = "it lies in no file on the path, so that no other process could import it"
        for check in ("import-effects", "import-light"):
            findings.skipped(check, title, reason)
        return
    engines = {name: _modules_of(name) for offer in subject.backends() for name in offer.record.requires}
    seen = _probe(target, engines)
    if seen.error:
        findings.failed(
            "import-effects",
            title,
            f"importing it in a process of its own fails: {seen.error}",
            "Import in the entry module what it needs itself, and rely on nothing that others have imported.",
        )
        return
    findings.verdict(
        "import-effects",
        title,
        _effects_of(seen),
        "Move that into a hook or a factory; only define things here.",
    )
    heavy = {*_HEAVY, *(name for names in engines.values() for name in names)}
    loaded = sorted({name for name in heavy for other in seen.imported if _is_within(other, name)})
    findings.verdict(
        "import-light",
        title,
        [f"importing it imports {name}" for name in loaded],
        "Import it in the factory that needs it.",
    )
    for entry in seen.backends:
        findings.verdict(
            "engine-absent",
            f"backend '{subject.candidate.name}:{entry['name']}'",
            [f"without its engine it cannot be made: {entry['error']}"] if entry["error"] else [],
            "Import the engine in compile(), and raise a BackendError that says what to install.",
            f"made without {', '.join(entry['requires'])}",
        )


def _effects_of(seen: _Seen) -> list[str]:
    problems = [f"it changes {name}" for name in seen.changed]
    problems += [f"it {effect}" for effect in seen.effects]
    if seen.output:
        problems.append(f"it prints {_shortened(seen.output.strip())!r}")
    return problems


def _shortened(text: str) -> str:
    """Return the beginning and the end of a long text."""
    return text if len(text) <= 400 else f"{text[:200]} ... {text[-200:]}"


def _modules_of(distribution: str) -> list[str]:
    """Return the names of the top modules of a distribution; where it is not installed, the likely one."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    found = {
        file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py" and file.parts[0] != ".."
    }
    return sorted(found) or [distribution.replace("-", "_")]


def _is_within(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _can_be_found(target: str) -> bool:
    try:
        found = importlib.util.find_spec(target)
    except (ImportError, ValueError):  # ValueError: the module was made by hand and has no spec.
        return False
    return found is not None and found.origin is not None


def _probe(target: str, engines: dict[str, list[str]]) -> _Seen:
    with tempfile.TemporaryDirectory(prefix="fxplug-check-", ignore_cleanup_errors=True) as folder:
        task, result = Path(folder, "task.json"), Path(folder, "result.json")
        path = [entry for entry in sys.path if entry]
        task.write_text(
            json.dumps({"path": path, "target": target, "engines": engines, "result": str(result)}),
            encoding="utf-8",
        )
        # -B: the byte code of a module that is imported is a file, too, but not the plugin's doing.
        command = [sys.executable, "-B", "-W", "default", str(_PROBE), str(task)]
        try:
            completed = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _Seen(error=f"it does not end within {_SECONDS} s")
        if not result.exists():
            return _Seen(
                error=f"the process ends with {completed.returncode}: {completed.stderr.strip()[-500:]}"
            )
        return _Seen(**json.loads(result.read_text(encoding="utf-8")))

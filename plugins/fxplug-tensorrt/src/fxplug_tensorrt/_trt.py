"""NVIDIA's TensorRT: the only module that imports it, and not before something is to be built or run."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from typing import Any, NamedTuple

from fxplug.errors import BackendError

__all__ = [
    "INSTALL",
    "Engine",
    "find_engine",
    "load_engine",
    "make_log",
    "why_engines_do_not_run",
    "why_not_here",
]

INSTALL = 'pip install "fxplug-tensorrt[rtx]"'
# Module and name for people. The one that this plugin's extra installs comes first.
_EDITIONS = (("tensorrt_rtx", "TensorRT for RTX"), ("tensorrt", "TensorRT"))


class Engine(NamedTuple):
    """An installed edition of TensorRT."""

    module: str
    title: str
    """Name and version for people."""


def find_engine() -> Engine | None:
    """Return the installed edition, None when there is none; nothing is imported."""
    for module, title in _EDITIONS:
        if importlib.util.find_spec(module) is None:
            continue
        try:
            version = importlib.metadata.version(module)
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        return Engine(module, f"{title} {version}")
    return None


def load_engine() -> Any:
    """Return the module of the installed edition.

    Raises:
        BackendError: None is installed, or it cannot be imported.
    """
    engine = find_engine()
    if engine is None:
        raise BackendError(
            "Cannot build with TensorRT: neither TensorRT for RTX nor TensorRT is installed. Install the former "
            f"with: {INSTALL}"
        )
    try:
        return importlib.import_module(engine.module)
    except Exception as error:  # A library of the wheel may be missing, or be for another machine.
        raise BackendError(
            f"Cannot build with TensorRT: {engine.title} is installed, but cannot be imported "
            f"({type(error).__name__}: {error}). Install it anew with: {INSTALL}"
        ) from error


def make_log() -> Any:
    """Return a logger of TensorRT that keeps complaints, as ``complaints``, and shows nothing."""
    return _log_class()()


@functools.cache
def _log_class() -> Any:
    trt = load_engine()
    worst = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.complaints: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            if severity in worst:
                self.complaints.append(text)

    return Log


@functools.cache
def why_engines_do_not_run() -> str:
    """Return why this machine runs no engines, as TensorRT says of the smallest one; empty when it does.

    PyTorch is not asked: it may see a GPU that TensorRT does not run on, or see none where TensorRT does.

    Raises:
        BackendError: TensorRT is not installed.
    """
    trt, log = load_engine(), make_log()
    try:
        plan = _smallest_engine(trt, log)
        runtime = trt.Runtime(log)
        log.complaints.clear()
        engine = None if runtime is None else runtime.deserialize_cuda_engine(plan)
    except Exception as error:  # The bindings raise TypeError where the library returns nothing.
        return _last(log) or f"{type(error).__name__}: {str(error).strip()}"
    return "" if engine is not None else _last(log) or "it takes no engine"


def why_not_here() -> str:
    """Return why this machine runs no engines, and what to do about it; empty when it does."""
    if find_engine() is None:
        return (
            f"neither TensorRT for RTX nor TensorRT is installed. Run: {INSTALL}. What it would run of a model "
            "is said without it, by a table of calls."
        )
    try:
        reason = why_engines_do_not_run()
    except BackendError as error:
        return error.message
    if not reason:
        return ""
    explanation = next((text for sign, text in _SIGNS if sign in reason), _OTHERWISE)
    return (
        f"{explanation} ({reason}). Engines for other machines are built here all the same: name their GPUs with "
        'targets, such as ["SM86"], in [tool.fxplug.backends.tensorrt].'
    )


# What the CUDA runtime says -> what it means. Without a driver it says the former, too.
_SIGNS = (
    (
        "driver version is insufficient",
        "this machine has no NVIDIA driver, or one that is too old for this TensorRT",
    ),
    ("no CUDA-capable device", "this machine has an NVIDIA driver, and no GPU that it shows to this process"),
)
_OTHERWISE = "TensorRT runs no engines on the GPU of this machine"


def _smallest_engine(trt: Any, log: Any) -> Any:
    builder = trt.Builder(log)
    strongly = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    net = builder.create_network(0 if strongly is None else 1 << int(strongly))
    given = net.add_input("x", trt.DataType.FLOAT, (1,))
    net.mark_output(net.add_unary(given, trt.UnaryOperation.NEG).get_output(0))
    return builder.build_serialized_network(net, builder.create_builder_config())


def _last(log: Any) -> str:
    return " ".join(log.complaints[-1].split()) if log.complaints else ""

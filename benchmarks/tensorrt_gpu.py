r"""Models on a GPU: eager, eager in fp16, ``torch.compile``, and fxplug-tensorrt; medians with their spread, as JSON.

Run it on a machine with a GPU on which TensorRT runs engines::

    python -m benchmarks.tensorrt_gpu results.json

It needs fxplug, fxplug-tensorrt and an edition of TensorRT, and no network. Where they are not installed, as on a
machine that has PyTorch alone, a folder with wheels brings them; they go to a folder that is removed afterwards::

    python -m benchmarks.tensorrt_gpu results.json --wheels wheels

A wheel that is too large to travel in one piece may be cut: ``NAME.whl.0``, ``NAME.whl.1`` and so on are put together.
For Python 3.12, such a folder is filled on a machine with a network by::

    python -m pip wheel --wheel-dir wheels --no-deps tensorrt_rtx tensorrt_rtx_cu13
    python -m pip download --dest wheels --no-deps --only-binary :all: --python-version 3.12 \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
        tensorrt_rtx_cu13_libs tensorrt_rtx_cu13_bindings pluggy pydantic pydantic-core annotated-types \
        typing-inspection typing-extensions click rich markdown-it-py mdurl pygments packaging importlib-metadata zipp

Where TensorRT runs no engines, it measures nothing, and says why, in the file too. It was written where there is no
GPU, and has not measured anything yet.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fxplug_tensorrt.options import Precision

__all__ = ["join_wheels", "main"]

_ROUNDS, _WARM_UP = 50, 10
_CHECKOUT = Path(__file__).resolve().parents[1]
_PLUGIN = _CHECKOUT / "plugins" / "fxplug-tensorrt" / "src"
# Precision of the engine, and whether its launches are recorded.
_ENGINES: tuple[tuple[Precision, bool], ...] = (
    ("fp32", False),
    ("tf32", False),
    ("fp16", False),
    ("fp16", True),
)


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write the results to the file that the command line names, or print them.

    Args:
        arguments: Instead of those of the command line.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tensorrt_gpu", description="Models on a GPU.")
    parser.add_argument("results", nargs="?", type=Path, help="the file for the results; printed without it")
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of what is not installed")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if options.wheels is not None:
            _install(options.wheels, Path(folder))
        results: dict[str, Any] = {"machine": _machine(), "versions": {"torch": torch.__version__}}
        reason = _why_not(results)
        if not reason:
            results["models"] = {}
            with torch.no_grad():
                for name, model, inputs in _models():
                    results["models"][name] = _measured(model, inputs)
        results["not_measured"] = reason
    text = json.dumps(results, indent=2)
    if options.results is not None:
        options.results.write_text(text + "\n")
    else:
        print(text)
    if reason:
        sys.exit(f"Nothing is measured: {reason}")


def join_wheels(folder: Path, target: Path) -> list[Path]:
    """Return the wheels of a folder; those that were cut are put together in another.

    Args:
        folder: Holds wheels, and pieces of wheels.
        target: Where whole ones are written.
    """
    pieces: dict[str, list[Path]] = {}
    for path in folder.glob("*.whl.*"):
        pieces.setdefault(path.stem, []).append(path)
    for name, parts in pieces.items():
        ordered = sorted(parts, key=lambda path: int(path.suffix[1:]))
        (target / name).write_bytes(b"".join(path.read_bytes() for path in ordered))
    return sorted([*folder.glob("*.whl"), *(target / name for name in pieces)])


def _install(folder: Path, target: Path) -> None:
    wheels = join_wheels(folder, target)
    if not wheels:
        sys.exit(f"Nothing is measured: there are no wheels in {folder}.")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*command, str(target / "site"), *map(str, wheels)], check=True)
    sys.path.append(str(target / "site"))
    importlib.invalidate_caches()


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {
        "processor": platform.processor(),
        "python": platform.python_version(),
        "gpu": "",
    }
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        found |= {"gpu": torch.cuda.get_device_name(), "compute_capability": f"{major}.{minor}"}
        # Eager computes convolutions in TF32 unless it is told not to.
        found |= {"tf32_in_convolutions": torch.backends.cudnn.allow_tf32}
    return found


def _why_not(results: dict[str, Any]) -> str:
    """Return why nothing can be measured, as TensorRT says it; empty where something can."""
    if importlib.util.find_spec("fxplug_tensorrt") is None:
        sys.path.append(str(_PLUGIN))
    try:
        trt = importlib.import_module("fxplug_tensorrt._trt")
    except ImportError as error:
        return f"fxplug-tensorrt cannot be imported ({error}). Install it, or name a folder with wheels: --wheels."
    from fxplug.errors import BackendError  # noqa: PLC0415 - it may have come with the wheels

    engine = trt.find_engine()
    results["versions"]["tensorrt"] = engine.title if engine else ""
    try:
        reason = trt.why_engines_do_not_run()
    except BackendError as error:
        return error.message
    if reason:
        return (
            f"TensorRT runs no engines on this machine: {reason}. On a GPU that TensorRT for RTX does not know, the "
            "datacentre edition may: python -m pip install tensorrt"
        )
    return "" if torch.cuda.is_available() else "PyTorch sees no GPU, though TensorRT does."


def _milliseconds(call: Callable[[], Any]) -> dict[str, float]:
    """Return median and quartiles of the time of a call on the GPU."""
    for _ in range(_WARM_UP):
        call()
    found: list[float] = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    low, middle, high = statistics.quantiles(found, n=4)
    return {"median_ms": middle, "low_ms": low, "high_ms": high}


def _models() -> Iterator[tuple[str, torch.nn.Module, tuple[torch.Tensor, ...]]]:
    from examples import learning_to_paint, resnet50  # noqa: PLC0415 - they take long to make

    (image,) = resnet50.example_inputs()
    network = resnet50.resnet50().eval().cuda()
    for batch in (1, 8, 32, 128):
        images = image[:1].expand(batch, -1, -1, -1).contiguous().cuda()
        yield f"ResNet-50, batch {batch}", network, (images,)
    inputs = tuple(value.cuda() for value in learning_to_paint.example_inputs())
    yield "Learning-to-Paint actor", learning_to_paint.actor().eval().cuda(), inputs


def _measured(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    import fxplug  # noqa: PLC0415 - after the check of the machine
    from fxplug.lower import lower  # noqa: PLC0415 - as above
    from fxplug_tensorrt import TensorRTBackend  # noqa: PLC0415 - as above

    expected = model(*inputs)
    half, half_inputs = copy.deepcopy(model).half(), tuple(value.half() for value in inputs)
    compiled = torch.compile(model)
    found: dict[str, Any] = {
        "eager": _milliseconds(lambda: model(*inputs)),
        "eager, fp16": _milliseconds(lambda: half(*half_inputs)),
        "torch.compile": _milliseconds(lambda: compiled(*inputs)),
    }
    captured = fxplug.symbolic_trace(model)
    for precision, recorded in _ENGINES:
        backend = TensorRTBackend(precision, cuda_graphs=recorded)
        engine = lower(captured, backend, inputs, name="tensorrt", strict=True).module
        entry: dict[str, Any] = _milliseconds(lambda engine=engine: engine(*inputs))
        entry["largest_difference"] = float((engine(*inputs) - expected).abs().max())
        found[f"fxplug-tensorrt, {precision}{', CUDA graph' if recorded else ''}"] = entry
    for entry in found.values():
        entry["times_eager"] = found["eager"]["median_ms"] / entry["median_ms"]
    return found


if __name__ == "__main__":
    main()

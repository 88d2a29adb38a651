"""Models on a GPU: eager, eager in fp16, ``torch.compile``, and fxplug-tensorrt; medians with their spread, as JSON.

Run it on a machine with a GPU on which TensorRT runs engines::

    python -m benchmarks.tensorrt_gpu results.json

It needs fxplug, fxplug-tensorrt and an edition of TensorRT, and no network. It says so, and measures nothing, where
TensorRT runs no engines. It was written where there is no GPU, and has not measured anything yet.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["main"]

_ROUNDS, _WARM_UP = 50, 10


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
        yield f"ResNet-50, batch {batch}", network, (image.expand(batch, -1, -1, -1).contiguous().cuda(),)
    inputs = tuple(value.cuda() for value in learning_to_paint.example_inputs())
    yield "Learning-to-Paint actor", learning_to_paint.actor().eval().cuda(), inputs


def _measured(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    import fxplug  # noqa: PLC0415 - after the check of the machine
    from fxplug.lower import lower  # noqa: PLC0415 - as above
    from fxplug_tensorrt import TensorRTBackend  # noqa: PLC0415 - as above

    expected = model(*inputs)
    found: dict[str, Any] = {"eager": _milliseconds(lambda: model(*inputs))}
    with torch.autocast("cuda", torch.float16):
        found["eager, fp16"] = _milliseconds(lambda: model(*inputs))
    compiled = torch.compile(model)
    found["torch.compile"] = _milliseconds(lambda: compiled(*inputs))
    captured = fxplug.symbolic_trace(model)
    for precision in ("fp32", "fp16"):
        backend = TensorRTBackend(precision)
        engine = lower(captured, backend, inputs, name="tensorrt", strict=True).module
        entry: dict[str, Any] = _milliseconds(lambda engine=engine: engine(*inputs))
        entry["largest_difference"] = float((engine(*inputs) - expected).abs().max())
        found[f"fxplug-tensorrt, {precision}"] = entry
    return found


def main() -> None:
    """Measure, and write the results to the file that the command line names, or print them."""
    from fxplug_tensorrt._trt import find_engine, why_engines_do_not_run  # noqa: PLC0415 - no dependency of benchmarks

    if reason := why_engines_do_not_run():
        sys.exit(f"TensorRT runs no engines on this machine: {reason}")
    engine = find_engine()
    results: dict[str, Any] = {
        "machine": {"gpu": torch.cuda.get_device_name(), "processor": platform.processor()},
        "versions": {"torch": torch.__version__, "tensorrt": engine.title if engine else ""},
        "models": {},
    }
    with torch.inference_mode(mode=False), torch.no_grad():
        for name, model, inputs in _models():
            results["models"][name] = _measured(model, inputs)
    text = json.dumps(results, indent=2)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()

"""How fast a network runs on the CPU, by fxplug and by others: ``python -m benchmarks.inference``.

ResNet-50 and the actor of Learning-to-Paint, with batches of 1 and 8 and with 1 and 2 threads. All ways take turns, so
that whatever else the machine does hits all of them; what counts is the ratio to eager inside each round.

    python -m benchmarks.inference                             # everything, some twenty minutes: most of it compiling
    python -m benchmarks.inference --without compile           # without torch.compile, some minutes
    python -m benchmarks.inference --model resnet50 --batch 1 --threads 2 --rounds 10
    python -m benchmarks.inference --write                     # keep the table in benchmarks/results/
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib
import json
import logging
import os
import statistics
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from benchmarks.report import Bound, WayRow, describe_surroundings, table
from benchmarks.timing import Ratio, interleave, paired_ratio
from benchmarks.zoo import randomise
from examples.learning_to_paint import Actor
from examples.resnet50 import ResNet50

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

__all__ = ["MODELS", "WAYS", "InferenceRow", "as_markdown", "main", "measure"]

_RESULTS = Path(__file__).resolve().parent / "results"
_WARM_RUNS = 3
EAGER, FOLDED, PIPELINE, FROZEN = (
    "eager",
    "fxplug, conv-bn fusion alone",
    "fxplug, pipeline inference",
    "torch.jit, frozen and optimised",
)

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (ResNet50, (3, 224, 224)),
    "actor": (Actor, (9, 128, 128)),
}
"""Name -> what makes the model, and the shape of one image."""


class NotAvailableError(Exception):
    """A way to run a model is not available here; the text says why."""


@dataclass(frozen=True)
class InferenceRow(WayRow):
    """What one way of running one model took; the error is the largest absolute difference from eager."""

    model: str
    batch: int
    threads: int
    way: str
    low: float | None = None
    """Lower quartile."""
    high: float | None = None
    """Upper quartile."""


# -- the ways


def _by_passes(model: nn.Module, x: Tensor, *passes: str) -> Callable[[], Any]:
    ready = fxplug.optimize(model, (x,), passes=passes, measure=False).module
    return lambda: ready(x)


def _by_pipeline(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    ready = fxplug.optimize(model, (x,), pipeline="inference", measure=False).module
    return lambda: ready(x)


def _by_torchscript(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    with warnings.catch_warnings():
        for name in ("trace", "trace_method", "freeze", "optimize_for_inference", "script"):
            warnings.filterwarnings("ignore", rf".*torch\.jit\.{name}.* is (deprecated|not supported)")
        ready = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(model, x)))
    return lambda: ready(x)


def _by_compiler(model: nn.Module, x: Tensor, **options: bool) -> Callable[[], Any]:
    torch.compiler.reset()  # What was compiled for another number of threads would run with that number.
    ready = torch.compile(copy.deepcopy(model), options={**options})
    try:
        with torch.inference_mode():
            ready(x)
    except Exception as error:  # Of the compiler, or of the one that it calls.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise NotAvailableError(f"{type(error).__name__}: {lines[0] if lines else ''}"[:120]) from error
    return lambda: ready(x)


def _by_onnx_runtime(model: nn.Module, x: Tensor, threads: int) -> Callable[[], Any]:
    try:
        runtime: Any = importlib.import_module("onnxruntime")
        importlib.import_module("onnxscript")
    except ImportError as error:
        raise NotAvailableError(f"{error.name} is not installed") from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="onnx.*|torch.onnx.*|copyreg")
        warnings.filterwarnings("ignore", category=FutureWarning, module="onnx.*|torch.onnx.*|copyreg")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
        settings = runtime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        session = runtime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, given)[0]


WAYS: dict[str, tuple[str, Callable[[nn.Module, Tensor, int], Callable[[], Any]]]] = {
    EAGER: ("eager", lambda model, x, _: lambda: model(x)),
    FOLDED: ("fxplug", lambda model, x, _: _by_passes(model, x, "fuse-conv-bn")),
    PIPELINE: ("fxplug", lambda model, x, _: _by_pipeline(model, x)),
    FROZEN: ("jit", lambda model, x, _: _by_torchscript(model, x)),
    "torch.compile": ("compile", lambda model, x, _: _by_compiler(model, x)),
    "torch.compile, frozen": ("compile", lambda model, x, _: _by_compiler(model, x, freezing=True)),
    "ONNX Runtime": ("onnx", _by_onnx_runtime),
}
"""Way to run a model -> its group, and what makes it ready: takes model, input and number of threads."""


# -- measuring


def measure(
    name: str, batch: int, threads: int, rounds: int, left_out: Sequence[str] = ()
) -> list[InferenceRow]:
    """Time one model in every way.

    Args:
        name: Of the model.
        batch: How many images at a time.
        threads: How many threads compute.
        rounds: How often each way runs.
        left_out: Groups of ways that do not run.
    """
    make, shape = MODELS[name]
    model = randomise(make()).requires_grad_(requires_grad=False)
    x = torch.rand((batch, *shape), generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measure(model, x, InferenceRow(name, batch, threads, EAGER), rounds, left_out)
    finally:
        torch.set_num_threads(before)


def _measure(
    model: nn.Module, x: Tensor, row: InferenceRow, rounds: int, left_out: Sequence[str]
) -> list[InferenceRow]:
    ready: dict[str, Callable[[], Any]] = {}
    notes: dict[str, str] = {}
    for way, (group, prepare) in WAYS.items():
        if group in left_out:
            notes[way] = "left out"
            continue
        try:
            ready[way] = prepare(model, x, row.threads)
        except NotAvailableError as error:
            notes[way] = f"not available: {error}"
    with torch.inference_mode():
        expected = model(x)
        errors = {way: _error(run, expected) for way, run in ready.items()}
        samples = interleave(ready, rounds)
    rows: list[InferenceRow] = []
    for way in WAYS:
        own = dataclasses.replace(row, way=way, note=notes.get(way, ""))
        if way in samples:
            own = _judged(own, samples, errors[way])
        rows.append(own)
    return rows


def _error(run: Callable[[], Any], expected: Tensor) -> float:
    for _ in range(_WARM_RUNS - 1):
        run()
    return float((torch.as_tensor(run()) - expected).abs().max())


def _judged(row: InferenceRow, samples: dict[str, list[float]], error: float) -> InferenceRow:
    own = samples[row.way]
    quartiles = statistics.quantiles(own, n=4, method="inclusive") if len(own) > 1 else own * 3
    low, median, high = (1e3 * seconds for seconds in quartiles)
    speed = paired_ratio(samples[EAGER], own)
    bound, value = _promise(row, samples, speed)
    return dataclasses.replace(
        row,
        milliseconds=median,
        low=low,
        high=high,
        speed=speed,
        error=error,
        bound="" if bound is None else bound.text,
        holds=None if bound is None else bound.holds(value),
    )


def _promise(row: InferenceRow, samples: dict[str, list[float]], speed: Ratio) -> tuple[Bound | None, float]:
    """Return what the project promises about a row, and the figure that it is about."""
    if row.model != "resnet50":
        return None, 0.0
    if row.way == FOLDED:
        return Bound("at least 1", least=1), speed.median
    if row.way == PIPELINE and (row.batch, row.threads) == (1, 2):
        return Bound("at least 1.3", least=1.3), speed.median
    if row.way == FROZEN and PIPELINE in samples:
        ratio = paired_ratio(samples[row.way], samples[PIPELINE])
        return Bound("no faster than the pipeline", least=1), ratio.median
    return None, 0.0


# -- the table


def as_markdown(rows: Sequence[InferenceRow], rounds: int) -> str:
    """Return the table, readable as plain text too."""
    surroundings = {**describe_surroundings(), "rounds": rounds}
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in surroundings.items())
    header = ("model", "way", "batch", "threads", "ms", "quartiles", "eager / this", "quartiles", "error")
    parts = [
        "# Inference on the CPU",
        facts,
        table((*header, "bound", "holds"), [_cells(row) for row in rows], left=2),
        "\n".join(dict.fromkeys(f"{row.way}: {row.note}" for row in rows if row.note)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cells(row: InferenceRow) -> tuple[str, ...]:
    place = (row.model, row.way, str(row.batch), str(row.threads))
    if row.milliseconds is None or row.speed is None:
        return (*place, *("-",) * 5, "", "")
    return (
        *place,
        f"{row.milliseconds:.1f}",
        f"{row.low:.1f} to {row.high:.1f}",
        f"{row.speed.median:.2f}",
        f"{row.speed.low:.2f} to {row.speed.high:.2f}",
        f"{row.error:.0e}",
        *row.judgement(),
    )


def _write(rows: Sequence[InferenceRow], rounds: int) -> list[Path]:
    _RESULTS.mkdir(parents=True, exist_ok=True)
    content = {**describe_surroundings(), "rounds": rounds, "rows": [dataclasses.asdict(row) for row in rows]}
    paths = [_RESULTS / "inference.md", _RESULTS / "inference.json"]
    paths[0].write_text(as_markdown(rows, rounds), encoding="utf-8")
    paths[1].write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return paths


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; write the results too when ``--write`` is among the arguments."""
    parser = argparse.ArgumentParser(description="Time networks on the CPU. No time is asserted.")
    groups = sorted({group for group, _ in WAYS.values()} - {"eager"})
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="only this one")
    parser.add_argument("--batch", action="append", type=int, help="only this batch size (default: 1 and 8)")
    parser.add_argument(
        "--threads", action="append", type=int, help="only so many threads (default: 1 and 2)"
    )
    parser.add_argument("--rounds", type=int, default=25, help="how often each way runs (default: 25)")
    parser.add_argument("--without", action="append", default=[], choices=groups, help="leave ways out")
    parser.add_argument("--write", action="store_true", help="keep the results in benchmarks/results")
    options = parser.parse_args(arguments)
    os.environ["FXPLUG_LOAD_PLUGINS"] = ""  # Passes of plugins could join the pipeline.
    rows: list[InferenceRow] = []
    for name in options.model or MODELS:
        for batch in options.batch or (1, 8):
            for threads in options.threads or (1, 2):
                sys.stderr.write(f"{name}, batch {batch}, {threads} threads\n")
                rows += measure(name, batch, threads, options.rounds, options.without)
    sys.stdout.write(as_markdown(rows, options.rounds))
    if options.write:
        for path in _write(rows, options.rounds):
            sys.stdout.write(f"\nwrote {path.name}")
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()

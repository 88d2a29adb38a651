"""How fast OpenVINO runs a network that fxplug lowered, and others converted: ``python -m benchmarks.lowering``.

ResNet-50 with batches of 1 and 8, and the actor of Learning-to-Paint with 1 and 96, with two threads, in float32 and in
bfloat16. All ways take turns; what counts are ratios inside each round, on a machine that does nothing else.

    python -m benchmarks.lowering                        # everything
    python -m benchmarks.lowering --model resnet50 --batch 1 --rounds 10
    python -m benchmarks.lowering --write                # keep the table in benchmarks/results/
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from benchmarks.inference import MODELS, WAYS, NotAvailableError
from benchmarks.report import Bound, WayRow, describe_surroundings, table
from benchmarks.timing import Ratio, interleave, paired_ratio
from benchmarks.zoo import randomise
from fxplug.lower import lower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

__all__ = ["LoweringRow", "as_markdown", "main", "measure"]

_RESULTS = Path(__file__).resolve().parent / "results"
_BATCHES = {"resnet50": (1, 8), "actor": (1, 96)}
EAGER, OURS, THEIRS, ONNX = "eager", "fxplug, openvino", "openvino.convert_model", "ONNX Runtime"


@dataclass(frozen=True)
class LoweringRow(WayRow):
    """What one way of running one model took; the error is a share of the largest magnitude."""

    model: str
    batch: int
    way: str
    precision: str
    beside: Ratio | None = None
    """Time of OpenVINO's own converter in this precision / time of this, round by round."""


def _by_fxplug(model: nn.Module, x: Tensor, precision: Any, threads: int) -> Callable[[], Any]:
    try:
        from fxplug_openvino import OpenVINOBackend  # noqa: PLC0415 - it need not be installed
    except ImportError as error:
        raise NotAvailableError(f"{error.name} is not installed") from error
    backend = OpenVINOBackend(precision=precision, threads=threads)
    ready = lower(fxplug.symbolic_trace(model), backend, (x,), name="openvino", strict=True).module
    return lambda: ready(x)


def _by_converter(model: nn.Module, x: Tensor, precision: str, threads: int) -> Callable[[], Any]:
    try:
        import openvino  # noqa: PLC0415 - it need not be installed
    except ImportError as error:
        raise NotAvailableError(f"{error.name} is not installed") from error
    converted = openvino.convert_model(torch.jit.trace(model, x), example_input=x, input=[tuple(x.shape)])
    properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    compiled = openvino.Core().compile_model(
        converted, "CPU", {**properties, "INFERENCE_NUM_THREADS": threads}
    )
    request, given = compiled.create_infer_request(), openvino.Tensor(x.numpy(), shared_memory=True)

    def run() -> Any:
        request.set_input_tensor(0, given)
        request.infer()
        return request.get_output_tensor(0).data

    return run


def measure(name: str, batch: int, threads: int, rounds: int) -> list[LoweringRow]:
    """Time one model in every way.

    Args:
        name: Of the model.
        batch: How many images at a time.
        threads: How many threads compute.
        rounds: How often each way runs.
    """
    make, shape = MODELS[name]
    model = randomise(make()).requires_grad_(requires_grad=False)
    x = torch.rand((batch, *shape), generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measure(name, model, x, threads, rounds)
    finally:
        torch.set_num_threads(before)


def _measure(name: str, model: nn.Module, x: Tensor, threads: int, rounds: int) -> list[LoweringRow]:
    ways: dict[tuple[str, str], Callable[[], Callable[[], Any]]] = {
        (EAGER, "f32"): lambda: lambda: model(x),
        (ONNX, "f32"): lambda: WAYS[ONNX][1](model, x, threads),
    }
    for precision in ("f32", "bf16"):
        ways[THEIRS, precision] = lambda precision=precision: _by_converter(model, x, precision, threads)
        ways[OURS, precision] = lambda precision=precision: _by_fxplug(model, x, precision, threads)
    ready: dict[str, Callable[[], Any]] = {}
    notes: dict[tuple[str, str], str] = {}
    for way, prepare in ways.items():
        try:
            ready[" ".join(way)] = prepare()
        except NotAvailableError as error:
            notes[way] = f"not available: {error}"
    with torch.inference_mode():
        expected = model(x)
        errors = {way: _error(run, expected) for way, run in ready.items()}
        samples = interleave(ready, rounds)
    rows = [LoweringRow(name, len(x), *way, note=notes.get(way, "")) for way in ways]
    return [row if row.note else _judged(row, samples, errors) for row in rows]


def _error(run: Callable[[], Any], expected: Tensor) -> float:
    run()
    found = torch.as_tensor(run())
    return float((found - expected).abs().max() / expected.abs().max())


def _judged(row: LoweringRow, samples: dict[str, list[float]], errors: dict[str, float]) -> LoweringRow:
    key, theirs = f"{row.way} {row.precision}", f"{THEIRS} {row.precision}"
    own = samples[key]
    speed = paired_ratio(samples[f"{EAGER} f32"], own)
    beside = paired_ratio(samples[theirs], own) if theirs in samples else None
    bound = None
    if row.way == OURS and row.model == "resnet50":
        least = 1.3 if row.precision == "f32" else 2.5
        bound = Bound(f"eager at least {least}, the converter at least 0.97", least=least)
    return dataclasses.replace(
        row,
        milliseconds=1e3 * statistics.median(own),
        speed=speed,
        beside=beside,
        error=errors[key],
        bound="" if bound is None else bound.text,
        holds=None
        if bound is None
        else bound.holds(speed.median) and (beside is None or beside.median >= 0.97),
    )


def as_markdown(rows: Sequence[LoweringRow], rounds: int) -> str:
    """Return the table, readable as plain text too."""
    surroundings = {**describe_surroundings(), "rounds": rounds}
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in surroundings.items())
    header = (
        "model",
        "way",
        "precision",
        "batch",
        "ms",
        "eager / this",
        "quartiles",
        "converter / this",
        "error",
    )
    parts = [
        "# Lowering to OpenVINO",
        facts,
        table((*header, "bound", "holds"), [_cells(row) for row in rows], left=3),
        "\n".join(dict.fromkeys(f"{row.way}: {row.note}" for row in rows if row.note)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cells(row: LoweringRow) -> tuple[str, ...]:
    place = (row.model, row.way, row.precision, str(row.batch))
    if row.milliseconds is None or row.speed is None:
        return (*place, *("-",) * 5, "", "")
    return (
        *place,
        f"{row.milliseconds:.1f}",
        f"{row.speed.median:.2f}",
        f"{row.speed.low:.2f} to {row.speed.high:.2f}",
        "-" if row.beside is None else f"{row.beside.median:.2f}",
        f"{row.error:.0e}",
        *row.judgement(),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; write the results too when ``--write`` is among the arguments."""
    parser = argparse.ArgumentParser(description="Time networks in OpenVINO. No time is asserted.")
    parser.add_argument("--model", action="append", choices=sorted(_BATCHES), help="only this one")
    parser.add_argument("--batch", action="append", type=int, help="only this batch size")
    parser.add_argument("--threads", type=int, default=2, help="how many threads compute (default: 2)")
    parser.add_argument("--rounds", type=int, default=25, help="how often each way runs (default: 25)")
    parser.add_argument("--write", action="store_true", help="keep the results in benchmarks/results")
    options = parser.parse_args(arguments)
    rows: list[LoweringRow] = []
    for name in options.model or _BATCHES:
        for batch in options.batch or _BATCHES[name]:
            sys.stderr.write(f"{name}, batch {batch}\n")
            rows += measure(name, batch, options.threads, options.rounds)
    text = as_markdown(rows, options.rounds)
    sys.stdout.write(text)
    if options.write:
        _RESULTS.mkdir(parents=True, exist_ok=True)
        content = {
            **describe_surroundings(),
            "rounds": options.rounds,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        (_RESULTS / "lowering.md").write_text(text, encoding="utf-8")
        (_RESULTS / "lowering.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What OpenVINO takes of whole models: ``python -m benchmarks.lowered_models``.

Each model is lowered, run on two inputs, and compared with eager.

    python -m benchmarks.lowered_models                              # the own models and the examples
    python -m benchmarks.lowered_models --group torchvision          # those of a library that is installed
    python -m benchmarks.lowered_models --name resnet18
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from benchmarks.own_models import OWN_MODELS, OwnModel
from benchmarks.report import table
from benchmarks.zoo import GROUPS, models_of, randomise
from examples import deep_recommender, learning_to_paint, resnet50, transformer
from fxplug.analyze.comparison import Tolerance, compare
from fxplug.lower import lower

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXAMPLES", "LoweredRow", "main", "try_model"]


def _many(example_inputs: Any, batch: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.cat([example_inputs(seed)[0] for seed in range(batch)])[:batch] for _ in range(1))


EXAMPLES = (
    OwnModel("resnet50", resnet50.resnet50, partial(_many, resnet50.example_inputs)),
    OwnModel("actor", learning_to_paint.actor, partial(_many, learning_to_paint.example_inputs)),
    OwnModel(
        "deep recommender", deep_recommender.deep_recommender, partial(_many, deep_recommender.example_inputs)
    ),
    OwnModel("transformer", transformer.transformer, partial(_many, transformer.example_inputs)),
)
"""The models of the examples."""


@dataclass(frozen=True)
class LoweredRow:
    """What came of one model."""

    name: str
    calls: int = 0
    supported: int = 0
    partitions: int = 0
    error: float = 0.0
    """The largest difference from eager, as a share of the largest magnitude."""
    problem: str = ""
    """The first call that stays in PyTorch, or what is wrong; empty where all is well."""


def try_model(model: OwnModel, backend: Any, tolerance: Tolerance | None = None) -> LoweredRow:
    """Lower a model, run it on two inputs, and compare with eager."""
    ready = randomise(model.build()).requires_grad_(requires_grad=False)
    torch.manual_seed(0)
    inputs, others = model.inputs(2), model.inputs(2)
    row = LoweredRow(model.name)
    try:
        module = fxplug.trace(ready, inputs)
        lowered = lower(module, backend, inputs, name="openvino")
    except Exception as error:  # What stands in the way is a row of the table.
        return LoweredRow(model.name, problem=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    report = lowered.report
    left = [node for node in report.nodes if not node.partition]
    row = LoweredRow(model.name, len(report.nodes), len(report.nodes) - len(left), len(report.partitions))
    problem = lowered.fallback or (f"{left[0].name}: {left[0].reason}" if left else "")
    error = 0.0
    with torch.no_grad():
        for values in (inputs, others):
            for part in compare(ready(*values), lowered.module(*values), tolerance or Tolerance(share=1e-4)):
                error = max(error, part.max_rel_error)
                problem = problem or part.reason
    return LoweredRow(row.name, row.calls, row.supported, row.partitions, error, problem)


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the models, and print what came of each."""
    parser = argparse.ArgumentParser(description="Lower whole models to OpenVINO.")
    parser.add_argument("--group", action="append", choices=sorted(GROUPS), help="the models of a library")
    parser.add_argument("--name", action="append", help="only this one")
    options = parser.parse_args(arguments)
    from fxplug_openvino import OpenVINOBackend  # noqa: PLC0415 - it need not be installed

    models = (
        [model for group in options.group for model in models_of(group)]
        if options.group
        else [*EXAMPLES, *OWN_MODELS]
    )
    rows: list[tuple[str, ...]] = []
    for model in models:
        if options.name and model.name not in options.name:
            continue
        row = try_model(model, OpenVINOBackend())
        sys.stderr.write(f"{row}\n")
        rows.append(
            (
                row.name,
                f"{row.supported} of {row.calls}",
                str(row.partitions),
                f"{row.error:.0e}",
                row.problem,
            )
        )
    sys.stdout.write(table(("model", "calls", "partitions", "error", "what is left"), rows, left=1) + "\n")


if __name__ == "__main__":
    main()

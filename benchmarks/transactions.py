"""What it costs that a pass can be undone, and that it is verified."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

import fxplug
from benchmarks.programs import resnet50
from benchmarks.report import Figure, promised
from benchmarks.timing import interleave, paired_ratio, run_in_process
from fxplug.passes import Pass, PassContext, PassRecord, PassResult, Pipeline, PipelineStep, Snapshot

if TYPE_CHECKING:
    from benchmarks.modes import Mode

__all__ = ["measure_transactions"]


class _TouchesTwoWeights(Pass):
    """Writes two parameters of a module, and changes nothing by it."""

    def run(self, module: fxplug.GraphModule, context: PassContext) -> PassResult:
        """Write."""
        with torch.no_grad():
            for weight in list(module.parameters())[:2]:
                weight.mul_(1.0)
        return PassResult(modified=True)


def measure_transactions(mode: Mode) -> list[Figure]:
    """Measure a pass that writes two weights of ResNet-50, against a deep copy of the module.

    Alone, so that it can be undone; and as the one pass of a pipeline, which checks the graph besides, and keeps
    history, bytes and the map to the original's weights. All of it in a process of its own: elsewhere the copy is given
    memory that others have just freed, which takes less than to get new memory.
    """
    return run_in_process(_measure_all, mode)


def _measure_all(mode: Mode) -> list[Figure]:
    module = fxplug.symbolic_trace(resnet50())
    record = PassRecord("touch", _TouchesTwoWeights, "Writes two weights.")
    inputs = (torch.randn(1, 3, 224, 224),)

    def pipeline(level: Any) -> Pipeline:
        return Pipeline("benchmark", [PipelineStep("touch", record)], verify=level)

    structure, numeric = pipeline("structure"), pipeline("numeric")
    samples = interleave(
        {
            "transaction": lambda: _transaction(module),
            "structure": lambda: structure.run(module),
            "copy": lambda: copy.deepcopy(module),
        },
        mode.rounds,
    )
    # A verified pass costs runs of the module: two before the first pass, and one behind each that changes it.
    verified = interleave(
        {"numeric": lambda: numeric.run(module, inputs), "run": lambda: _run(module, inputs)},
        max(3, mode.rounds // 5),
    )
    return [
        Figure(
            "transaction around a pass that writes two weights of ResNet-50, against a deep copy of the module",
            "times",
            paired_ratio(samples["transaction"], samples["copy"]).median,
            promised(mode, "at most 0.15", most=0.15),
        ),
        Figure(
            "the pass as a whole pipeline, against a deep copy of the module",
            "times",
            paired_ratio(samples["structure"], samples["copy"]).median,
        ),
        Figure(
            "the same verified at level numeric, against one run of the module",
            "times",
            paired_ratio(verified["numeric"], verified["run"]).median,
        ),
    ]


def _transaction(module: fxplug.GraphModule) -> None:
    snapshot = Snapshot(module)
    with snapshot.watching():
        _TouchesTwoWeights().run(module, PassContext())


def _run(module: fxplug.GraphModule, inputs: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        module(*inputs)

"""Deep copies of graphs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch.fx

import fxplug
from benchmarks.programs import count_text, long_function, resnet50
from benchmarks.report import Comparison, compare_samples, promised
from benchmarks.timing import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from benchmarks.modes import Mode

__all__ = ["compare_deepcopy"]


def compare_deepcopy(mode: Mode) -> list[Comparison]:
    """Compare ``copy.deepcopy`` of the graphs of ResNet-50 and of a long function, per node."""
    count = mode.lengths[0]
    return [
        _compare("deep copy of a graph, ResNet-50", resnet50(), mode),
        _compare(f"deep copy of a graph, function of {count_text(count)}", long_function(count), mode),
    ]


def _compare(name: str, root: nn.Module | Callable[..., object], mode: Mode) -> Comparison:
    theirs = torch.fx.Tracer().trace(root)
    ours = fxplug.Tracer().trace(root)
    samples = interleave(
        {"torch.fx": lambda: copy.deepcopy(theirs), "fxplug": lambda: copy.deepcopy(ours)}, mode.rounds
    )
    return compare_samples(
        name,
        "µs per node",
        samples["torch.fx"],
        samples["fxplug"],
        1e6 / len(ours.nodes),
        promised(mode, "at least 3", least=3),
    )

"""From a graph to source, and Python's own part in making it run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.fx

import fxplug
from benchmarks.programs import count_text, long_function, resnet50
from benchmarks.report import Comparison, compare_samples
from benchmarks.timing import interleave

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from benchmarks.modes import Mode

__all__ = ["compare_codegen", "compare_compile_floor"]


def compare_codegen(mode: Mode) -> list[Comparison]:
    """Compare making source of ResNet-50 and of a long function, per node."""
    count = mode.lengths[0]
    return [
        _compare("code generation, ResNet-50", resnet50(), mode),
        _compare(f"code generation, function of {count_text(count)}", long_function(count), mode),
    ]


def _compare(name: str, root: nn.Module | Callable[..., object], mode: Mode) -> Comparison:
    theirs = torch.fx.Tracer().trace(root)
    ours = fxplug.Tracer().trace(root)
    samples = interleave(
        {"torch.fx": lambda: theirs.python_code("self").src, "fxplug": lambda: ours.python_code("self").src},
        mode.rounds,
    )
    return compare_samples(name, "µs per node", samples["torch.fx"], samples["fxplug"], 1e6 / len(ours.nodes))


def compare_compile_floor(mode: Mode) -> list[Comparison]:
    """Compare how long Python itself takes to compile the sources of ResNet-50: torch.fx gets not below its row."""
    model = resnet50()
    theirs = torch.fx.Tracer().trace(model).python_code("self").src
    ours = fxplug.Tracer().trace(model).python_code("self").src
    samples = interleave(
        {
            "torch.fx": lambda: compile(theirs, "<torch.fx>", "exec"),
            "fxplug": lambda: compile(ours, "<fxplug>", "exec"),
        },
        mode.rounds,
    )
    name = "floor of it: Python's compile() of the source, ResNet-50"
    return [compare_samples(name, "ms", samples["torch.fx"], samples["fxplug"], 1e3)]

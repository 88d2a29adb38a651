"""From a program to a graph, and on to a module that can be called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.fx

import fxplug
from benchmarks.programs import count_text, long_function, resnet50
from benchmarks.report import Comparison, Figure, compare_samples, promised
from benchmarks.timing import interleave, paired_ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from benchmarks.modes import Mode

__all__ = ["compare_long_functions", "compare_resnet50", "measure_plugin_host", "ready_to_call"]


def ready_to_call(root: nn.Module | Callable[..., object]) -> fxplug.GraphModule:
    """Return a traced module whose code is compiled already, as torch.fx's is: fxplug would wait for the first call."""
    module = fxplug.symbolic_trace(root)
    _ = module.forward
    return module


def compare_resnet50(mode: Mode) -> list[Comparison]:
    """Compare tracing ResNet-50, with and without making a callable module of the graph."""
    model = resnet50()
    samples = interleave(
        {
            "torch.fx": lambda: torch.fx.symbolic_trace(model),
            "fxplug": lambda: ready_to_call(model),
            "torch.fx trace": lambda: torch.fx.Tracer().trace(model),
            "fxplug trace": lambda: fxplug.Tracer().trace(model),
        },
        mode.rounds,
    )
    return [
        compare_samples(
            "symbolic_trace, ResNet-50, ready to call",
            "ms",
            samples["torch.fx"],
            samples["fxplug"],
            1e3,
            promised(mode, "at least 4", least=4),
        ),
        compare_samples(
            "trace alone, ResNet-50", "ms", samples["torch.fx trace"], samples["fxplug trace"], 1e3
        ),
    ]


def compare_long_functions(mode: Mode) -> list[Comparison]:
    """Compare the trace of functions of growing length, per node."""
    return [_compare_length(count, mode) for count in mode.lengths]


def _compare_length(count: int, mode: Mode) -> Comparison:
    function = long_function(count)
    samples = interleave(
        {
            "torch.fx": lambda: torch.fx.Tracer().trace(function),
            "fxplug": lambda: fxplug.Tracer().trace(function),
        },
        mode.rounds_for(count),
    )
    name = f"trace alone, function of {count_text(count)}"
    # What torch.fx costs per node grows with the graph: the promise is about the longest function.
    bound = promised(mode, "at least 5", least=5) if count == mode.lengths[-1] else None
    return compare_samples(name, "µs per node", samples["torch.fx"], samples["fxplug"], 1e6 / count, bound)


def measure_plugin_host(mode: Mode) -> list[Figure]:
    """Measure what the plugin host adds to a trace while it has no plugin: the front door against a bare tracer."""
    model = resnet50()

    def bare() -> fxplug.GraphModule:
        tracer = fxplug.Tracer()
        graph = tracer.trace(model)
        return fxplug.GraphModule(tracer.root, graph)

    # A difference of some per cent is small beside the scatter of single traces.
    rounds = 4 * mode.rounds
    samples = interleave({"front door": lambda: fxplug.symbolic_trace(model), "bare": bare}, rounds)
    added = paired_ratio(samples["front door"], samples["bare"]).median - 1
    name = "symbolic_trace of ResNet-50: added by the plugin host without a plugin"
    return [Figure(name, "%", added * 100, promised(mode, "at most 3", most=3))]
